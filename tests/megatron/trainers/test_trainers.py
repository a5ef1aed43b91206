"""The arguments that each trainer accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from checked_chain import alps

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.checkout import dump_checkout
from airflow_megatron.megatron.arguments.table_writer import make_table, table_text
from airflow_megatron.megatron.arguments.tables import (
    ArgumentError,
    argument_table,
    program_table,
    read_table,
)
from airflow_megatron.megatron.trainers import trainer_table as trainer_table_module
from airflow_megatron.megatron.trainers.trainer_table import TRAINERS_DIR, trainer_table
from airflow_megatron.spec.model.schema import ArgumentSection, TrainerSection

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

RELEASE = "core_v0.16.1"
SCRIPTS = Path(__file__).parents[3] / "Megatron-LM"


def cluster(**trainers: TrainerSection) -> ClusterProfile:
    return alps().model_copy(update={"trainers": trainers})


@pytest.mark.slow
def test_the_thin_trainers_table_is_its_parser() -> None:
    written = (TRAINERS_DIR / "megatron_core" / "arguments.json").read_text()
    assert table_text(make_table([dump_checkout(SCRIPTS, "megatron_core")])) == written


def test_the_thin_trainer_takes_more_and_less_than_its_release() -> None:
    table = trainer_table("megatron_core", RELEASE, cluster(), {})
    assert to_argv(
        {"lr_finder": True, "optimizer": "lion", "optimizer_settings": ["betas=(0.9, 0.99)"]}, table
    ) == [
        "--optimizer",
        "lion",
        "--optimizer-settings",
        "betas=(0.9, 0.99)",
        "--lr-finder",
    ]
    assert table.get("context_parallel_size") is None
    assert argument_table(RELEASE).get("context_parallel_size") is not None


def test_megatron_deepspeeds_optimizers_and_schedules() -> None:
    table = trainer_table("megatron_deepspeed", RELEASE, cluster(), {})
    for optimizer in ("adamw", "muon", "sophiag", "dshampooadamw", "sgdschedulefree", "ds.fusedlamb"):
        assert to_argv({"optimizer": optimizer}, table) == ["--optimizer", optimizer]
    for style in ("constant", "inverse-square-root", "infinite-cosine", "infinite-inv-square-root"):
        assert to_argv({"lr_decay_style": style}, table) == ["--lr-decay-style", style]
    # arguments that DeepSpeed adds, with the underscores of these flags
    assert to_argv({"deepspeed": True, "deepspeed_config": "c.json"}, table)[-1] == "c.json"
    assert to_argv({"lr_constant_plus_cooldown": True}, table) == ["--lr_constant_plus_cooldown"]
    with pytest.raises(ArgumentError, match=r"lr_decay_style: cannot be 'WSD'"):
        to_argv({"lr_decay_style": "WSD"}, table)


def test_upstream_takes_what_its_release_takes() -> None:
    assert trainer_table("megatron_lm", RELEASE, cluster(), {}) is program_table(RELEASE)
    with_package = cluster(megatron_lm=TrainerSection(packages=["modelopt"]))
    distill = {"export_kd_cfg": "distill.yaml"}
    table = trainer_table("megatron_lm", "core_v0.19.0", with_package, {})
    assert to_argv(distill, table) == ["--export-kd-cfg", "distill.yaml"]
    with pytest.raises(ArgumentError, match="only where the package modelopt is installed"):
        to_argv(distill, trainer_table("megatron_lm", "core_v0.19.0", cluster(), {}))
    with pytest.raises(ArgumentError, match="no such release"):
        trainer_table("megatron_core", "core_v9", cluster(), {})


def test_declared_arguments_of_cluster_and_spec() -> None:
    fork = cluster(megatron_lm=TrainerSection(extra_arguments={"our_scale": ArgumentSection(type="float")}))
    table = trainer_table("megatron_lm", RELEASE, fork, {"our_switch": {"action": "StoreTrue"}})
    assert to_argv({"our_scale": 0.5, "our_switch": True}, table) == ["--our-scale", "0.5", "--our-switch"]
    assert table is trainer_table("megatron_lm", RELEASE, fork, {"our_switch": {"action": "StoreTrue"}})
    with pytest.raises(ArgumentError, match="our_scale: must be a number"):
        to_argv({"our_scale": "wide"}, table)


def test_the_table_of_a_fork(tmp_path: Path) -> None:
    file = tmp_path / "fork.json"
    row = [["--fork-only"], "fork_only", None, "Store", "int", None, None, 1, False]
    file.write_text(json.dumps({"releases": {"fork": [0]}, "arguments": [row]}))
    fork = cluster(megatron_lm=TrainerSection(arguments_table=str(file)))
    assert to_argv({"fork_only": 3}, trainer_table("megatron_lm", RELEASE, fork, {})) == ["--fork-only", "3"]


def test_a_table_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "fork.json"
    with pytest.raises(ValueError, match=f"{file} cannot be read: No such file or directory; make it with"):
        read_table(file)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"releases": {}}', '{"releases": {"a": [7]}, "arguments": []}']
)
def test_no_table(tmp_path: Path, text: str) -> None:
    file = tmp_path / "fork.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="make it with: airflow-megatron megatron-args CHECKOUT"):
        read_table(file)


def test_tables_that_specs_extend_are_kept_in_bounded_number() -> None:
    for number in range(40):
        declared = {f"mine_{number}": {"type": "int"}}
        table = trainer_table("megatron_lm", RELEASE, cluster(), declared)
        assert to_argv({f"mine_{number}": 3}, table) == [f"--mine-{number}", "3"]
    assert len(trainer_table_module._extended) <= 32
    for number in range(40):
        program_table(RELEASE, f"pretrain_{number}.py")
    assert program_table.cache_info().currsize <= 32


def test_the_table_of_a_fork_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    content = json.loads((TRAINERS_DIR / "megatron_core" / "arguments.json").read_text())
    file.write_text(json.dumps(content))
    fork = cluster(megatron_lm=TrainerSection(arguments_table=str(file)))
    first = trainer_table("megatron_lm", RELEASE, fork, {})
    assert trainer_table("megatron_lm", RELEASE, fork, {}) is first
    file.write_text(json.dumps(content, indent=1))
    assert trainer_table("megatron_lm", RELEASE, fork, {}) is not first
