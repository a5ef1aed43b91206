"""Sweeps with several clusters: one plan for each, and a record of the cluster of each point."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_pruning import UNUSED_FOR_S, prune
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.plan.pins.placements import Placements
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_cluster import sweep_cluster, sweep_clusters
from airflow_megatron.plan.sweep_plan import check_document, check_on_clusters, plan_sweep
from airflow_megatron.results.readings.plan_rows import plan_rows, sweep_jobs
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep, load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.model.sweep import Sweep

ROOT = project.project_root()
PROFILE = """
ssh_conn_id: slurm_{name}
run_root: {root}
python: /usr/bin/python3
megatron_lm_dir: /opt/Megatron-LM
slurm: {{partition: {name}}}
"""
SPEC = """\
name: spread
cluster: [one, two]
point: "p{{ x }}"
sweep: {x: [1, 2, 3]}
stages:
  data: {kind: command, scope: sweep, command: [make, "{{ run_dir }}"], outputs: [data]}
  work: {kind: command, parent: data, command: [work, "{{ x }}"]}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two cluster profiles, and a third one with the run root of the first."""
    (tmp_path / "sbatch" / "clusters").mkdir(parents=True)
    for template in (ROOT / "sbatch").glob("*.j2"):
        (tmp_path / "sbatch" / template.name).write_text(template.read_text())
    for name, root in (("one", "/scratch/one"), ("two", "/scratch/two"), ("same", "/scratch/one/")):
        text = PROFILE.format(name=name, root=root)
        (tmp_path / "sbatch" / "clusters" / f"{name}.yaml").write_text(text)
    monkeypatch.setenv(project.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    return tmp_path


def loaded(text: str = SPEC) -> Sweep:
    return load_sweep_text(text, "spread.yaml")


def stored(sweep: Sweep, store: PinStore | None = None) -> PinnedSweep:
    around = [PlanEnvironment.now(one) for one in sweep_clusters(sweep)]
    plans = check_on_clusters(sweep, [one.cluster for one in around])
    return PinnedSweep.stored_on_clusters(
        sweep, SPEC, list(zip(plans, around, strict=True)), store or PinStore()
    )


def refused(text: str) -> list[str]:
    with pytest.raises(SpecError) as error:
        check_document(loaded(text))
    return [str(problem) for problem in error.value.problems]


def test_a_list_of_one_name_is_that_name() -> None:
    alone, listed = (loaded(SPEC.replace("[one, two]", value)) for value in ("one", "[one]"))
    assert alone.settings == listed.settings
    assert SweepOutline.of(alone).to_json() == SweepOutline.of(listed).to_json()
    assert "clusters" not in SweepOutline.of(alone).to_json()["settings"]
    assert "others" not in PinStore().get(stored(alone).pin)


def test_the_outline_keeps_the_clusters() -> None:
    outline = SweepOutline.of(loaded())
    assert outline.settings.all_clusters == ("one", "two")
    assert SweepOutline.from_json(json.loads(json.dumps(outline.to_json()))) == outline


def test_a_missing_profile_is_reported_at_its_place_in_the_list() -> None:
    text = SPEC.replace("cluster: [one, two]", "cluster:\n  - one\n  - tow")
    assert refused(text) == ["spread.yaml:4:5: there is no cluster profile 'tow' (did you mean 'two'?)"]


def test_a_repeated_profile_is_refused() -> None:
    (problem,) = refused(SPEC.replace("[one, two]", "[one, two, one]"))
    assert "cluster names 'one' more than once" in problem


def test_profiles_with_one_run_root_are_refused() -> None:
    (problem,) = refused(SPEC.replace("[one, two]", "[one, same]"))
    assert problem.startswith("spread.yaml:2:")
    assert "one and same have the same run_root, /scratch/one" in problem
    assert "/scratch/one/same" in problem


def test_arrays_are_refused_at_their_stage() -> None:
    text = SPEC.replace("parent: data, command: [work", "parent: data, array: true, command: [work")
    (problem,) = refused(text)
    assert problem.startswith("spread.yaml:7:")
    assert "remove array: true, or name one cluster" in problem


def test_a_stage_on_the_login_node_is_refused() -> None:
    fetch = "fetch: {kind: prefetch, scope: sweep, params: {models: [a/b], where: login}}"
    sweep = loaded(SPEC.replace("stages:\n", f"stages:\n  {fetch}\n"))
    with pytest.raises(SpecError, match=r"fetch runs on the login node.*where: job") as error:
        check_on_clusters(sweep, sweep_clusters(sweep))
    assert [problem.line for problem in error.value.problems] == [6]
    assert check_on_clusters(sweep, [sweep_cluster(sweep, "one")])


def test_what_works_on_one_cluster_asks_for_one(home: Path) -> None:
    with pytest.raises(SpecError, match=r"spread names several clusters \(one, two\).*--cluster one"):
        sweep_cluster(loaded())
    assert sweep_cluster(loaded(), "two").name == "two"
    file = home / "spread.yaml"
    file.write_text(SPEC)
    assert sweep_cluster(load_sweep(file, ["cluster=two"])).name == "two"
    assert load_sweep(file, ["cluster=[two, one]"]).settings.all_clusters == ("two", "one")


def test_a_problem_of_all_clusters_is_reported_once() -> None:
    sweep = loaded(SPEC.replace('"{{ x }}"]', '"{{ y }}"]'))
    with pytest.raises(SpecError) as error:
        check_on_clusters(sweep, sweep_clusters(sweep))
    assert len(error.value.problems) == 1


def test_the_plan_holds_a_plan_for_each_cluster_with_its_profile() -> None:
    pinned = PinnedSweep.read(stored(loaded()).pin)
    assert list(pinned.by_cluster) == ["one", "two"]
    for name in ("one", "two"):
        on = pinned.on(name)
        assert on.plan_environment.cluster.run_root == f"/scratch/{name}"
        assert {job.cluster for job in on.plan().jobs} == {name}
        assert {job.pin for job in on.jobs_of("p1")} == {on.pin}
        assert on.digest == plan_sweep(loaded(), on.plan_environment.cluster).digest
    assert pinned.to_json()["cluster"] == "one, two"
    with pytest.raises(PinError, match="is for one, two, not for three"):
        pinned.on("three")


def test_results_are_read_from_the_cluster_of_each_point() -> None:
    pinned = stored(loaded())
    pinned.placements.place("p1", "two", "")
    plan = pinned.placed_plan()
    # a cluster that no point uses gets no commands
    assert {job.cluster for job in plan.jobs} == {"two"}
    alone = sweep_jobs(plan.jobs, several=plan.several)[0]
    assert (alone.name, alone.point) == ("spread.data@two", "(sweep)@two")
    pinned.placements.place("p2", "one", "")
    plan = pinned.placed_plan()
    assert {job.point: job.cluster for job in plan.jobs if job.point} == {
        "p1": "two",
        "p2": "one",
        "p3": "one",
    }
    assert [(job.name, job.cluster) for job in plan.jobs if not job.point] == [
        ("spread.data", "one"),
        ("spread.data", "two"),
    ]
    rows = [(job.name, job.point) for job in sweep_jobs(plan.jobs, several=plan.several)]
    assert rows[:2] == [("spread.data@one", "(sweep)@one"), ("spread.data@two", "(sweep)@two")]
    assert len(set(rows)) == len(rows)
    waits = [row["depends_on"] for row in plan_rows(plan.jobs, several=plan.several) if row["point"] == "p1"]
    assert waits == [[{"job": "spread.data@two", "until": "finished"}]]


def test_pruning_keeps_the_plans_of_all_clusters() -> None:
    store = PinStore()
    pinned = stored(loaded(), store)
    pinned.use("spread", "run")
    long_ago = time.time() - 2 * UNUSED_FOR_S
    for path in store.root.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    prune(store, ("spread", "spread.point"), lambda *_: True)
    for plan in PinnedSweep.read(pinned.pin).by_cluster.values():
        assert plan.plan().jobs
        assert plan.plan_environment


def test_the_first_record_of_a_point_counts() -> None:
    placements = Placements("spread")
    assert placements.read() == {}
    assert placements.place("p1", "one", "it was idle").cluster == "one"
    assert placements.place("p1", "two", "").cluster == "one"
    placements.place("p2", "two", "")
    placements.forget(["p1", "p3"])
    assert {point: its.cluster for point, its in placements.read().items()} == {"p2": "two"}
    assert placements.place("p1", "two", "").cluster == "two"
    assert Placements("other").read() == {}


def test_half_a_line_of_a_killed_writer_is_passed_over(home: Path) -> None:
    placements = Placements("spread")
    placements.place("p1", "one", "")
    (file,) = (home / "pins" / "placements").glob("*.jsonl")
    with file.open("a") as half:
        half.write('{"point": "p2", "clus')
    assert placements.place("p2", "two", "").cluster == "two"
    assert {point: its.cluster for point, its in placements.read().items()} == {"p1": "one", "p2": "two"}


def _place(number: int) -> str:
    return Placements("spread").place("p1", f"cluster{number}", "").cluster


@pytest.mark.slow
def test_concurrent_writers_agree() -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        assert len(set(pool.map(_place, range(64), chunksize=1))) == 1
