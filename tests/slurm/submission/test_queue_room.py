"""The order of waiting submissions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, QueueRow
from airflow_megatron.slurm.submission.queue_limits import QueueLimit
from airflow_megatron.slurm.submission.queue_room import LET_GO_S, TRY_AGAIN_S, QueueRoom, Waiting


class Site:
    """A room and the queue that it observes.

    :param interval: seconds between two polls
    """

    def __init__(self, interval: float = 15.0) -> None:
        self.room, self.interval, self.now = QueueRoom(), interval, 1000.0
        self.rows: dict[str, QueueRow] = {}
        self.waiting: dict[str, Waiting] = {}
        self._ids = itertools.count(1)

    def wait(self, name: str, **values: object) -> None:
        self.waiting[name] = Waiting(name, since=self.now + len(self.waiting), **values)  # type: ignore[arg-type]
        self.room.enter(self.waiting[name])

    def run(self, *names: str) -> None:
        for name in names:
            job_id = str(next(self._ids))
            self.rows[job_id] = QueueRow(job_id, name, JobState.RUNNING)

    def end(self, *names: str) -> None:
        for job_id, row in self.rows.items():
            if row.name in names:
                self.rows[job_id] = replace(row, state=JobState.COMPLETED)

    def look(self, *, answers: bool = True) -> list[str]:
        """Poll once; return the submissions that may proceed."""
        self.now += self.interval
        seen = Observation(time=self.now, queue_ok=answers, user_jobs=dict(self.rows) if answers else {})
        released = [name for name, one in self.waiting.items() if self.room.may_go(one, seen)]
        for name in released:
            self.room.leave(self.waiting.pop(name))
        return released


def test_free_places_are_given_in_order_of_arrival() -> None:
    site = Site()
    site.run("s.a", "s.b", "other")
    for name in ("s.1", "s.2", "s.3", "t.1"):
        limits = (QueueLimit(5), QueueLimit(3, "s.")) if name.startswith("s.") else (QueueLimit(5),)
        site.wait(name, limits=limits)
    assert site.look() == ["s.1", "t.1"]
    assert site.look() == []  # on their way
    site.run("s.1", "t.1")
    assert site.look() == []
    site.end("s.a")
    assert site.look() == ["s.2"]


def test_a_task_that_does_not_submit_frees_its_place() -> None:
    site = Site(interval=LET_GO_S / 2)
    site.wait("s.1", limits=(QueueLimit(1),))
    site.wait("s.2", limits=(QueueLimit(1),))
    assert [site.look() for _ in range(4)] == [["s.1"], [], ["s.2"], []]


def test_a_job_that_ended_between_two_polls_frees_its_place() -> None:
    site = Site()
    site.wait("s.1", limits=(QueueLimit(1),))
    site.wait("s.2", limits=(QueueLimit(1),))
    assert site.look() == ["s.1"]
    site.run("s.1")
    site.end("s.1")
    assert site.look() == ["s.2"]


def test_two_runs_of_one_attempt_take_one_place() -> None:
    site = Site()
    first, second = (Waiting("s.1", 1.0, (QueueLimit(1),)) for _ in range(2))
    for one in (first, second):
        site.room.enter(one)
    site.wait("s.2", limits=(QueueLimit(1),))
    site.room.leave(first)
    seen = Observation(time=5.0, queue_ok=True)
    assert site.room.may_go(second, seen)
    assert not site.room.may_go(site.waiting["s.2"], seen)


def test_no_task_continues_while_squeue_does_not_answer() -> None:
    site = Site()
    site.wait("s.1", recovers=True)
    assert site.look(answers=False) == []
    assert site.look() == ["s.1"]


def test_after_an_outage_submissions_increase_slowly() -> None:
    site = Site()
    for number in range(60):
        site.wait(f"s.{number:02}", recovers=True)
    sizes = []
    while site.waiting:
        released = site.look()
        site.run(*released)
        sizes.append(len(released))
    assert sizes == [1, 2, 4, 8, 16, 29]


@pytest.mark.slow
def test_a_thousand_refused_tasks_try_twice_a_minute() -> None:
    site = Site()
    site.run(*(f"r.{number}" for number in range(40)))
    for number in range(1000):
        site.wait(f"s.{number:03}", refused_at=40)
    tried = 0
    for _ in range(40):  # ten minutes
        released = site.look()
        tried += len(released)
        for name in released:
            site.wait(name, refused_at=40)
    assert tried == 40 * site.interval / TRY_AGAIN_S
    site.end("r.1", "r.2", "r.3")
    released = site.look()
    assert len(released) in (3, 4)
    site.run(*released)


@pytest.mark.parametrize("refused_at", [0, 2])
def test_a_limit_that_was_raised_is_noticed(refused_at: int) -> None:
    site = Site()
    site.run("r.1", "r.2")
    for number in range(20):
        site.wait(f"s.{number:02}", refused_at=refused_at)
    looks = 0
    while site.waiting:
        site.run(*site.look())
        looks += 1
    assert looks < 12
