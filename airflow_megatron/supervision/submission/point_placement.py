"""Choice of the cluster of a point, for sweeps that name several clusters.

When its run starts, a point is placed on a cluster that answers, whose partition starts jobs, and whose limits on
queued jobs admit another one. Of several such clusters, the one where Slurm would start the job first is chosen. Of
clusters where it would start now, or whose estimates are unknown, the one with the fewest waiting jobs is chosen.
Points that have just been placed count as waiting jobs until their jobs are in the queue. The answers of the clusters
are used for all points that are placed in the next seconds, so many points cause one remote query per cluster.

The choice is recorded before any job of the point is submitted. It is never changed, because the point's files are on
that cluster.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.slurm.polling.cluster_room import ClusterRoom, cluster_room
from airflow_megatron.slurm.remote.finished_stages import started_points_script
from airflow_megatron.slurm.remote.framing import unframed
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError, TransportError
from airflow_megatron.slurm.submission.job_script import point_prefix, shared_directives, sweep_prefix
from airflow_megatron.supervision.attempts import queue_limits, slurm_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_megatron.plan.pinned import PinnedSweep
    from airflow_megatron.plan.pins.placements import Placement, Placements
    from airflow_megatron.plan.plan_environment import PlanEnvironment
    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

STARTS_NOW_S: Final = 60.0
"""Estimates below this many seconds count as a start now."""
JUST_PLACED_S: Final = 120.0
"""Seconds for which a placed point without a job in the queue counts as a waiting job."""


class NoRoomError(TransportError):
    """No cluster has room now; the message says why for each one.

    :param is_final: whether no cluster can answer before a user changes something
    """

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True)
class Candidate:
    """A cluster on which a point may run.

    :param job: the first job of the point there
    :param environment: the pinned profile and files
    :param run: runs a script on the login node
    """

    job: Job
    environment: PlanEnvironment
    run: Callable[[str], CommandResult]

    def room(self) -> ClusterRoom:
        """Query the room on the cluster; if it does not answer, return a room with a problem."""
        cluster = self.environment.cluster
        script = job_script(self.job, cluster, 1, templates=self.environment.templates)
        directives = shared_directives(script)
        try:
            return cluster_room(directives, self.job.slurm.partition, slurm_commands(cluster), self.run)
        except (LoginExpiredError, LoginRefusedError) as error:
            final = not isinstance(error, LoginExpiredError)
            return ClusterRoom(problem=str(error), is_final=final)
        except TransportError as error:
            return ClusterRoom(problem=str(error))

    @property
    def resources(self) -> str:
        """A digest of the resources on which its room depends."""
        return hashlib.sha256(msgspec.json.encode(self.job.slurm.model_dump(mode="json"))).hexdigest()[:12]


def place_point(
    point: str,
    candidates: Mapping[str, Candidate],
    placements: Placements,
    log: Any,
    *,
    fresh_s: float = 15.0,
) -> Placement:
    """Return the cluster of a point, chosen and recorded now if it has none.

    :param candidates: name of the cluster → the candidate, in the order of the spec
    :param fresh_s: seconds for which the answer of a cluster is used again
    :raises NoRoomError: if no cluster has room
    """
    known = placements.read().get(point)
    if known is not None:
        return known
    with placements.alone():
        known = placements.read().get(point)
        if known is not None:
            return known
        rooms = _rooms(candidates, placements, fresh_s)
        now, placed = time.time(), placements.read()
        just_placed = {
            cluster: [
                one for one, its in placed.items() if its.cluster == cluster and now - its.at < JUST_PLACED_S
            ]
            for cluster in candidates
        }
        cluster, why, notes = chosen_cluster(
            {name: one.job for name, one in candidates.items()},
            {name: one.environment for name, one in candidates.items()},
            rooms,
            just_placed,
        )
        for note in notes:
            log.warning("%s", note)
        return placements.place(point, cluster, why)


def chosen_cluster(
    jobs: Mapping[str, Job],
    environments: Mapping[str, PlanEnvironment],
    rooms: Mapping[str, ClusterRoom],
    just_placed: Mapping[str, Iterable[str]],
) -> tuple[str, str, list[str]]:
    """Return the cluster with room, the reason, and why others are not used.

    :param jobs: cluster → first job of the point, in the order of the spec
    :param environments: cluster → its profile
    :param rooms: cluster → its room
    :param just_placed: cluster → points that were just placed on it
    :raises NoRoomError: if no cluster has room
    """
    notes: list[str] = []
    ranked: list[tuple[tuple[bool, float, int, int], str, str]] = []
    for position, (cluster, job) in enumerate(jobs.items()):
        room = rooms[cluster]
        known = {*room.queued, *room.ended}
        prefixes = [point_prefix(job.sweep, one) for one in just_placed.get(cluster, ())]
        unseen = [prefix for prefix in prefixes if not any(name.startswith(prefix) for name in known)]
        counted = Counter(room.queued)
        counted.update({f"{sweep_prefix(job)} {prefix}": 1 for prefix in unseen})
        free = [limit.free(counted) for limit in queue_limits(job, environments[cluster].cluster)]
        if room.problem:
            notes.append(f"cluster {cluster} is not used: {room.problem}")
        elif room.is_closed:
            notes.append(
                f"cluster {cluster} is not used: partition {job.slurm.partition} is {room.partition}"
            )
        elif min(free, default=1) < 1:
            notes.append(
                f"cluster {cluster} is not used: it is full, {sum(counted.values())} jobs are queued"
            )
        else:
            if room.refused:
                notes.append(f"cluster {cluster}: sbatch --test-only answers {room.refused}")
            wait = room.wait_s if room.wait_s is not None and room.wait_s >= STARTS_NOW_S else 0.0
            load = room.pending + len(unseen)
            starts = f"an estimated start in {wait:.0f} s" if wait else "no estimated wait"
            ranked.append(
                (
                    (bool(room.refused), wait, load, position),
                    cluster,
                    f"{starts}, {load} jobs wait there",
                )
            )
    if not ranked:
        final = all(room.problem and room.is_final for room in rooms.values())
        raise NoRoomError(f"no cluster has room: {'; '.join(notes)}", is_final=final)
    _, cluster, why = min(ranked)
    return cluster, why, notes


def _rooms(
    candidates: Mapping[str, Candidate], placements: Placements, fresh_s: float
) -> dict[str, ClusterRoom]:
    """Return the room on each cluster; answers for the same resources are used again for some seconds."""
    now = time.time()
    kept = {
        key: value
        for key, value in placements.answers().items()
        if isinstance(value, dict) and 0 <= now - float(value.get("asked") or 0) < fresh_s
    }
    rooms: dict[str, ClusterRoom] = {}
    for cluster, candidate in candidates.items():
        key = f"{cluster} {candidate.resources}"
        if key not in kept:
            kept[key] = {**candidate.room().to_json(), "asked": time.time()}
            placements.keep_answers(kept)
        rooms[cluster] = ClusterRoom.from_json(kept[key])
    return rooms


def record_earlier_places(
    pinned: PinnedSweep, node: Callable[[ClusterProfile], Callable[[str], CommandResult]], log: Any
) -> None:
    """Record the clusters of points that ran before the spec named several clusters, by their files.

    :param node: returns a function that runs scripts on the login node of a cluster
    """
    placements = pinned.placements
    for name, plan in pinned.by_cluster.items():
        known = placements.read()
        jobs = {point: plan.jobs_by_point.get(point, ()) for point in plan.points if point not in known}
        if not jobs:
            return
        try:
            found = points_with_files(jobs, node(plan.plan_environment.cluster))
        except TransportError as error:
            log.warning("cluster %s: %s; whether points ran there before is not known", name, error)
            continue
        for point in sorted(found):
            placements.place(point, name, "its files were there")


def points_with_files(jobs: Mapping[str, Sequence[Job]], run: Callable[[str], CommandResult]) -> set[str]:
    """Return the points of which a cluster holds attempts, with one remote command.

    :param jobs: point → its jobs there
    :param run: runs a script on the login node
    :raises airflow_megatron.slurm.remote.transport.TransportError: if the login node does not answer
    """
    points = list(jobs)
    script = started_points_script([[job.stage_dir for job in jobs[point]] for point in points])
    found: set[str] = set()
    for line in unframed(run(script)):
        key, _, number = line.partition(" ")
        if key == "started" and number.isdecimal() and int(number) < len(points):
            found.add(points[int(number)])
    return found
