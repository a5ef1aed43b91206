"""Removal of pinned content that no run refers to any more.

A run refers to its pinned content as long as Airflow's database holds the run, because a user may clear one of its
tasks or request a report, and as long as one of its points runs, whose tasks take their jobs from there. Content that
was stored but is not referred to yet is protected twice: by a lock that pruning must hold exclusively, and by its age.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.plan.pins.pin_store import PinError, PinStore, content_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GONE_FOR_S: Final = 7 * 86400.0
"""Seconds after its last plan for which a run unknown to this Airflow is kept; it may belong to another Airflow."""
UNUSED_FOR_S: Final = 86400.0
"""Seconds for which content without a reference is kept."""
BETWEEN_S: Final = 86400.0
"""Seconds between two prunings."""


def prune_when_due(store: PinStore, sweep_dags: tuple[str, str], is_known: Callable[[str, str], bool]) -> int:
    """Prune the store unless it was pruned recently or is being written; return the number of removed files.

    :param sweep_dags: ids of the DAGs whose runs are checked
    :param is_known: returns whether Airflow's database holds a run, given the ids of DAG and run
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
    """Remove content without a reference; return the number of removed files. The process may be killed at any time.

    :param sweep_dags: ids of the DAGs whose runs are checked
    :param is_known: returns whether Airflow's database holds a run, given the ids of DAG and run
    """
    now = time.time()
    for dag_id in sweep_dags:
        for run in store.noted_runs(dag_id):
            if run.ended and now - run.written > GONE_FOR_S and not is_known(dag_id, run.run_id):
                store.forget(dag_id, run.run_id)
    if not store.is_readable():  # the references of an unreadable run are unknown
        return 0
    used = {name for dag_id in store.dags() for pin in store.pins(dag_id) for name in _used_by(store, pin)}
    removed = 0
    for path in _content(store.root):
        if path.name not in used and now - path.stat().st_mtime > UNUSED_FOR_S:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _used_by(store: PinStore, pin: str) -> Iterator[str]:
    """Yield the names of the files that a pin needs, including its own file."""
    yield pin
    try:
        plan: dict[str, Any] = store.get(pin)
        yield from plan["objects"]
        yield plan["surroundings"]
        yield plan["outline"]
        for _, other in plan.get("others", ()):
            yield from _used_by(store, other)
        tables: dict[str, str] = store.get(plan["surroundings"])["tables"]
    except (PinError, KeyError, TypeError, ValueError):
        return  # damaged: the sweep must be planned again, which stores all content again
    for text in tables.values():
        yield content_digest(text.encode())


def _content(root: Path) -> Iterator[Path]:
    """Yield the files of content, and the temporary files of killed writers."""
    for pattern in ("objects/*/*", "files/*", "runs/*/.*", "owners/.*"):
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                yield path
