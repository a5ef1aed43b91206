"""The points of a stored plan, for the pages."""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_megatron.megatron.estimates.hardware import GPUS
from airflow_megatron.plan.pinned import PinnedSweep, jobs_by_point
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.plan.pins.placements import Placements
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS
from airflow_megatron.spec.trust.json_records import real, whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from airflow_megatron.spec.model.jobs import Job


class PlannedStage(NamedTuple):
    """A stage of a point.

    :param name: of the stage
    :param kind: name of its stage kind
    :param trains: whether it is a training
    :param measures: whether it is a benchmark, a short training whose time and memory are measured
    :param reported: for a benchmark: ``step_ms`` and ``memory_gb`` that were measured elsewhere
    :param run_dir: its directory on the cluster
    :param parent: the stage whose checkpoint it starts from, empty for none
    :param train_iters: the last iteration, None if unknown
    :param from_iteration: iteration of the checkpoint from which it continues
    :param seq_length: tokens of a sample
    :param gpus: number of processes, one per GPU
    """

    name: str
    kind: str
    trains: bool
    run_dir: str
    parent: str
    train_iters: int | None
    from_iteration: int
    seq_length: int | None
    gpus: int
    measures: bool = False
    reported: Mapping[str, Any] = MappingProxyType({})


class PlannedPoint(NamedTuple):
    """A point.

    :param name: of the point
    :param swept: the parameters that the sweep varies
    :param stages: its stages, in order
    :param cluster: its cluster, for a sweep on several clusters; empty before the choice, and for a sweep on one
        cluster
    :param peak: operations per second of one GPU in dense bf16, None if the profile does not name the GPU
    """

    name: str
    swept: Mapping[str, Any]
    stages: tuple[PlannedStage, ...]
    cluster: str = ""
    peak: float | None = None


class PlannedSweep(NamedTuple):
    """The part of a stored plan that the pages show.

    :param cluster: name of the cluster profile, or names with commas
    :param description: of the sweep
    :param digest: of the plan
    :param points: the chosen points, in order
    """

    cluster: str
    description: str
    digest: str
    points: tuple[PlannedPoint, ...]


def planned_sweep(sweep: str, run_id: str) -> PlannedSweep | None:
    """Return the plan that a run executes; None if there is none yet or it cannot be read."""
    store = PinStore()
    pin = store.newest(sweep, run_id)
    try:
        return _planned(pin, store.root, Placements(sweep, store.root).state()) if pin else None
    except PinError:
        return None


@lru_cache(maxsize=8)
def _planned(pin: str, root: Path, placed: tuple[int, int]) -> PlannedSweep:
    """Return the part of a stored plan that the page shows.

    :param placed: state of the records of the points' clusters, on which the jobs depend
    """
    pinned = PinnedSweep.read(pin, PinStore(root))
    peaks: dict[str, float | None] = {}
    for name, of_cluster in pinned.by_cluster.items():
        gpu = GPUS.get(of_cluster.plan_environment.cluster.gpu or "")
        peaks[name] = gpu.operations_per_s if gpu else None
    plan = pinned.placed_plan()
    jobs = jobs_by_point(plan.jobs)
    clusters = {name: its.cluster for name, its in pinned.placements.read().items()} if pinned.others else {}
    points = tuple(
        _point(name, jobs.get(name, ()))._replace(
            cluster=clusters.get(name, ""), peak=peaks.get(clusters.get(name, plan.cluster))
        )
        for name in pinned.points
    )
    return PlannedSweep(plan.cluster, pinned.description, pinned.digest, points)


def _point(name: str, jobs: Any) -> PlannedPoint:
    swept: dict[str, Any] = {}
    for job in jobs:
        hidden = job.measure.get("hidden") or ()
        swept |= {key: job.params[key] for key in job.swept if key in job.params and key not in hidden}
    return PlannedPoint(name, swept, tuple(map(_stage, jobs)))


def _stage(job: Job) -> PlannedStage:
    kind = STAGE_KINDS.find(job.kind)
    nodes, each = whole(job.params.get("nodes"), 1), whole(job.params.get("gpus_per_node"), 0)
    iterations = real(job.params.get("train_iters"))
    return PlannedStage(
        job.stage,
        job.kind,
        bool(kind and kind.trains),
        job.run_dir,
        job.depends_on[0].stage if job.depends_on else "",
        int(iterations) if iterations is not None else None,
        job.iteration or 0,
        whole(job.params.get("seq_length")) or whole(job.params.get("encoder_seq_length")),
        nodes * each,
        bool(kind and kind.reported_as == "benchmark"),
        job.measure.get("reported") or {},
    )
