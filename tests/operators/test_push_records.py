"""Pushes, pauses and the end of the task that sends records to trackers."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from airflow_megatron.operators import push_records
from airflow_megatron.operators.push_records import GIVE_UP_S, PAUSE_S, PushRecordsOperator
from airflow_megatron.results.trackers import pushing
from airflow_megatron.results.trackers.pushing import Pushed
from airflow_megatron.spec.model.schema import TrackerSection
from airflow_megatron.spec.trackers.tracker import TrackerAccess, TrackerError

RUNS = {"p": "r1", "q": "r2"}


class Site:
    """Stubs of Airflow and the trackers for the task."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended_runs, self.pushes, self.failing = 0, [], set[str]()
        settings = SimpleNamespace(
            trackers=[TrackerSection(tracker=name, connection=name) for name in ("mlflow", "trackio")]
        )
        pinned = SimpleNamespace(
            sweep="s",
            outline=SimpleNamespace(settings=settings),
            placed_plan=lambda: SimpleNamespace(jobs=(), several=False),
        )
        monkeypatch.setattr(push_records, "stored_plan", lambda *_: pinned)
        monkeypatch.setattr(push_records, "tracker_access", lambda connection: TrackerAccess())
        monkeypatch.setattr(push_records, "count_ended_runs", lambda dag, runs: self.ended_runs)
        monkeypatch.setattr(push_records, "runs_without_scheduler", lambda: False)
        monkeypatch.setattr(pushing, "push_sweep", self.push)

    def push(
        self, store: Any, sweep: str, jobs: Any, section: TrackerSection, access: Any, *, ended: bool
    ) -> Pushed:
        self.pushes.append((section.tracker, ended))
        if section.tracker in self.failing:
            raise (
                TrackerError("it is away") if section.tracker == "mlflow" else ZeroDivisionError("token=abc")
            )
        return Pushed(1, 1)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def task(**changes: Any) -> PushRecordsOperator:
    values = {"pinned": {}, "point_dag_id": "s.point", "runs": RUNS} | changes
    return PushRecordsOperator(task_id="trackers", **values)


def pause(deferred: TaskDeferred) -> tuple[float, dict[str, Any]]:
    assert deferred.method_name == "push_again"
    return deferred.trigger.until - time.time(), deferred.trigger.carry


def test_it_pushes_and_pauses_until_all_points_have_ended(site: Site) -> None:
    with pytest.raises(TaskDeferred) as first:
        task().execute({})
    assert pause(first.value)[1] == {"ended": None}
    assert pause(first.value)[0] == pytest.approx(PAUSE_S, abs=5)
    site.ended_runs = 2
    with pytest.raises(TaskDeferred) as second:
        task().push_again({}, {"ended": None})
    ended = pause(second.value)[1]["ended"]
    assert ended == pytest.approx(time.time(), abs=5)
    task().push_again(
        {}, {"ended": time.time() - PAUSE_S}
    )  # the rows of the last job are in the store by now
    assert site.pushes == [
        *(("mlflow", False), ("trackio", False)),
        *(("mlflow", False), ("trackio", False)),
        *(("mlflow", True), ("trackio", True)),
    ]


def test_a_failing_tracker_is_retried_and_does_not_delay_others(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.failing, site.ended_runs = {"mlflow", "trackio"}, 2
    with pytest.raises(TaskDeferred):
        task().push_again({}, {"ended": time.time() - PAUSE_S})
    assert [name for name, _ in site.pushes] == ["mlflow", "trackio"]
    assert "token=abc" not in caplog.text
    site.failing = {"trackio"}
    with pytest.raises(AirflowSkipException, match=r"^trackio did not receive all .* results push SPEC"):
        task().push_again({}, {"ended": time.time() - GIVE_UP_S - 1})


def test_a_dry_run_sends_nothing(site: Site) -> None:
    with pytest.raises(AirflowSkipException):
        task(plan_only=True).execute({})
    assert site.pushes == []


def test_without_a_scheduler_it_pushes_once_when_the_points_have_been_worked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_records, "runs_without_scheduler", lambda: True)
    task().execute({})
    assert site.pushes == [("mlflow", True), ("trackio", True)]
