"""trackio, by the HTTP API of its self-hosted server; the package ``trackio`` is not needed.

Its server stores each ``log_id`` once (``trackio/sqlite_storage.py``: a unique index, ``INSERT OR IGNORE``): a batch
that is sent again after a lost answer changes nothing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from airflow_megatron.results.trackers.json_api import JsonApi
from airflow_megatron.spec.trackers.tracker import Tracker, TrackerError, TrackerSession
from airflow_megatron.spec.trust.json_records import whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.spec.trackers.tracker import TrackedRecord, TrackedTraining, TrackerAccess

_TOKEN_HEADER: Final = "X-Trackio-Write-Token"


class Trackio(Tracker):
    """A trackio server. The connection's host is its address, its password the write token."""

    def open(self, access: TrackerAccess, project: str) -> TrackerSession:
        """Return a session for the project, which is created by its first record."""
        if not access.url:
            raise TrackerError(
                "trackio: the connection names no host; give the address of the trackio server"
            )
        return _Session(access, project)


class _Session(TrackerSession):
    def __init__(self, access: TrackerAccess, project: str) -> None:
        self._project = project
        self._api = JsonApi(
            "trackio", f"{access.url.rstrip('/')}/api/", headers={_TOKEN_HEADER: access.password}
        )

    def last_step(self, training: TrackedTraining) -> int | None:
        asked = {"project": self._project, "run": training.name, "run_id": _run_id(training)}
        answer = self._api.post("get_run_summary", {"args": [], "kwargs": asked}).get("data")
        return whole(answer.get("last_step")) if isinstance(answer, dict) else None

    def push(self, training: TrackedTraining, records: Sequence[TrackedRecord]) -> None:
        run_id = _run_id(training)
        config = {**training.params, "_Group": training.point}
        logs = [
            {
                "project": self._project,
                "run": training.name,
                "run_id": run_id,
                "metrics": record.values,
                "step": record.step,
                "config": config,
                "log_id": f"{run_id}-{record.step}",
            }
            for record in records
        ]
        self._api.post("bulk_log", {"args": [], "kwargs": {"logs": logs, "hf_token": None}})

    def close(self) -> None:
        self._api.close()


def _run_id(training: TrackedTraining) -> str:
    return hashlib.sha256(training.key.encode()).hexdigest()[:32]
