"""Removing what runs have pinned when no run refers to it any more.

A run refers to what it has pinned for as long as Airflow knows the run: a task of it may be cleared, a report asked
for. What is stored by somebody whose run does not refer to it yet is protected twice: by a lock that pruning must have
alone, and by its age.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.plan.pins.pin_store import PinError, PinStore, content_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GONE_FOR_S: Final = 7 * 86400.0
"""Seconds after its last plan before which a run that Airflow does not know stays: it may be another Airflow's."""
UNUSED_FOR_S: Final = 86400.0
"""Seconds for which content stays that no run refers to."""
BETWEEN_S: Final = 86400.0
"""Seconds between two prunings."""


def prune_when_due(store: PinStore, sweep_dags: tuple[str, str], is_known: Callable[[str, str], bool]) -> int:
    """Prune the store unless that was done lately, or somebody stores something now; return how many files went.

    :param sweep_dags: the DAGs whose runs are asked about
    :param is_known: whether Airflow knows a run: DAG, run
    """
    stamp = store.root / ".pruned"
    try:
        if time.time() - stamp.stat().st_mtime < BETWEEN_S:
            return 0
    except FileNotFoundError:
        pass
    try:
        with store.alone():
            stamp.touch()
            return prune(store, sweep_dags, is_known)
    except OSError:
        return 0


def prune(store: PinStore, sweep_dags: tuple[str, str], is_known: Callable[[str, str], bool]) -> int:
    """Remove what no run refers to; return how many files went. Killed at any instant, it leaves nothing in disorder.

    :param sweep_dags: the DAGs whose runs are asked about
    :param is_known: whether Airflow knows a run: DAG, run
    """
    now = time.time()
    for dag_id in sweep_dags:
        for run in store.noted_runs(dag_id):
            if now - run.written > GONE_FOR_S and not is_known(dag_id, run.run_id):
                store.forget(dag_id, run.run_id)
    if not store.is_readable():  # what such a run refers to cannot be known
        return 0
    used = {name for dag_id in store.dags() for pin in store.pins(dag_id) for name in _used_by(store, pin)}
    removed = 0
    for path in _content(store.root):
        if path.name not in used and now - path.stat().st_mtime > UNUSED_FOR_S:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _used_by(store: PinStore, pin: str) -> Iterator[str]:
    """Yield the names of the files that a pin needs, its own among them."""
    yield pin
    try:
        plan: dict[str, Any] = store.get(pin)
        yield from plan["objects"]
        yield plan["surroundings"]
        yield plan["outline"]
        tables: dict[str, str] = store.get(plan["surroundings"])["tables"]
    except (PinError, KeyError, TypeError):
        return  # damaged: only planning again helps, and that stores everything anew
    for text in tables.values():
        yield content_digest(text.encode())


def _content(root: Path) -> Iterator[Path]:
    """Yield the files of content, and what a writer that was killed has left."""
    for pattern in ("objects/*/*", "files/*", "runs/*/.*", "owners/.*"):
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                yield path
