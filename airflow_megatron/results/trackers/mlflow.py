"""MLflow, by its REST API 2.0; the package ``mlflow`` is not needed.

A training is a run of the experiment; steps are iterations. The limits of one request are those of MLflow's REST
documentation (``log-batch``: 1,000 metrics, 100 params, 100 tags). Metrics of one request are stored in one
transaction by MLflow's SQL store, so a record is stored completely or not at all.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.trackers.json_api import JsonApi
from airflow_megatron.spec.trackers.tracker import Tracker, TrackerError, TrackerSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.spec.trackers.tracker import TrackedRecord, TrackedTraining, TrackerAccess

TRAINING_TAG: Final = "airflow_megatron.training"
SWEEP_TAG: Final = "airflow_megatron.sweep"
MOST_METRICS: Final = 1000
MOST_PARAMS: Final = 100
_PAGE: Final = 1000
_LONGEST_PARAM: Final = 500


class Mlflow(Tracker):
    """An MLflow server. The connection's host is its address; login and password, or the password alone as a token."""

    def open(self, access: TrackerAccess, project: str) -> TrackerSession:
        """Return a session for the experiment, which is created if missing."""
        if not access.url:
            raise TrackerError("mlflow: the connection names no host; give the address of the MLflow server")
        return _Session(access, project)


class _Session(TrackerSession):
    def __init__(self, access: TrackerAccess, project: str) -> None:
        token = {"Authorization": f"Bearer {access.password}"} if access.password and not access.user else {}
        self._api = JsonApi(
            "mlflow",
            f"{access.url.rstrip('/')}/api/2.0/mlflow/",
            auth=(access.user, access.password) if access.user else None,
            headers=token,
        )
        self._runs: dict[str, dict[str, _Run]] = {}
        try:
            self._experiment = self._experiment_called(project)
        except BaseException:
            self.close()
            raise

    def last_step(self, training: TrackedTraining) -> int | None:
        run = self._run_of(training)
        return run.last if run else None

    def push(self, training: TrackedTraining, records: Sequence[TrackedRecord]) -> None:
        run = self._run_of(training) or self._create(training)
        for batch in _batches(records):
            metrics = [
                {"key": name, "value": value, "timestamp": round(record.time * 1000), "step": record.step}
                for record in batch
                for name, value in record.values.items()
            ]
            self._api.post("runs/log-batch", {"run_id": run.run_id, "metrics": metrics})
            run.last = batch[-1].step
        if run.ended:
            self._api.post("runs/update", {"run_id": run.run_id, "status": "RUNNING"})
            run.ended = False

    def finish(self, training: TrackedTraining) -> None:
        run = self._run_of(training)
        if run is not None and not run.ended:
            ended = round(time.time() * 1000)
            self._api.post("runs/update", {"run_id": run.run_id, "status": "FINISHED", "end_time": ended})
            run.ended = True

    def close(self) -> None:
        self._api.close()

    def _experiment_called(self, name: str) -> str:
        found = self._experiment_if_any(name)
        if found is None:
            try:
                return str(self._api.post("experiments/create", {"name": name})["experiment_id"])
            except TrackerError:  # another process has created it in the meantime
                found = self._experiment_if_any(name)
                if found is None:
                    raise
        experiment = found["experiment"]
        if experiment.get("lifecycle_stage") == "deleted":
            raise TrackerError(
                f"mlflow: the experiment {name!r} is deleted; restore it or name another project"
            )
        return str(experiment["experiment_id"])

    def _experiment_if_any(self, name: str) -> dict[str, Any] | None:
        query = {"experiment_name": name}
        return self._api.find("experiments/get-by-name", query, missing="RESOURCE_DOES_NOT_EXIST")

    def _run_of(self, training: TrackedTraining) -> _Run | None:
        if training.sweep not in self._runs:
            self._runs[training.sweep] = dict(self._listed(training.sweep))
        return self._runs[training.sweep].get(training.key)

    def _listed(self, sweep: str) -> Iterator[tuple[str, _Run]]:
        """Yield the runs of a sweep; of two runs of one training, the earlier one comes last and counts."""
        if "'" in sweep or "\\" in sweep:
            raise TrackerError(f"mlflow: no sweep can be called {sweep!r}")
        query: dict[str, Any] = {
            "experiment_ids": [self._experiment],
            "filter": f"tags.`{SWEEP_TAG}` = '{sweep}'",
            "max_results": _PAGE,
            "order_by": ["attributes.start_time DESC", "attributes.run_id DESC"],
        }
        while True:
            answer = self._api.post("runs/search", query)
            for run in answer.get("runs", ()):
                tags = {tag["key"]: tag["value"] for tag in run["data"].get("tags", ())}
                if TRAINING_TAG in tags:
                    yield tags[TRAINING_TAG], _Run(run)
            if not (token := answer.get("next_page_token")):
                return
            query["page_token"] = token

    def _create(self, training: TrackedTraining) -> _Run:
        """Return a new run; if another process creates one at the same time, the first one."""
        tags = {
            TRAINING_TAG: training.key,
            SWEEP_TAG: training.sweep,
            "point": training.point,
            "stage": training.stage,
        }
        made = self._api.post(
            "runs/create",
            {
                "experiment_id": self._experiment,
                "run_name": training.name,
                "start_time": round(time.time() * 1000),
                "tags": [{"key": key, "value": value} for key, value in tags.items()],
            },
        )
        own = _Run(made["run"])
        self._runs[training.sweep] = dict(self._listed(training.sweep))
        run = self._runs[training.sweep].setdefault(training.key, own)
        if run.run_id != own.run_id:
            self._api.post("runs/delete", {"run_id": own.run_id})
            return run
        params = [
            {"key": name, "value": value[:_LONGEST_PARAM]}
            for name, value in list(training.params.items())[:MOST_PARAMS]
        ]
        if params:
            self._api.post("runs/log-batch", {"run_id": run.run_id, "params": params})
        return run


class _Run:
    """A run in MLflow's answer."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.run_id = str(run["info"]["run_id"])
        self.ended = run["info"].get("status") not in ("RUNNING", "SCHEDULED")
        # JSON answers contain 64-bit numbers as text
        steps = [int(metric.get("step", 0)) for metric in run["data"].get("metrics", ())]
        self.last: int | None = max(steps, default=None)


def _batches(records: Sequence[TrackedRecord]) -> Iterator[list[TrackedRecord]]:
    """Yield groups of complete records with at most :data:`MOST_METRICS` values."""
    batch: list[TrackedRecord] = []
    size = 0
    for record in records:
        if batch and size + len(record.values) > MOST_METRICS:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record.values)
    if batch:
        yield batch
