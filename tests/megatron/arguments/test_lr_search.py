"""Stages of kind ``lr_finder`` with upstream's trainer: command, ignored arguments, and errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.megatron.commands.commands import (
    runs_pretrain_gpt,
    runs_upstream_script,
    search_starter,
    trainer_words,
)
from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job

MODEL = {
    **{"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64, "mock_data": True},
    **{"max_position_embeddings": 64, "tokenizer_type": "NullTokenizer", "vocab_size": 100},
    **{"micro_batch_size": 2, "global_batch_size": 4, "train_iters": 100, "min_lr": 1e-5},
}
FOUND = "{{ file_value(stages.search.run_dir ~ '/lr_finder/suggested_lr') }}"


def plan(megatron: dict[str, Any], device: str = "cuda", search: Any = (), **more: Any) -> Plan:
    spec = {
        **{"name": "s", "point": "p", "trainer": "megatron_lm", "release": "core_v0.16.1"},
        "megatron": {**MODEL, **megatron},
        "stages": {
            "search": {"kind": "lr_finder", "megatron": {"train_iters": 40, **dict(search)}},
            "pretrain": {"kind": "train", "parent": "search", "megatron": {"lr": FOUND, "save_interval": 50}},
        },
        **more,
    }
    profile = ClusterProfile.model_validate(
        {
            **{"name": "alps", "ssh_conn_id": "alps", "run_root": "/runs", "python": "/venv/bin/python"},
            **{"megatron_lm_dir": "/ours", "gpu": "h100-80gb"},
            "trainers": {"megatron_lm": {"checkout": "/upstream", "device": device}},
        }
    )
    return check_sweep(load_sweep_text(json.dumps(spec), "s.yaml"), profile)


def jobs(*args: Any, **more: Any) -> tuple[Job, Job]:
    search, pretrain = plan(*args, **more).jobs
    return search, pretrain


@pytest.mark.parametrize(("device", "starters"), [("cuda", []), ("cpu", ["/ours/upstream_on_cpu.py"])])
def test_the_starter_stands_before_the_script(device: str, starters: list[str]) -> None:
    found = plan({}, device)
    assert found.warnings == ()
    search, pretrain = found.jobs
    starters = ["/venv/bin/python", *starters, "/ours/upstream_index_cache.py"]
    before = [*starters, "/ours/upstream_lr_finder.py", "/upstream/pretrain_gpt.py"]
    assert list(search.command[: len(before)]) == before
    assert trainer_words(search.command) == search.command[len(before) :]
    assert runs_upstream_script(search.command)
    assert runs_pretrain_gpt(search.command)
    assert search_starter(search.command) == "upstream_lr_finder.py"
    assert search_starter(pretrain.command) is None
    assert list(pretrain.command[: len(starters) + 1]) == [*starters, "/upstream/pretrain_gpt.py"]
    assert search.outputs == (f"{search.run_dir}/lr_finder/suggested_lr",)
    assert {search.name, pretrain.name} == found.estimates.jobs.keys()


@pytest.mark.slow
def test_the_other_scripts_of_upstream() -> None:
    search, _ = jobs({"vocab_file": "/v", "data_path": ["/d"], "mock_data": None}, entry="pretrain_bert.py")
    assert search.command[2:4] == ("/ours/upstream_lr_finder.py", "/upstream/pretrain_bert.py")
    assert not runs_pretrain_gpt(search.command)


@pytest.mark.slow
def test_a_search_has_no_schedule_no_checkpoints_and_no_validation() -> None:
    given = {
        **{"lr_decay_style": "WSD", "lr_wsd_decay_iters": 20, "lr_warmup_iters": 60, "save_interval": 50},
        **{"eval_iters": 5, "eval_interval": 50, "exit_duration_in_mins": 5, "wandb_project": "ours"},
        "no_check_for_nan_in_loss_and_grad": False,
    }
    search, pretrain = jobs(given, search={"lr_finder_end_lr": 3})
    words = trainer_words(search.command)
    values = {word: words[place] for place, word in enumerate(words[:-1], 1) if word.startswith("--")}
    told = {
        **{"--train-iters": "40", "--lr": "3", "--lr-finder-end-lr": "3", "--eval-iters": "0"},
        **{"--eval-interval": "40", "--lr-finder-save": "/runs/s/p/search"},
        "--wandb-save-dir": "/runs/s/p/search/wandb",
    }
    assert values.items() >= told.items()
    assert "--no-check-for-nan-in-loss-and-grad" in words
    passed_over = {"--save", "--load", "--exit-signal-handler", "--exit-duration-in-mins", "--lr-decay-style"}
    passed_over |= {"--lr-warmup-iters", "--lr-wsd-decay-iters", "--min-lr", "--save-interval", "--lr-finder"}
    assert not passed_over & {*words}
    assert {*trainer_words(pretrain.command)} >= passed_over - {"--lr-finder"}


@pytest.mark.slow
def test_its_own_learning_rate_stays() -> None:
    search, _ = jobs({"lr": 0.01, "decoupled_lr": 0.1, "untie_embeddings_and_output_weights": True})
    words = trainer_words(search.command)
    assert words[words.index("--lr") + 1] == "0.01"
    assert words[words.index("--decoupled-lr") + 1] == "0.1"


@pytest.mark.slow
def test_trainings_pass_over_the_options_of_the_sweeps_searches() -> None:
    search, pretrain = jobs({"lr_finder_start_lr": 1e-5})
    assert "--lr-finder-start-lr" in search.command
    assert not [word for word in pretrain.command if word.startswith("--lr-finder")]


@pytest.mark.slow
def test_swept_options() -> None:
    search, pretrain = jobs(
        {}, point="end{{ lr_finder_end_lr }}", sweep={"params": {"lr_finder_end_lr": [2]}}
    )
    assert search.command[search.command.index("--lr-finder-end-lr") + 1] == "2"
    assert "--lr-finder-end-lr" not in pretrain.command


@pytest.mark.slow
@pytest.mark.parametrize(
    ("search", "told"),
    [
        ({"lr_finder_start_lr": 2}, r"\(2\.0\) must be above zero and below --lr-finder-end-lr \(1\.0\)"),
        ({"lr_finder_smoothing": 1.5}, r"--lr-finder-smoothing must lie in \[0, 1\), not 1\.5"),
        ({"lr_finder_smoothing": "high"}, "lr_finder_smoothing: must be a number, not 'high'"),
        ({"lr_finder_strat_lr": 2}, "no argument 'lr_finder_strat_lr' .*did you mean lr_finder_start_lr"),
        ({"lr_finder_save": "/x"}, "a search writes into its run directory; drop lr_finder_save"),
        ({"load": "/c"}, "starts its own schedule; add megatron: {finetune: true}, or drop load"),
        ({"train_iters": None}, "stage search needs train_iters, the number of its steps"),
        (
            {"train_iters": None, "train_samples": 100},
            "the number of its steps, in place of train_samples",
        ),
        ({"num_attention_heads": 3}, "core_v0.16.1 refuses it"),
        ({"train_iters": 9}, "a search of 9 steps is too short to suggest a learning rate; write 10 or more"),
        (
            {"lr_finder_stop_factor": 0.5},
            r"--lr-finder-stop-factor \(0\.5\) must be 0, for never, or at least 1",
        ),
    ],
)
def test_refusals(search: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        plan({}, search=search)


@pytest.mark.slow
def test_a_search_of_a_fine_tuning_begins_with_its_weights() -> None:
    search, _ = jobs({}, search={"load": "/c", "finetune": True})
    assert search.command[search.command.index("--load") + 1] == "/c"


def test_options_without_a_search_are_unknown() -> None:
    stages = {"pretrain": {"kind": "train", "megatron": {"save_interval": 50}}}
    with pytest.raises(SpecError, match="has no argument 'lr_finder_end_lr'"):
        plan({"lr": 1e-3, "lr_finder_end_lr": 2}, stages=stages)
