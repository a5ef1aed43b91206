"""What upstream's program would refuse, or would not do, told before submission and at the line of the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checked_chain import TRUNK, alps, changed, checked, errors_of, line_of

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.schema import TrainerSection
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.documents.errors import Problem


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["slurm.nodes=3"], "refuses it on 12 GPUs: "),
        (["megatron.tensor_model_parallel_size=3"], "refuses it on 4 GPUs: "),
    ],
)
def test_what_upstream_would_refuse_is_refused_here(settings: list[str], told: str) -> None:
    sweep = load_sweep(sweep_specs_dir() / "decays.yaml", settings)
    assert sweep.settings.cluster == "example-slurm"
    with pytest.raises(SpecError) as caught:
        check_sweep(sweep, load_cluster("example-slurm"))
    assert told in str(caught.value)
    assert "more points" in str(caught.value)


@pytest.mark.slow
def test_a_blend_in_one_text_is_one_data_set() -> None:
    """Upstream's rules see one word, which may be a data set's name; written in a spec it was meant for a list."""
    sweep = load_sweep(sweep_specs_dir() / "decays.yaml", ['megatron.data_path="0.6 /a 0.4 /b"'])
    with pytest.raises(SpecError, match=r"data_path '0\.6 /a 0\.4 /b' is one text"):
        check_sweep(sweep, load_cluster("example-slurm"))


UPSTREAM = TRUNK.replace('point: "lr{{ lr }}"', 'point: "lr{{ lr }}"\ntrainer: megatron_lm').replace(
    "  vocab_size: 100\n",
    "  vocab_size: 100\n  transformer_impl: local\n  eval_interval: 100\n  eval_iters: 1\n",
)
"""The chain for upstream's program."""
LOCAL = alps().model_copy(update={"trainers": {"megatron_lm": TrainerSection(checkout="/opt/Megatron-LM")}})
LAST = "      lr_wsd_decay_iters: 60\n      save_interval: 60\n  cooldown"


def told(*pairs: tuple[str, str]) -> tuple[str, Problem]:
    """Return the changed chain and the only problem in it."""
    text = changed(*pairs, text=UPSTREAM)
    (problem,) = errors_of(text, LOCAL)
    return text, problem


@pytest.mark.slow
def test_a_chain_that_upstream_takes() -> None:
    assert errors_of(UPSTREAM, LOCAL) == []


@pytest.mark.parametrize(
    ("old", "new", "at"),
    [
        ("  cooldown", "      hidden_size: 66\n  cooldown", "      hidden_size: 66"),
        ("num_attention_heads: 8", "num_attention_heads: 7", "  hidden_size: 64"),
        # named in words only
        ("  cooldown", "      tensor_model_parallel_size: 3\n  cooldown", "      tensor_model_parallel_size"),
        ("  lr: [1e-3, 4e-3]", "  lr: [1e-3, 4e-3]\n  micro_batch_size: [7]", "  global_batch_size"),
        ("  cooldown", "      micro_batch_size: 7\n  cooldown", "      micro_batch_size: 7"),
        ("  lr: [1e-3, 4e-3]", "  lr: [1e-3, 4e-3]\n  cooldown.min_lr: [1]", "  cooldown.min_lr: [1]"),
    ],
    ids=["stage", "first-named", "words", "axis", "stage-before-sweep", "axis-of-a-stage"],
)
def test_a_refusal_points_at_the_value(old: str, new: str, at: str) -> None:
    text = changed((old, new), text=UPSTREAM)
    problem = next(each for each in errors_of(text, LOCAL) if "core_v0.16.1 refuses it" in each.message)
    assert (problem.file, problem.line) == ("s.yaml", line_of(text, at))


def test_a_refusal_points_at_the_value_of_this_file_before_an_inherited_one(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(UPSTREAM)
    spec = tmp_path / "s.yaml"
    spec.write_text("extends: base.yaml\nmegatron:\n  num_attention_heads: 7\n")
    with pytest.raises(SpecError) as caught:
        check_sweep(load_sweep(spec), LOCAL)
    assert {(problem.file, problem.line) for problem in caught.value.problems} == {(str(spec), 3)}


CONFIGS = """\
sweep:
  groups:
    - configs:
        - {lr: 1e-3, hidden_size: 64, cooldown.min_lr: 0}
        - {lr: 4e-3, hidden_size: WRONG, cooldown.min_lr: 0}
    - {type: list, groups: [{params: {seed: [1]}}, {params: {seed: [2, 3]}}]}
  filter: "{{ seed < 3 }}"
"""


@pytest.mark.parametrize("wrong", ["66", "four"])
def test_of_several_values_in_the_sweep_it_points_at_the_one_of_the_point(wrong: str) -> None:
    configs = CONFIGS.replace("WRONG", wrong)
    pairs = [("  hidden_size: 64\n", ""), ("sweep:\n  lr: [1e-3, 4e-3]\n", configs)]
    text = changed(*pairs, ('point: "lr{{ lr }}"', 'point: "lr{{ lr }}.{{ seed }}"'), text=UPSTREAM)
    problems = [problem for problem in errors_of(text, LOCAL) if "hidden" in problem.message]
    assert {problem.line for problem in problems} == {line_of(text, "        - {lr: 4e-3")}


def test_two_lengths_are_one_error() -> None:
    alone = UPSTREAM[: UPSTREAM.index("  cooldown:")]
    text = changed(("save_interval: 60", "save_interval: 60\n      train_samples: 19200"), text=alone)
    (problem,) = errors_of(text, LOCAL)
    assert "--train-iters 300 and --train-samples 19200 exclude each other" in problem.message
    assert problem.line == line_of(text, "train_iters: 300")


class TestArguments:
    """Arguments that upstream's parser takes, and with which a stage cannot finish."""

    @pytest.mark.parametrize("trainer", ["megatron_lm", "megatron_core"])
    @pytest.mark.parametrize(
        ("blend", "message"),
        [
            ("[]", "names no data set"),
            ("[-0.5, /a, 1.5, /b]", "share above zero"),
            ("[0, /a, 0, /b]", "share above zero"),
        ],
    )
    def test_blends(self, trainer: str, blend: str, message: str) -> None:
        text = changed(("  mock_data: true", f"  data_path: {blend}"), text=UPSTREAM)
        if trainer == "megatron_core":
            text = changed(("trainer: megatron_lm", ""), ("  transformer_impl: local\n", ""), text=text)
        problems = errors_of(text, LOCAL)
        assert all(message in problem.message for problem in problems)
        assert {problem.line for problem in problems} == {line_of(text, "data_path")}

    def test_a_step_of_no_checkpoint(self) -> None:
        text, problem = told((LAST, LAST.replace("  cooldown", "      ckpt_step: 100\n  cooldown")))
        assert "ckpt_step 100 names no checkpoint" in problem.message
        assert problem.hint.startswith("start: {from: DIRECTORY, iteration: 100} instead")
        assert problem.line == line_of(text, "ckpt_step")

    def test_a_step_of_the_parent(self) -> None:
        _, problem = told(("      override_opt", "      ckpt_step: 240\n      override_opt"))
        assert problem.hint.startswith("start: {checkpoint: 240} instead")

    @pytest.mark.slow
    def test_a_step_of_another_directory(self) -> None:
        more = "      ckpt_step: 100\n      load: /x\n  cooldown"
        assert errors_of(changed((LAST, LAST.replace("  cooldown", more)), text=UPSTREAM), LOCAL) == []

    def test_an_exit_without_a_checkpoint(self) -> None:
        text, problem = told(
            (LAST, LAST.replace("  cooldown", "      exit_on_missing_checkpoint: true\n  cooldown"))
        )
        assert "ends the first attempt" in problem.message
        assert problem.line == line_of(text, "exit_on_missing_checkpoint")

    @pytest.mark.parametrize(
        ("line", "flag"),
        [
            ("perform_initialization: false", "--no-initialization"),
            ("init_model_with_meta_device: true", "--init-model-with-meta-device"),
        ],
    )
    def test_weights_without_values(self, line: str, flag: str) -> None:
        alone = UPSTREAM[: UPSTREAM.index("  cooldown:")]
        text = changed(("  mock_data: true", f"  mock_data: true\n  {line}"), text=alone)
        (problem,) = errors_of(text, LOCAL)
        assert f"{flag} gives the weights no values, and no checkpoint is loaded" in problem.message
        assert problem.line == line_of(text, line)
        loads = changed(("    kind: train\n", "    kind: train\n    start: {from: /x}\n"), text=text)
        assert errors_of(loads, LOCAL) == []

    @pytest.mark.parametrize("interval", [-1, 0])
    def test_an_interval_of_validations(self, interval: int) -> None:
        text = changed(("eval_interval: 100", f"eval_interval: {interval}"), text=UPSTREAM)
        (problem,) = errors_of(text, LOCAL)
        assert "eval_iters: 0" in problem.hint.replace("--eval-iters ", "eval_iters: ")
        assert problem.line == line_of(text, "eval_interval")

    @pytest.mark.slow
    def test_no_validations(self) -> None:
        text = changed(
            ("eval_interval: 100", "eval_interval: -1"), ("eval_iters: 1", "eval_iters: 0"), text=UPSTREAM
        )
        assert errors_of(text, LOCAL) == []

    def test_a_stage_that_skips_its_training(self) -> None:
        text, problem = told((LAST, LAST.replace("  cooldown", "      skip_train: true\n  cooldown")))
        assert "skip_train saves no checkpoint" in problem.message
        assert problem.line == line_of(text, "skip_train")

    @pytest.mark.slow
    @pytest.mark.parametrize("source", ["from: /x", "from: /x, iteration: 300"])
    def test_a_stage_that_only_evaluates(self, source: str) -> None:
        alone = UPSTREAM[: UPSTREAM.index("  cooldown:")]
        text = changed(
            ("save_interval: 60", "save_interval: 0\n      skip_train: true"),
            ("    kind: train\n", f"    kind: train\n    start: {{{source}}}\n"),
            text=alone,
        )
        assert errors_of(text, LOCAL) == []

    def test_a_stage_that_continues_from_elsewhere_and_saves_nothing(self) -> None:
        alone = UPSTREAM[: UPSTREAM.index("  cooldown:")]
        text = changed(("save_interval: 60", "save_interval: 0\n      load: /x"), text=alone)
        command = checked(text, LOCAL).jobs[0].command
        assert command[command.index("--load") + 1] == "/x"
        assert "--save" not in command

    def test_a_length_below_zero(self) -> None:
        text = changed(("train_iters: 300", "train_iters: -300"), text=UPSTREAM)
        problem = errors_of(text, LOCAL)[0]
        assert "has train_iters -300; write at least 1" in problem.message
        assert problem.line == line_of(text, "train_iters")

    @pytest.mark.slow
    def test_a_wrapper_that_no_process_gets(self) -> None:
        text = changed(
            ("  pretrain:", "  pretrain:\n    wrapper: {command: [nsys], ranks: [8]}"), text=UPSTREAM
        )
        (problem,) = [warning for warning in checked(text, LOCAL).warnings if "wrapper" in warning.message]
        assert "none of the wrapper's ranks [8] is among its 8 processes" in problem.message
        assert problem.line == line_of(text, "wrapper")
        assert problem.hint == "ranks of at most 7; the first is 0"

    def test_a_benchmark_that_ends_before_its_measurement(self) -> None:
        style = ("  lr_decay_style: WSD\n  lr_warmup_iters: 10\n", "  lr_warmup_iters: 9\n")
        text = f"{UPSTREAM[: UPSTREAM.index('stages:')]}benchmark:\n  iterations: 10\n".replace(*style)
        (problem,) = [warning for warning in checked(text, LOCAL).warnings if "measured" in warning.message]
        assert "skip excludes the first 10 of 10 iterations: nothing is measured" in problem.message
        assert problem.line == line_of(text, "iterations: 10")

    def test_a_finish_at_a_checkpoint_that_is_never_saved(self) -> None:
        text = changed(("  pretrain:", "  pretrain:\n    finish: {checkpoint: 77}"), text=UPSTREAM)
        (problem,) = errors_of(text, LOCAL)
        assert "needs checkpoint 77 of pretrain, which saves every 60 iterations only" in problem.message
        assert problem.line == line_of(text, "finish")

    def test_validation_data_alone(self) -> None:
        data = ("  vocab_size: 100\n", "  vocab_size: 100\n  valid_data_path: [/v]\n")
        text = changed(data, ("  mock_data: true\n", ""), text=UPSTREAM)
        found = [problem for problem in errors_of(text, LOCAL) if "no train_data_path" in problem.message]
        assert {problem.line for problem in found} == {line_of(text, "valid_data_path")}
        given = text.replace("  valid_data_path", "  train_data_path: [/t]\n  valid_data_path")
        assert errors_of(given, LOCAL) == []

    @pytest.mark.parametrize(("split", "trains"), [("0,1,1", False), ("0.0, 100", False), ("0.5,1", True)])
    def test_a_split_without_training_data(self, split: str, trains: bool) -> None:
        data = ("  mock_data: true\n", f"  data_path: [/d]\n  split: {split}\n")
        text = changed(data, text=UPSTREAM)
        found = [problem for problem in errors_of(text, LOCAL) if "no training data" in problem.message]
        assert {problem.line for problem in found} == (set() if trains else {line_of(text, "split:")})
        assert errors_of(text.replace("data_path: [/d]", "mock_data: true"), LOCAL) == []

    @pytest.mark.parametrize(
        ("skipped", "needed"),
        [
            (
                "239",
                "needs checkpoint 240 of pretrain, which is not saved because iterations_to_skip contains 239",
            ),
            (
                "299",
                "skips iteration 299, counted from 0, the last one, and with it the checkpoint that ends",
            ),
            ("238, 240", None),
        ],
    )
    def test_a_skipped_iteration_is_not_saved(self, skipped: str, needed: str | None) -> None:
        text = changed(("  cooldown", f"      iterations_to_skip: [{skipped}]\n  cooldown"), text=UPSTREAM)
        found = [problem.message for problem in errors_of(text, LOCAL)]
        assert needed in found[0] if needed else found == []


@pytest.mark.slow
@pytest.mark.parametrize(("strictness", "refused"), [("log_all", False), ("log_unexpected", True)])
def test_weights_that_a_checkpoint_lacks(strictness: str, refused: bool) -> None:
    branch = "      override_opt_param_scheduler: true\n"
    added = f"      qk_layernorm: true\n      dist_ckpt_strictness: {strictness}\n"
    found = [each.message for each in errors_of(changed((branch, branch + added), text=UPSTREAM), LOCAL)]
    assert any("its model is not that" in message for message in found) is refused, found
