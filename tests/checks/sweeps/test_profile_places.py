"""Mistakes in a cluster profile are reported once, where they stand in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checked_chain import TRUNK, changed, errors_of, line_of

from airflow_megatron.plan.sweep_cluster import sweep_cluster
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.documents.errors import Problem

PROFILE = """\
ssh_conn_id: slurm_mine
run_root: /scratch/sweeps
python: /venv/bin/python
megatron_lm_dir: /opt/Megatron-LM
slurm:
  account: mine
trainers:
  megatron_core:
    arguments:
      log_interval: 10
"""
SPEC = changed(
    ("slurm: {nodes: 2, gpus_per_node: 4, time: 6h}", "slurm: {nodes: 2, time: 6h}"),
    ("    slurm: {nodes: 1, gpus_per_node: 1, time: 30m}\n", "    slurm: {nodes: 1, time: 30m}\n"),
)


def problems(profile: str, folder: Path, monkeypatch: pytest.MonkeyPatch, spec: str = SPEC) -> list[Problem]:
    (folder / "mine.yaml").write_text(profile)
    monkeypatch.setenv("AIRFLOW__MEGATRON__CLUSTERS_FOLDER", str(folder))
    return errors_of(spec, load_cluster("mine"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "  account: mine",
            "  options: [exclusive]",
            "slurm.options hold exclusive, which a job may not set",
        ),
        ("  account: mine", "  options: [--job-name=x]", "slurm.options hold --job-name=x"),
        ("log_interval: 10", "nosuch: 10", "nosuch: megatron_core has no such argument"),
        ("log_interval: 10", "log_interval: ten", "log_interval: must be an integer"),
        ("megatron_core:", "megatron_core: {}\ngpu: h100\n#", "there is no GPU 'h100'"),
    ],
)
def test_a_value_of_the_profile(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = PROFILE.replace(old, new)
    if "gpu:" in new:
        profile = profile.partition("#")[0]
    (problem,) = problems(profile, tmp_path, monkeypatch)
    assert message in problem.message
    place = new if "\n" not in new else "gpu: h100"
    assert (problem.file, problem.line) == (str(tmp_path / "mine.yaml"), line_of(profile, place.strip()))


@pytest.mark.parametrize(
    ("slurm", "partitions", "place", "message"),
    [
        ("partition: gpuu", "gpu: {gpus_per_node: 4}", "partition:", "has no partition 'gpuu'"),
        (
            "partition: gpu\n  gpus_per_node: 4",
            "gpu: {gpus_per_node: 2}",
            "gpus_per_node: 4",
            "partition gpu has 2 GPUs per node, 4 requested",
        ),
        (
            "partition: gpu\n  options: [--nice]",
            "\n  gpu:\n    slurm: {options: [--mem=ten]}",
            "options: [--mem",
            "slurm.options hold --mem=ten, which sbatch refuses",
        ),
    ],
)
def test_a_value_of_a_partition(
    slurm: str, partitions: str, place: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = f"{{{partitions}}}" if "\n" not in partitions else partitions
    profile = f"{PROFILE.replace('account: mine', slurm)}partitions: {given}\n"
    (problem,) = problems(profile, tmp_path, monkeypatch)
    assert message in problem.message
    assert (problem.file, problem.line) == (str(tmp_path / "mine.yaml"), line_of(profile, place))


def test_a_value_of_the_spec_is_reported_in_the_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = changed(("time: 6h}", "time: 6h, options: [exclusive]}"), text=SPEC)
    profile = PROFILE.replace("account: mine", "options: [--nice]")
    (problem,) = problems(profile, tmp_path, monkeypatch, spec)
    assert (problem.file, problem.line) == ("s.yaml", line_of(spec, "slurm: "))


def test_a_partition_that_the_stage_names_precedes_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = changed(
        ("{nodes: 1, time: 30m}", "{nodes: 1, time: 30m, partition: cpu}"),
        text=SPEC.replace("time: 6h}", "time: 6h, gpus_per_node: 4}"),
    )
    profile = f"{PROFILE}partitions:\n  cpu:\n    gpus_per_node: 4\n    slurm:\n      gpus_per_node: 8\n"
    (problem,) = problems(profile, tmp_path, monkeypatch, spec)
    assert problem.line == line_of(profile, "gpus_per_node: 8")
    assert "partition cpu has 4 GPUs per node, 8 requested" in problem.message


def test_options_of_spec_and_profile_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = changed(("time: 6h}", "time: 6h, options: [--nice, --qos=long]}"), text=SPEC)
    profile = PROFILE.replace("account: mine", "options: [--job-name=x]")
    (problem,) = problems(profile, tmp_path, monkeypatch, spec)
    assert (problem.file, problem.line) == (str(tmp_path / "mine.yaml"), line_of(profile, "options:"))


@pytest.mark.slow
def test_a_profile_without_a_file_is_reported_at_the_stages() -> None:
    errors = errors_of(TRUNK.replace("hidden_size: 64", "hidden_size: 63"))
    assert errors
    assert {problem.file for problem in errors} == {"s.yaml"}


RULES = """\
rules:
  - rule: no memory requests
    source: https://site.example
    read: "2026-11"
    refused_options: [mem]
"""


def test_a_misspelt_option_of_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = PROFILE + RULES.replace("[mem]", "[gres, memm]")
    (tmp_path / "mine.yaml").write_text(profile)
    monkeypatch.setenv("AIRFLOW__MEGATRON__CLUSTERS_FOLDER", str(tmp_path))
    with pytest.raises(SpecError) as refused:
        sweep_cluster(load_sweep_text(SPEC, "s.yaml"), "mine")
    (problem,) = refused.value.problems
    assert str(problem) == (
        f"{tmp_path}/mine.yaml:{line_of(profile, 'refused_options')}:29: refused_options: sbatch has no option 'memm'"
        " (did you mean 'mem'?)"
    )


def test_a_rule_about_an_option_of_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = PROFILE + RULES.replace("[mem]", "[option-of-the-site]")
    spec = changed(("time: 6h}", "time: 6h, options: [--option-of-the-site=1]}"), text=SPEC)
    (problem,) = problems(profile, tmp_path, monkeypatch, spec)
    assert "gives sbatch --option-of-the-site; the site's rule: no memory requests" in problem.message


def test_a_rule_without_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError) as refused:
        problems(PROFILE + RULES.replace("    refused_options: [mem]\n", ""), tmp_path, monkeypatch)
    (problem,) = refused.value.problems
    assert problem.line == line_of(PROFILE + RULES, "- rule")
    assert problem.message == "rules.0: the rule checks nothing"
    assert problem.hint.startswith("add a limit: max_time, ")
