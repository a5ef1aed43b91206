"""The stages of runs in progress, which remain in the DAGs after a change of the spec.

Airflow builds a DAG from the current file, and a run in progress continues with the tasks of the newest DAG; it stops
at a task that no longer exists. The DAGs of a sweep therefore keep the stages in the pinned plans of its runs, with
their planned dependencies, until those runs have ended. New stages of the spec are added, and runs without them skip
them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_megatron.plan.pins.pin_store import PinError
from airflow_megatron.spec.model.dag_names import MAX_STAGES, MAX_WAITS, point_dag_id, sweep_of
from airflow_megatron.spec.model.outline import SweepOutline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.plan.pins.pin_store import PinStore
    from airflow_megatron.spec.model.stage_tree import StageInstance

MOST_IN_FLIGHT: Final = 2 * (MAX_STAGES + MAX_WAITS // 30)
"""Maximum weight of the DAGs of a sweep with runs in progress: as of two of the largest sweeps."""
MOST_OUTLINES: Final = 100
"""Maximum number of different outlines of a sweep's runs in progress; every parse reads them all."""


def outlines_in_flight(
    sweep: str, store: PinStore, *, folder: Path | None = None, without: str = ""
) -> list[tuple[str, SweepOutline]]:
    """Return run and outline of the runs of a sweep in progress, the newest first, each outline once.

    :param folder: folder that holds or held the sweep's spec; None for any folder
    :param without: a run to ignore
    """
    dags = (sweep, point_dag_id(sweep))
    runs = [run for dag_id in dags for run in store.under_way(dag_id)]
    digests: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: -run.written):
        if run.run_id != without:
            for digest in reversed(run.outlines):
                digests.setdefault(digest, run.run_id)
    found = []
    for digest, run_id in digests.items():
        try:
            outline = SweepOutline.from_json(store.get(digest))
        except (PinError, ValueError):
            continue  # its tasks report the error
        if folder is None or Path(outline.file).is_relative_to(folder.absolute()):
            found.append((run_id, outline))
    return found


def with_runs_in_flight(
    outline: SweepOutline | None, sweep: str, folder: Path, store: PinStore
) -> SweepOutline | None:
    """Return the outline from which a sweep's DAGs are built.

    :param outline: outline of the current spec; None if the spec cannot be read or was removed
    :param folder: folder of the specs; pins of specs in other folders are ignored
    """
    pinned = [one for _, one in outlines_in_flight(sweep, store, folder=folder)]
    now = outline or next(iter(pinned), None)
    if now is None or not pinned:
        return now
    return _merged(now, pinned)


def _merged(now: SweepOutline, pinned: Iterable[SweepOutline]) -> SweepOutline:
    tree: dict[str, StageInstance] = {}
    for one in (*pinned, now):
        for instance in one.tree:
            tree.setdefault(instance.name, instance)
    return dataclasses.replace(now, tree=tuple(tree.values()))


def too_many_in_flight(sweep: SweepOutline, store: PinStore) -> bool:
    """Return whether the DAGs would have too many stages, with those of the runs in progress and of a new plan.

    Otherwise a sweep that is edited and planned again and again would take the time for the DAGs of all sweeps.
    """
    pinned = [one for _, one in outlines_in_flight(sweep.name, store)]
    return len(pinned) >= MOST_OUTLINES or _merged(sweep, pinned).weight > MOST_IN_FLIGHT


def sweeps_in_flight(folder: Path, known: Iterable[str], store: PinStore) -> list[str]:
    """Return the sweeps with runs in progress whose spec cannot be read or was removed.

    :param folder: folder of the specs
    :param known: the sweeps whose specs can be read
    """
    missing = sorted({sweep_of(dag_id) for dag_id in store.dags()} - set(known))
    return [name for name in missing if outlines_in_flight(name, store, folder=folder)]


def rewired(sweep: SweepOutline, run_id: str, store: PinStore) -> list[tuple[str, str]]:
    """Return run and stage of other runs in progress whose dependencies differ from those of the current sweep.

    :param run_id: the run that plans the sweep
    """
    now = {instance.name: _wiring(instance) for instance in sweep.tree}
    return [
        (run, instance.name)
        for run, outline in outlines_in_flight(sweep.name, store, without=run_id)
        for instance in outline.tree
        if instance.name in now and now[instance.name] != _wiring(instance)
    ]


def _wiring(instance: StageInstance) -> tuple[object, ...]:
    return (
        instance.scope,
        instance.parent,
        instance.waits,
        instance.after,
        instance.after_end,
        instance.array,
    )
