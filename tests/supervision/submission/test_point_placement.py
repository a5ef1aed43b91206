"""Choice of a cluster for a point by the room on each cluster."""

from __future__ import annotations

import logging
import subprocess
from typing import TYPE_CHECKING

import msgspec
import pytest

from airflow_megatron.plan.pins.placements import Placements
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.polling.cluster_room import ClusterRoom
from airflow_megatron.slurm.remote.transport import CommandResult, LoginRefusedError, TransportError
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.submission.point_placement import (
    Candidate,
    NoRoomError,
    chosen_cluster,
    place_point,
    points_with_files,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

SPEC = """\
name: spread
cluster: [one, two]
point: "p{{ x }}"
sweep: {x: [1, 2, 3]}
stages:
  work: {kind: command, command: [work], slurm: {partition: main}}
"""
log = logging.getLogger(__name__)


class Clusters:
    """Two clusters whose room a test sets; their commands are counted."""

    def __init__(self, cluster: ClusterProfile, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sweep = load_sweep_text(SPEC, "spread.yaml")
        profiles = [cluster.model_copy(update={"name": name}) for name in ("one", "two")]
        self.jobs: dict[str, Job] = {one.name: plan_sweep(sweep, one).jobs[0] for one in profiles}
        self.environments = {one.name: PlanEnvironment.now(one) for one in profiles}
        self.rooms: dict[str, ClusterRoom | Exception] = {"one": ClusterRoom(), "two": ClusterRoom()}
        self.queried: list[str] = []
        self.placements = Placements("spread", root)
        monkeypatch.setattr(
            "airflow_megatron.supervision.submission.point_placement.cluster_room", self.answer
        )

    def answer(
        self, _: object, partition: str, commands: object, run: Callable[[str], CommandResult]
    ) -> ClusterRoom:
        assert partition == "main"
        name = run("").stdout
        self.queried.append(name)
        room = self.rooms[name]
        if isinstance(room, Exception):
            raise room
        return room

    def candidates(self) -> dict[str, Candidate]:
        def node(name: str) -> Callable[[str], CommandResult]:
            return lambda _: CommandResult(0, name, "")

        return {name: Candidate(job, self.environments[name], node(name)) for name, job in self.jobs.items()}

    def place(self, point: str, fresh_s: float = 60.0) -> str:
        return place_point(point, self.candidates(), self.placements, log, fresh_s=fresh_s).cluster

    def limit(self, name: str, jobs: int) -> None:
        around = self.environments[name].cluster
        limits = around.limits.model_copy(update={"max_jobs": jobs})
        self.environments[name] = PlanEnvironment.now(around.model_copy(update={"limits": limits}))

    def chosen(self, just_placed: dict[str, Sequence[str]] | None = None) -> str:
        rooms = {name: room for name, room in self.rooms.items() if isinstance(room, ClusterRoom)}
        return chosen_cluster(self.jobs, self.environments, rooms, just_placed or {})[0]


@pytest.fixture
def clusters(cluster: ClusterProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clusters:
    return Clusters(cluster, tmp_path, monkeypatch)


def test_points_alternate_between_equal_clusters(clusters: Clusters) -> None:
    assert [clusters.place(point) for point in ("p1", "p2", "p3")] == ["one", "two", "one"]
    assert clusters.queried == ["one", "two"], "the answers serve all points"


def test_old_answers_are_not_used(clusters: Clusters) -> None:
    clusters.place("p1", fresh_s=0)
    clusters.place("p2", fresh_s=0)
    assert clusters.queried == ["one", "two"] * 2


def test_a_placed_point_keeps_its_cluster(clusters: Clusters) -> None:
    assert clusters.place("p1") == "one"
    clusters.rooms["one"] = TransportError("no route to host")
    assert clusters.place("p1", fresh_s=0) == "one"
    assert clusters.place("p2", fresh_s=0) == "two"


def test_the_earliest_start_is_chosen(clusters: Clusters) -> None:
    clusters.rooms = {"one": ClusterRoom(wait_s=7200), "two": ClusterRoom(wait_s=3600, pending=9)}
    assert clusters.chosen() == "two"


def test_among_starts_now_the_shorter_queue_is_chosen(clusters: Clusters) -> None:
    clusters.rooms = {"one": ClusterRoom(wait_s=1, pending=2), "two": ClusterRoom(wait_s=30, pending=1)}
    assert clusters.chosen() == "two"
    assert clusters.chosen({"two": ["p2", "p3"]}) == "one", "points that were just placed count"


def test_a_placed_point_counts_once_its_job_is_in_the_queue(clusters: Clusters) -> None:
    queued = ("spread.p2.work.a1.0a1b2c", "spread.p3.work.a1.0a1b2c")
    clusters.rooms = {"one": ClusterRoom(pending=1), "two": ClusterRoom(queued=queued)}
    assert clusters.chosen({"two": ["p2", "p3"]}) == "two"


def test_a_full_cluster_is_skipped(clusters: Clusters) -> None:
    clusters.limit("one", 2)
    clusters.rooms["one"] = ClusterRoom(queued=("of.another.sweep",))
    assert clusters.chosen() == "one"
    assert clusters.chosen({"one": ["p2"]}) == "two"
    clusters.rooms["one"] = ClusterRoom(queued=("a", "b"))
    assert clusters.chosen() == "two"


@pytest.mark.parametrize("state", ["down", "drain", "inact", "down*"])
def test_a_closed_partition_is_skipped(clusters: Clusters, state: str) -> None:
    clusters.rooms["one"] = ClusterRoom(partition=state)
    assert clusters.chosen() == "two"


def test_a_cluster_that_refuses_the_job_comes_last(clusters: Clusters) -> None:
    clusters.rooms = {"one": ClusterRoom(refused="invalid account"), "two": ClusterRoom(wait_s=9e4)}
    assert clusters.chosen() == "two"
    clusters.rooms["two"] = ClusterRoom(partition="down")
    assert clusters.chosen() == "one"


def test_without_room_nothing_is_recorded(clusters: Clusters) -> None:
    clusters.rooms = {"one": TransportError("no route to host"), "two": ClusterRoom(partition="down")}
    with pytest.raises(
        NoRoomError, match=r"one is not used: no route to host; .*two .*main is down"
    ) as error:
        clusters.place("p1")
    assert not error.value.is_final
    assert clusters.placements.read() == {}


def test_refused_logins_everywhere_are_final(clusters: Clusters) -> None:
    clusters.rooms = {"one": LoginRefusedError("bad key"), "two": LoginRefusedError("bad key")}
    with pytest.raises(NoRoomError) as error:
        clusters.place("p1")
    assert error.value.is_final


def test_points_with_attempts_are_found(clusters: Clusters, tmp_path: Path) -> None:
    def job(point: str) -> Job:
        return msgspec.structs.replace(clusters.jobs["one"], point=point, run_dir=str(tmp_path / point))

    jobs = {point: [job(point)] for point in ("p1", "it's", "p3")}
    (tmp_path / "it's" / ".jobs" / "work" / "1").mkdir(parents=True)
    (tmp_path / "p3" / ".jobs" / "work" / "draft").mkdir(parents=True)

    def shell(script: str) -> CommandResult:
        done = subprocess.run(["sh"], input=script, text=True, capture_output=True, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    assert points_with_files(jobs, shell) == {"it's"}


def test_an_answer_survives_its_file() -> None:
    room = ClusterRoom(("a",), 1, ("b",), "up", 12.5, "why", "problem", is_final=True)
    assert ClusterRoom.from_json(room.to_json()) == room
    assert ClusterRoom.from_json({}) == ClusterRoom()
