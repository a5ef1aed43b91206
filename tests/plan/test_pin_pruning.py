"""Unused plans are deleted; plans that a run uses or that are just being stored are kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from example_specs import CHAIN

from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_pruning import GONE_FOR_S, UNUSED_FOR_S, prune, prune_when_due
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DAGS = ("chain", "chain.point")
LONG_AGO = time.time() - 2 * GONE_FOR_S


@pytest.fixture
def store(tmp_path: Path) -> PinStore:
    return PinStore(tmp_path / "pins")


def pinned(store: PinStore, lr: str = "1e-3") -> PinnedSweep:
    text = CHAIN.replace("lr: [1e-3, 4e-3]", f"lr: [{lr}]")
    sweep, around = load_sweep_text(text, "chain.yaml"), PlanEnvironment.now("local")
    return PinnedSweep.stored(sweep, text, plan_sweep(sweep, around.cluster), around, store)


def grow_old(store: PinStore, *, ended: bool = True) -> None:
    """Let everything be as old as if it were written long ago.

    :param ended: whether the runs and those of their points have ended
    """
    for path in store.root.rglob("*"):
        if path.is_file():
            os.utime(path, (LONG_AGO, LONG_AGO))
    for dag_id in DAGS:
        for run in store.noted_runs(dag_id):
            store._note(dag_id, run._replace(written=LONG_AGO, ended=ended))


def readable(store: PinStore, plan: PinnedSweep) -> bool:
    """Return whether every part of a plan is there."""
    again = PinnedSweep.read(plan.pin, store)
    return bool(again.plan().jobs and again.plan_environment.cluster and again.outline.tree)


def known(*runs: str) -> Callable[[str, str], bool]:
    return lambda dag_id, run_id: run_id in runs


@pytest.mark.slow
def test_what_a_run_that_has_gone_has_pinned_goes(store: PinStore) -> None:
    kept, deleted = pinned(store, "1e-3"), pinned(store, "2e-3")
    kept.use("chain", "kept")
    deleted.use("chain", "gone")
    pinned(store, "3e-3").use("chain.point", "gone too")
    grow_old(store)
    assert prune(store, DAGS, known("kept")) >= 4
    assert readable(store, kept)
    assert (store.runs("chain"), store.runs("chain.point")) == (["kept"], [])
    assert not (store.root / "objects" / deleted.pin[:2] / deleted.pin).exists()
    assert prune(store, DAGS, known("kept")) == 0


def test_the_plan_of_a_deleted_run_stays_while_its_points_run(store: PinStore) -> None:
    """A sweep's run may be marked and deleted although the runs of its points continue, which execute its plan."""
    plan = pinned(store)
    plan.use("chain", "deleted")
    grow_old(store, ended=False)
    assert prune(store, DAGS, known()) == 0
    assert store.pins_of("chain", "deleted") == (plan.pin,)
    assert readable(store, plan)
    grow_old(store)
    assert prune(store, DAGS, known()) >= 4
    assert store.pins_of("chain", "deleted") == ()


def test_an_earlier_pin_of_a_run_stays(store: PinStore) -> None:
    """Tasks that were running when `plan` was cleared continue to use it."""
    first, second = pinned(store, "1e-3"), pinned(store, "2e-3")
    first.use("chain", "run")
    second.use("chain", "run")
    grow_old(store)
    assert prune(store, DAGS, known("run")) == 0
    assert readable(store, first)
    assert readable(store, second)
    assert store.newest("chain", "run") == second.pin


@pytest.mark.slow
def test_what_is_young_stays(store: PinStore) -> None:
    plan = pinned(store)
    plan.use("chain", "another Airflow's")
    pinned(store, "2e-3")
    assert prune(store, DAGS, known()) == 0
    assert store.runs("chain") == ["another Airflow's"]
    grow_old(store)
    pinned(store, "2e-3")  # stored again: young again, although no run refers to it
    prune(store, DAGS, known())
    assert readable(store, pinned(store, "2e-3"))
    assert not (store.root / "objects" / plan.pin[:2] / plan.pin).exists()


def test_runs_of_other_sweeps_are_not_asked_about(store: PinStore) -> None:
    plan = pinned(store)
    plan.use("other", "run")
    grow_old(store)
    store._note("other", store.noted_runs("other")[0]._replace(written=LONG_AGO))
    prune(store, DAGS, known())
    assert readable(store, plan)


def test_a_note_that_cannot_be_read_stops_everything(store: PinStore) -> None:
    plan = pinned(store)
    plan.use("chain", "run")
    pinned(store, "2e-3")
    grow_old(store)
    (note,) = (store.root / "runs" / "_chain").iterdir()
    text = note.read_bytes()
    note.write_bytes(text[:-4])
    assert prune(store, DAGS, known("run")) == 0
    note.write_bytes(text)
    assert readable(store, plan)


def test_a_damaged_plan_keeps_nobody_from_pruning(store: PinStore) -> None:
    plan = pinned(store)
    plan.use("chain", "run")
    grow_old(store)
    (store.root / "objects" / plan.pin[:2] / plan.pin).write_bytes(b"damaged")
    prune(store, DAGS, known("run"))
    assert readable(store, pinned(store))  # planning again stores all of it


@pytest.mark.slow
def test_nobody_prunes_while_somebody_stores(store: PinStore) -> None:
    pinned(store)
    grow_old(store)
    program = (
        "import sys; from pathlib import Path; from airflow_megatron.plan.pins.pin_store import PinStore\n"
        "with PinStore(Path(sys.argv[1])).writing(): print('storing', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(store.root)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "storing\n"
        assert prune_when_due(store, DAGS, known()) == 0
        other.kill()  # its lock goes with it
        other.wait()
        assert prune_when_due(store, DAGS, known()) > 0


def test_once_a_day(store: PinStore) -> None:
    pinned(store)
    grow_old(store)
    assert prune_when_due(store, DAGS, known()) > 0
    pinned(store)
    for path in (store.root / "objects").rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    assert prune_when_due(store, DAGS, known()) == 0
    os.utime(store.root / ".pruned", (LONG_AGO, LONG_AGO))
    assert prune_when_due(store, DAGS, known()) > 0


def test_what_a_killed_writer_has_left_goes(store: PinStore) -> None:
    pinned(store).use("chain", "run")
    left = [store.root / "runs" / "_chain" / ".tmp1", store.root / "objects" / "ab" / ".tmp2"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    old = time.time() - 2 * UNUSED_FOR_S
    os.utime(left[0], (old, old))
    prune(store, DAGS, known("run"))
    assert [path.exists() for path in left] == [False, True]
