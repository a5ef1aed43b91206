"""A plan computed by two processes is printed like that of one process, or not split at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import Answer, runner
from example_specs import CHAIN

from airflow_megatron.cli.plans import spec_options
from airflow_megatron.plan.halves.split_plan import SplitPlan, split_plan
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.schema import SiteRuleSection, StorageSection
from airflow_megatron.spec.spec_files import load_sweep, load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.sweep import Sweep

pytestmark = pytest.mark.slow

RATES = "lr: [1e-3, 4e-3, 2e-3, 3e-3, 5e-3]"
MANY = CHAIN.replace("lr: [1e-3, 4e-3]", RATES)
WARNED = MANY.replace("lr_decay_style: constant", "lr_decay_style: linear, lr_decay_iters: 90")
ONE_WARNED = MANY.replace(
    "lr_decay_style: constant", 'lr_decay_iters: "{{ 90 if lr == 5e-3 else train_iters }}"'
)


def texts(sweep: Sweep, cluster: ClusterProfile) -> tuple[bytes | None, bytes]:
    """Return the output of two processes (None if they refuse) and the output of one process."""
    split = split_plan(sweep, cluster, sweep.points)
    alone = check_sweep(sweep, cluster)
    if split is not None:
        assert split.warnings == alone.warnings
    return b"".join(split.json_text()) if split else None, b"".join(alone.json_text())


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        pytest.param(MANY, 0, id="no warning"),
        pytest.param(WARNED, 1, id="a warning at every point"),
        pytest.param(ONE_WARNED, 1, id="a warning in the second half"),
        pytest.param(MANY + "slurm: {gpus_per_node: 1, time: 1000s}\n", 0, id="fractions of GPU-hours"),
        pytest.param(CHAIN, 0, id="two points"),
    ],
)
def test_two_processes_print_what_one_does(text: str, warnings: int, cluster: ClusterProfile) -> None:
    split, alone = texts(load_sweep_text(text, "s.yaml"), cluster)
    assert split == alone
    assert bool(check_sweep(load_sweep_text(text, "s.yaml"), cluster).warnings) is bool(warnings)


@pytest.mark.parametrize("limit", ["max_jobs", "max_running", "max_running_nodes"])
def test_one_process_counts_the_jobs_of_all_points(limit: str, cluster: ClusterProfile) -> None:
    rule = SiteRuleSection(rule="3 jobs", source="https://site.example", read="2026-11", **{limit: 3})
    split, alone = texts(load_sweep_text(MANY, "s.yaml"), cluster.model_copy(update={"rules": [rule]}))
    assert split is None
    assert b"site's rule: 3 jobs" in alone


@pytest.mark.parametrize("only_warns", [True, False])
def test_rules_about_the_run_root(only_warns: bool, cluster: ClusterProfile) -> None:
    place = {"no_run_root": [str(Path(cluster.run_root).parent)], "advice": only_warns}
    rule = SiteRuleSection(rule="not here", source="https://site.example", read="2026-11", **place)
    strict = cluster.model_copy(update={"rules": [rule]})
    sweep = load_sweep_text(MANY, "s.yaml")
    if only_warns:
        split, alone = texts(sweep, strict)
        assert split == alone
        assert b"site's rule: not here" in alone
    else:
        assert split_plan(sweep, strict, sweep.points) is None
        with pytest.raises(SpecError, match="site's rule: not here"):
            check_sweep(sweep, strict)


def test_a_site_that_deletes_files(cluster: ClusterProfile) -> None:
    storage = StorageSection(purge_after="1h")
    text = MANY + "max_active_points: 2\nslurm: {time: 40m}\n"
    split, alone = texts(load_sweep_text(text, "s.yaml"), cluster.model_copy(update={"storage": storage}))
    assert split == alone
    assert b"deletes files without access" in alone


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quickstart", "optimizers"])
def test_shipped_specs(name: str) -> None:
    sweep = load_sweep(sweep_specs_dir() / f"{name}.yaml")
    split, alone = texts(sweep, load_cluster(sweep.settings.cluster))
    assert split == alone


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(RATES, "lr: [1e-3, 2e-3, x]", id="an error in the second half"),
        pytest.param("num_layers: 2", "num_layers: x", id="errors in both"),
        pytest.param("[data/manifest.json]", "[/data/of/all]", id="a file outside the sweep"),
        pytest.param("save_interval: 10}", "save_interval: 10, save: /checkpoints}", id="one --save for all"),
        pytest.param(
            "    megatron: {train_iters: 300",
            '    start: {file: "/runs/chain/lr0.001/done"}\n    megatron: {train_iters: 300',
            id="a file of another point",
        ),
    ],
)
def test_what_needs_the_other_half_has_one_process(old: str, new: str, cluster: ClusterProfile) -> None:
    assert old in MANY
    text = MANY.replace(old, new).replace("/runs", cluster.run_root)
    sweep = load_sweep_text(text, "s.yaml")
    try:
        points = sweep.points
    except SpecError:
        pytest.fail("the points are right")
    assert split_plan(sweep, cluster, points) is None


def test_the_command_prints_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = runner(monkeypatch, capsys)
    file = tmp_path / "s.yaml"
    file.write_text(WARNED + "cluster: local\n")
    monkeypatch.setattr(spec_options.os, "sched_getaffinity", lambda _: {0, 1})
    made: list[bool] = []

    def noted(*arguments: Any) -> SplitPlan | None:
        made.append((split := split_plan(*arguments)) is not None)
        return split

    monkeypatch.setattr(spec_options, "split_plan", noted)

    def printed(least: int, *words: str) -> Answer:
        monkeypatch.setattr(spec_options, "LEAST_POINTS", least)
        return call("plan", str(file), "--format", "json", *words)

    assert printed(2) == printed(100)
    assert printed(2, "--select", "lr0.00[24]") == printed(100, "--select", "lr0.00[24]")
    file.write_text(WARNED.replace("num_layers: 2", "num_layers: x") + "cluster: local\n")
    wrong = printed(2)
    assert wrong == printed(100)
    assert wrong.status != 0
    assert made == [True, True, False]
