"""Upstream's other training scripts: their arguments, commands and refusals."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import program_table, releases_with
from airflow_megatron.megatron.rules.command_line import reader
from airflow_megatron.megatron.rules.settings import Machine
from airflow_megatron.megatron.validation.other_scripts import SCRIPTS
from airflow_megatron.megatron.validation.repeated_checks import RepeatedChecks
from airflow_megatron.plan.sweep_plan import Plan, check_document, check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.model.schema import Entry
from airflow_megatron.spec.spec_files import load_sweep_text

PROFILE = ClusterProfile.model_validate(
    {
        **{"name": "alps", "ssh_conn_id": "alps", "run_root": "/runs", "python": "/venv/bin/python"},
        **{
            "megatron_lm_dir": "/ours",
            "trainers": {"megatron_lm": {"checkout": "/upstream"}},
            "gpu": "h100-80gb",
        },
    }
)
COMMON = {
    **{"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 64, "micro_batch_size": 2},
    **{"global_batch_size": 4, "train_iters": 10, "lr": 1e-3, "data_path": ["/d"], "split": "8,1,1"},
    **{"save_interval": 10, "eval_interval": 10, "vocab_file": "/v", "merge_file": "/m"},
}
LAYERS = {"num_layers": 2, "seq_length": 64}
OF_T5 = {"encoder_num_layers": 2, "decoder_num_layers": 2, "encoder_seq_length": 64, "decoder_seq_length": 32}
HYBRID = {"hybrid_override_pattern": "M*", "num_layers": 2, "seq_length": 64}
MODELS: dict[str, dict[str, Any]] = {
    "pretrain_gpt.py": LAYERS,
    "pretrain_bert.py": LAYERS,
    "pretrain_t5.py": {**OF_T5, "vocab_extra_ids": 20, "kv_channels": 16, "ffn_hidden_size": 128},
    "pretrain_mamba.py": {
        **HYBRID,
        "spec": ["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"],
    },
    "pretrain_vlm.py": {**LAYERS, "freeze_LM": True, "dataloader_seq_length": 64, "ckpt_format": "torch"},
}


def plan(entry: str | None, release: str = "core_v0.16.1", **more: Any) -> Plan:
    spec = {
        **{"name": "s", "point": "p", "trainer": "megatron_lm", "release": release, "entry": entry},
        "megatron": {**COMMON, **MODELS[entry or "pretrain_gpt.py"], **more},
        "stages": {"pretrain": {"kind": "train"}},
    }
    sweep = load_sweep_text(json.dumps(spec), "s.yaml")
    check_document(sweep, PROFILE)
    return check_sweep(sweep, PROFILE)


@pytest.mark.parametrize(
    ("of_profile", "of_spec", "used"), [(None, None, "1000"), (50, None, "50"), (50, 7, "7")]
)
def test_an_argument_that_must_be_given(of_profile: int | None, of_spec: int | None, used: str) -> None:
    """Upstream has no default of it from core_v0.16 on: ours gives way to the profile's, and both to the spec's."""
    megatron = {**COMMON, **LAYERS, "eval_interval": of_spec}
    spec = {
        **{"name": "s", "point": "p", "trainer": "megatron_lm", "release": "core_v0.16.1"},
        "megatron": {name: value for name, value in megatron.items() if value is not None},
        "stages": {"pretrain": {"kind": "train"}},
    }
    arguments = {} if of_profile is None else {"eval_interval": of_profile}
    profile = ClusterProfile.model_validate(
        {
            **PROFILE.model_dump(),
            "trainers": {"megatron_lm": {"checkout": "/upstream", "arguments": arguments}},
        }
    )
    (job,) = check_sweep(load_sweep_text(json.dumps(spec), "s.yaml"), profile).jobs
    words = list(job.command)
    assert words[words.index("--eval-interval") + 1] == used


@pytest.mark.parametrize("entry", [None, *get_args(Entry)])
def test_its_script_is_started(entry: str | None) -> None:
    found = plan(entry)
    (job,) = found.jobs
    starter = f"{PROFILE.megatron_lm_dir}/upstream_index_cache.py"
    assert job.command[:3] == ("/venv/bin/python", starter, f"/upstream/{entry or 'pretrain_gpt.py'}")
    assert type(job).from_json(json.loads(json.dumps(job.to_json()))) == job
    assert bool(found.estimates.jobs) == (entry in (None, "pretrain_gpt.py"))
    assert (
        entry in (None, "pretrain_gpt.py") or f"not for those of {entry}" in found.estimates.missing[job.name]
    )


def test_every_script_has_a_table_of_its_own() -> None:
    assert {*MODELS} == {*get_args(Entry)}
    with pytest.raises(SpecError, match="has no argument 'freeze_LM'"):
        plan("pretrain_gpt.py", freeze_LM=True)


@pytest.mark.parametrize("entry", ["pretrain_bert.py", "pretrain_t5.py"])
def test_scripts_that_have_left_upstream(entry: str) -> None:
    assert releases_with(entry)[-1] == "core_v0.17.1"
    with pytest.raises(
        SpecError, match=rf"{entry}: core_v0\.18\.2 has no such script; .*core_v0\.17\.1 have it"
    ):
        plan(entry, "core_v0.18.2")


def test_upstreams_checks_hold_for_all() -> None:
    with pytest.raises(SpecError, match="--num-layers and --encoder-num-layers are the same setting"):
        plan("pretrain_t5.py", num_layers=2)


@pytest.mark.parametrize(
    ("entry", "changed", "message"),
    [
        ("pretrain_t5.py", {"data_path": None, "split": None}, "the script needs --data-path"),
        (
            "pretrain_bert.py",
            {"data_path": None, "mock_data": True, "split": None},
            "it has neither mock data",
        ),
        ("pretrain_mamba.py", {"spec": None}, "Mamba needs --spec, the specification of its layers"),
        ("pretrain_vlm.py", {"ckpt_format": None}, "needs --ckpt-format torch, not torch_dist"),
        ("pretrain_gpt.py", {"ckpt_format": None}, ""),
    ],
)
def test_what_a_script_needs(entry: str, changed: dict[str, Any], message: str) -> None:
    """Upstream's common checks accept it; the script fails when it builds its model or its data sets."""
    if not message:
        assert plan(entry, **changed).jobs
        return
    with pytest.raises(SpecError, match=message):
        plan(entry, **changed)


@pytest.mark.parametrize(
    ("entry", "sizes", "message"),
    [
        ("pretrain_t5.py", {"pipeline": 2}, "T5 has no pipeline parallelism"),
        ("pretrain_vlm.py", {"pipeline": 2, "context": 2}, r"no --context-parallel-size \(2\) together with"),
        ("pretrain_vlm.py", {"pipeline": 2}, ""),
        ("pretrain_bert.py", {"pipeline": 2}, ""),
    ],
)
def test_what_a_script_does_not_distribute(entry: str, sizes: dict[str, int], message: str) -> None:
    megatron = {**COMMON, **MODELS[entry], **{f"{name}_parallel_size": n for name, n in sizes.items()}}
    megatron = {name.replace("pipeline_", "pipeline_model_"): value for name, value in megatron.items()}
    table = program_table("core_v0.16.1", entry)
    checks = RepeatedChecks(
        4,
        "core_v0.16.1",
        machine=Machine.of(transformer_engine="2.8"),
        first_iteration=False,
        flags=reader(table),
        script=SCRIPTS[entry],
    )
    found = checks.problems(to_argv(megatron, table))
    assert [bool(re.search(message, problem.message)) for problem in found] == ([True] if message else [])


def test_another_trainer_has_no_entry() -> None:
    sweep = load_sweep_text(
        "{name: s, point: p, entry: pretrain_t5.py, stages: {a: {kind: train}}}", "s.yaml"
    )
    with pytest.raises(
        SpecError, match=r"megatron_core has no pretrain_t5\.py \(write trainer: megatron_lm\)"
    ):
        check_document(sweep, PROFILE)


CONVERTED: dict[str, Any] = {"convert": {"kind": "convert", "parent": "pretrain"}}
CONTINUOUSLY: dict[str, Any] = {"convert": {**CONVERTED["convert"], "each_checkpoint": True}}


def with_stages(entry: str, stages: dict[str, Any], **params: Any) -> Plan:
    spec = {
        **{"name": "s", "point": "p", "trainer": "megatron_lm", "release": "core_v0.16.1", "entry": entry},
        "params": {"tokenizer": "/t", **params},
        "megatron": {**COMMON, **MODELS[entry]},
        "stages": {"pretrain": {"kind": "train"}, **stages},
    }
    return check_sweep(load_sweep_text(json.dumps(spec), "s.yaml"), PROFILE)


@pytest.mark.parametrize("stages", [CONVERTED, CONTINUOUSLY])
@pytest.mark.parametrize("entry", [entry for entry in MODELS if entry != "pretrain_gpt.py"])
def test_their_checkpoints_are_not_converted(entry: str, stages: dict[str, Any]) -> None:
    """The converter builds a GPT, which has other weights: the job would fail after the training."""
    with pytest.raises(SpecError, match=rf"pretrain_gpt\.py only, not those of {entry} .*kind: command"):
        with_stages(entry, stages)


def test_another_program_converts_mamba() -> None:
    assert with_stages("pretrain_mamba.py", CONVERTED, converter="/ours/mamba_to_hf.py")
    with pytest.raises(SpecError, match=r"not those of pretrain_bert\.py"):
        with_stages("pretrain_bert.py", CONVERTED, converter="/ours/bert_to_hf.py")


def test_a_checkpoint_from_elsewhere_is_converted() -> None:
    source = {"from": "/runs/gpt/checkpoints", "iteration": 100}
    assert with_stages("pretrain_t5.py", {"convert": {"kind": "convert", "start": source}})
