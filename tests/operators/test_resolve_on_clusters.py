"""``resolve`` of a sweep with several clusters: the choice of a cluster, also if all are full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_megatron.operators import resolve_point
from airflow_megatron.operators.resolve_point import ResolvePointOperator
from airflow_megatron.plan.pins.placements import Placements
from airflow_megatron.supervision.submission.point_placement import NoRoomError

if TYPE_CHECKING:
    from pathlib import Path

SPEC = """\
name: spread
cluster: [local, example-slurm]
point: "p{{ x }}"
sweep: {x: [1, 2]}
stages:
  work: {kind: command, command: [work], slurm: {time: 5m}}
"""


class Resolve:
    """The task, for a run that a user started for point p1."""

    def __init__(self, file: Path) -> None:
        file.write_text(SPEC)
        self.task = ResolvePointOperator(
            task_id="resolve", spec_file=str(file), sweep="spread", stages=["work"]
        )
        self.pushed: dict[str, Any] = {}

    def execute(self) -> dict[str, Any]:
        """Run it and return the pushed XComs."""
        push = lambda key, value: self.pushed.update({key: value})  # noqa: E731
        ti = SimpleNamespace(dag_id="spread.point", run_id="p1", xcom_push=push)
        run = SimpleNamespace(conf={"point": "p1"}, run_type="manual")
        context: Any = {"ti": ti, "dag_run": run, "params": {"cluster": None}}
        self.task.execute(context)
        return self.pushed


@pytest.fixture
def resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolve:
    monkeypatch.setattr(resolve_point, "record_earlier_places", lambda *_: None)
    return Resolve(tmp_path / "spread.yaml")


def test_the_jobs_are_those_on_the_recorded_cluster(resolve: Resolve) -> None:
    Placements("spread").place("p1", "example-slurm", "it was idle")
    job = resolve.execute()["work"]
    assert job["cluster"] == "example-slurm"
    assert resolve.execute()["work"] == job


def test_a_point_without_room_waits(resolve: Resolve, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise NoRoomError("no cluster has room: both are full")

    monkeypatch.setattr(resolve_point, "place_point", full)
    with pytest.raises(TaskDeferred) as deferred:
        resolve.execute()
    assert callable(getattr(resolve.task, deferred.value.method_name))
    assert resolve.pushed == {}


def test_refused_logins_everywhere_fail_the_task(resolve: Resolve, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise NoRoomError("no cluster has room: bad keys", is_final=True)

    monkeypatch.setattr(resolve_point, "place_point", refused)
    with pytest.raises(AirflowFailException, match="bad keys"):
        resolve.execute()


def test_a_point_on_a_cluster_that_the_spec_no_longer_names_is_not_moved(resolve: Resolve) -> None:
    Placements("spread").place("p1", "gone", "it was idle")
    with pytest.raises(AirflowFailException, match=r"p1 runs on gone.*add gone to cluster: .*delete spread"):
        resolve.execute()
    assert resolve.pushed == {}
