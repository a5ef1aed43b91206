"""A changed, invalid or deleted spec neither removes nor rewires tasks of a run in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from example_specs import CHAIN

from airflow_megatron.dag_factory import spec_folder
from airflow_megatron.dag_factory.spec_files import build_sweep_dags
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins import runs_in_flight
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.pins.runs_in_flight import outlines_in_flight, rewired
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep
from airflow_megatron.task_runtime import active_runs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RENAMED = CHAIN.replace("cooldown", "anneal")
FEWER = CHAIN.replace("budget: [300k, 600k]", "budget: [300k]")
MORE = CHAIN.replace("budget: [300k, 600k]", "budget: [300k, 600k, 900k]")
AT_THE_END = CHAIN.replace('    start: {checkpoint: "{{ train_iters - 20 }}"}\n', "")
OTHER_PARENT = CHAIN.replace("parent: [pretrain, cooldown]", "parent: cooldown")
NO_PREPARATION = CHAIN.replace("    parent: prepare\n", "").replace("    scope: sweep\n", "")
ARRAY = CHAIN.replace("    parent: prepare\n", "    parent: prepare\n    array: true\n")
EDITS = {
    "stages renamed": RENAMED,
    "a branch removed": FEWER,
    "a branch added": MORE,
    "another start": AT_THE_END,
    "another parent": OTHER_PARENT,
    "a stage of each point": NO_PREPARATION,
    "array": ARRAY,
    "broken": CHAIN.replace("sweep:", "sweeep:"),
    "no YAML": "[",
    "empty": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "specs"
    folder.mkdir()
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    monkeypatch.setenv(project.LOCAL_VARIABLE, str(tmp_path / "local"))
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(folder))
    return folder


def plan(folder: Path, text: str, run_id: str = "manual__1", dag_id: str = "chain") -> None:
    """Write the spec, and plan it as a run does."""
    file = folder / "chain.yaml"
    file.write_text(text)
    sweep, around = load_sweep(file), PlanEnvironment.now("local")
    pinned = PinnedSweep.stored(sweep, text, plan_sweep(sweep, around.cluster), around, PinStore())
    pinned.use(dag_id, run_id)


def wiring(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Return DAG → task → the tasks before it."""
    return {
        dag.dag_id: {task.task_id: set(task.upstream_task_ids) for task in dag.tasks}
        for dag in build_sweep_dags(folder)
    }


def classes(folder: Path) -> dict[str, str]:
    return {task.task_id: type(task).__name__ for dag in build_sweep_dags(folder) for task in dag.tasks}


def keeps(now: dict[str, dict[str, set[str]]], before: dict[str, dict[str, set[str]]]) -> None:
    """Check that every task keeps its dependencies; only the last tasks may have additional ones."""
    for dag_id, tasks in before.items():
        for task, upstream in tasks.items():
            got = now[dag_id][task]
            if task in ("cancel_left", "launch"):
                assert got >= upstream
            else:
                assert got == upstream, (dag_id, task)


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_changes_no_task_of_a_run_in_progress(edit: str, folder: Path) -> None:
    plan(folder, CHAIN)
    before, kinds = wiring(folder), classes(folder)
    (folder / "chain.yaml").write_text(EDITS[edit])
    keeps(wiring(folder), before)
    assert kinds.items() <= classes(folder).items()
    # after the run's end, the DAGs are built from the file
    PinStore().set_ended("chain", "manual__1")
    after = wiring(folder)
    assert after != before
    assert (after == {}) is (edit in ("broken", "no YAML", "empty"))
    # when one of its tasks is cleared, it is in progress again
    PinStore().set_ended("chain", "manual__1", ended=False)
    keeps(wiring(folder), before)


@pytest.mark.slow
def test_a_removed_spec_stays_until_its_run_has_ended(folder: Path) -> None:
    plan(folder, CHAIN)
    before = wiring(folder)
    (folder / "chain.yaml").unlink()
    assert wiring(folder) == before
    PinStore().set_ended("chain", "manual__1")
    assert wiring(folder) == {}


@pytest.mark.slow
def test_a_task_gets_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker reads only the DAG of its task."""
    plan(folder, CHAIN)
    before = wiring(folder)
    for text in (RENAMED, "[", None):
        (folder / "chain.yaml").unlink() if text is None else (folder / "chain.yaml").write_text(text)
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "chain.point")
        keeps(wiring(folder), before)
        monkeypatch.delenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID")


@pytest.mark.slow
def test_new_stages_come_beside_those_of_the_run(folder: Path) -> None:
    plan(folder, CHAIN)
    (folder / "chain.yaml").write_text(MORE)
    tasks = wiring(folder)["chain.point"]
    assert {"cooldown_300k.watch", "cooldown_900k.watch", "cooldown_900k.evaluate.watch"} <= tasks.keys()


@pytest.mark.slow
def test_two_runs_of_two_trees(folder: Path) -> None:
    plan(folder, CHAIN, "manual__1")
    first = wiring(folder)
    plan(folder, RENAMED, "manual__2")
    (folder / "chain.yaml").write_text(FEWER)
    tasks = wiring(folder)
    keeps(tasks, first)
    assert "anneal_600k.watch" in tasks["chain.point"]
    PinStore().set_ended("chain", "manual__1")
    assert "cooldown_600k.watch" not in wiring(folder)["chain.point"]
    assert "anneal_600k.watch" in wiring(folder)["chain.point"]


@pytest.mark.slow
def test_a_point_that_a_person_started(folder: Path) -> None:
    plan(folder, CHAIN, "mine", "chain.point")
    before = wiring(folder)
    (folder / "chain.yaml").write_text(FEWER)
    keeps(wiring(folder), before)


@pytest.mark.slow
def test_specs_of_another_folder_are_not_built(folder: Path, tmp_path: Path) -> None:
    plan(folder, CHAIN)
    other = tmp_path / "other"
    other.mkdir()
    assert build_sweep_dags(other) == []
    (other / "chain.yaml").write_text(FEWER)
    assert "cooldown_600k.watch" not in wiring(other)["chain.point"]


@pytest.mark.slow
def test_a_damaged_outline_leaves_the_spec(folder: Path) -> None:
    plan(folder, CHAIN)
    for path in (PinStore().root / "objects").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    (folder / "chain.yaml").write_text(FEWER)
    assert "cooldown_600k.watch" not in wiring(folder)["chain.point"]


@pytest.mark.slow
def test_the_spec_is_built_alone_if_it_conflicts_with_a_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(folder, CHAIN)
    # a stage of the run has the name of a task of the spec's own
    stage = "  watch:\n    kind: command\n    parent: pretrain\n    command: [x]\n"
    (folder / "chain.yaml").write_text(CHAIN + stage)
    assert {dag.dag_id for dag in build_sweep_dags(folder)} == {"chain", "chain.point"}
    assert all(isinstance(dag, DAG) for dag in build_sweep_dags(folder))


class TestAnotherRun:
    def outline(self, folder: Path, text: str) -> SweepOutline:
        (folder / "chain.yaml").write_text(text)
        return SweepOutline.of(load_sweep(folder / "chain.yaml"))

    @pytest.mark.parametrize(
        ("text", "stage"),
        [
            (CHAIN, None),
            (MORE, None),
            (FEWER, None),
            (RENAMED, None),
            (AT_THE_END, "cooldown_300k"),
            (OTHER_PARENT, None),
            (NO_PREPARATION, "prepare"),
        ],
    )
    def test_a_second_run_with_other_dependencies_is_refused(
        self, text: str, stage: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan(folder, CHAIN)
        store, outline = PinStore(), self.outline(folder, text)
        assert rewired(outline, "manual__1", store) == []  # a run may plan again
        found = rewired(outline, "manual__2", store)
        assert (found[0] if found else None) == (("manual__1", stage) if stage else None)
        monkeypatch.setattr(active_runs, "_count", lambda dag_id, run_id, states=(): 1)
        if stage:
            with pytest.raises(AirflowFailException, match=f"starts the stage '{stage}' otherwise than run"):
                active_runs.refuse_rewired(outline, "manual__2", store)
        else:
            active_runs.refuse_rewired(outline, "manual__2", store)

    @pytest.mark.parametrize(
        ("counts", "expected"),
        [
            (lambda dag_id, run_id, states=(): 0, []),
            (lambda dag_id, run_id, states=(): int(not states), []),
            (lambda dag_id, run_id, states=(): int(not states or dag_id == "chain.point"), None),
            (lambda dag_id, run_id, states=(): None, None),
        ],
        ids=["unknown to Airflow", "ended", "its points go on", "Airflow does not answer"],
    )
    def test_an_ended_run_does_not_prevent_it(
        self,
        counts: Callable[..., int | None],
        expected: list[object] | None,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        plan(folder, CHAIN)
        store, outline = PinStore(), self.outline(folder, AT_THE_END)
        monkeypatch.setattr(active_runs, "_count", counts)
        if expected is None:
            with pytest.raises(AirflowFailException):
                active_runs.refuse_rewired(outline, "manual__2", store)
            return
        active_runs.refuse_rewired(outline, "manual__2", store)
        assert outlines_in_flight("chain", store) == expected


NEW_STAGES = "name: chain\npoint: p\nstages:\n"


def new_stages(number: int, count: int = 3) -> str:
    """Return a spec with stages of other names than those of another number."""
    return NEW_STAGES + "".join(
        f"  s{number}_{index}: {{kind: command, command: [a]}}\n" for index in range(count)
    )


class TestTooManyStages:
    """A sweep that is edited and planned again and again takes no time from the others."""

    @pytest.mark.parametrize(("limit", "value"), [("MOST_IN_FLIGHT", 10), ("MOST_OUTLINES", 3)])
    def test_another_plan_is_refused(
        self, limit: str, value: int, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runs_in_flight, limit, value)
        monkeypatch.setattr(active_runs, "_count", lambda dag_id, run_id, states=(): 1)
        store = PinStore()
        for number in range(3):
            text = new_stages(number)
            (folder / "chain.yaml").write_text(text)
            active_runs.refuse_too_many_stages(SweepOutline.of(load_sweep(folder / "chain.yaml")), store)
            plan(folder, text)
        (folder / "chain.yaml").write_text(new_stages(3))
        outline = SweepOutline.of(load_sweep(folder / "chain.yaml"))
        with pytest.raises(AirflowFailException, match="would make its DAG too large"):
            active_runs.refuse_too_many_stages(outline, store)
        monkeypatch.setattr(active_runs, "_count", lambda dag_id, run_id, states=(): 0)
        active_runs.refuse_too_many_stages(outline, store)  # the run has ended, and Airflow did not say so
        assert outlines_in_flight("chain", store) == []

    @pytest.mark.slow
    def test_the_sweeps_with_the_most_lose_them_first(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        for number in range(4):
            plan(folder, new_stages(number))
        (folder / "good.yaml").write_text(new_stages(9).replace("name: chain", "name: good"))
        good, around = load_sweep(folder / "good.yaml"), PlanEnvironment.now("local")
        pinned = PinnedSweep.stored(good, "", plan_sweep(good, around.cluster), around, PinStore())
        pinned.use("good", "manual__1")
        (folder / "good.yaml").unlink()  # its run goes on
        assert len(wiring(folder)["chain.point"]) > len(wiring(folder)["good.point"]) + 9
        monkeypatch.setattr(spec_folder, "stage_budget", lambda: 10)
        assert {dag_id: len(tasks) for dag_id, tasks in wiring(folder).items() if "." in dag_id} == {
            "chain.point": len(wiring(folder)["good.point"]),
            "good.point": len(wiring(folder)["good.point"]),
        }
        assert "the DAGs of chain lack 9 stages of its runs in progress" in caplog.text
