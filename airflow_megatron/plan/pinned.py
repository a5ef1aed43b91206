"""The pin of a run: jobs, cluster profile, templates and spec, stored when the run is planned."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron import __version__
from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.plan.pins.placements import Placements
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.spec.documents.commit import commit_of
from airflow_megatron.spec.documents.errors import SpecError, did_you_mean
from airflow_megatron.spec.documents.named_files import NamedFileError, read_named_file, read_spec_file
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.model.outline import SweepOutline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.spec.model.sweep import Sweep

POINTS_IN_ONE_OBJECT: Final = 64
"""Number of points in one stored object; the run of a point reads one object to find its jobs."""
_FORM: Final = 3


@dataclass(frozen=True)
class PinnedSweep:
    """A stored plan, independent of later changes of its sources; a damaged copy is an error.

    :param pin: its digest in the store
    :param sweep: name of the sweep
    :param file: the spec file
    :param text: its content
    :param sources: path → content of the other files that the spec includes
    :param cluster: name of the cluster profile
    :param points: the chosen points, in order
    :param digest: of the plan
    :param choice: expression or patterns that selected the points, empty for all
    :param limit: maximum number of points, None for all
    :param package: version of this package that planned it
    :param description: description of the sweep
    :param all_points: number of points of the whole sweep
    :param commit: commit of the project's checkout at planning, empty if unknown
    :param others: for a sweep that names several clusters: the other clusters, and the digests of the plans for them
    """

    pin: str
    sweep: str
    file: str
    text: str
    sources: Mapping[str, str]
    cluster: str
    points: tuple[str, ...]
    digest: str
    choice: str
    limit: int | None
    package: str
    description: str
    all_points: int
    commit: str
    others: Mapping[str, str]
    _objects: tuple[str, ...]
    _shared: tuple[Mapping[str, Any], ...]
    _plan_environment: str
    _outline: str
    _store: PinStore = field(repr=False, compare=False)

    @classmethod
    def stored(
        cls,
        sweep: Sweep,
        text: str,
        plan: Plan,
        plan_environment: PlanEnvironment,
        store: PinStore,
        *,
        choice: str = "",
        limit: int | None = None,
        others: Sequence[PinnedSweep] = (),
    ) -> PinnedSweep:
        """Store a checked plan.

        :param text: content of the spec file
        :param plan_environment: the cluster profile and files of the plan
        :param choice: expression or patterns that selected the points
        :param limit: maximum number of points
        :param others: stored plans of the same points for other clusters; a run that uses this plan uses them too
        """
        jobs = jobs_by_point(plan.jobs)
        chunks = [
            plan.points[start : start + POINTS_IN_ONE_OBJECT]
            for start in range(0, len(plan.points), POINTS_IN_ONE_OBJECT)
        ]
        objects = [
            store.put({point: [job.to_json() for job in jobs.get(point, ())] for point in chunk})
            for chunk in chunks
        ]
        digest = store.put(
            {
                "form": _FORM,
                "sweep": plan.sweep,
                "file": sweep.document.file,
                "text": text,
                "sources": dict(sweep.document.sources),
                "cluster": plan.cluster,
                "points": list(plan.points),
                "digest": plan.digest,
                "choice": choice,
                "limit": limit,
                "package": __version__,
                "description": sweep.settings.description,
                "all_points": len(sweep.points),
                "commit": commit_of(project_root()),
                "objects": objects,
                "shared": [job.to_json() for job in jobs.get("", ())],
                "surroundings": store.put(plan_environment.to_json(plan.jobs)),
                "outline": store.put(SweepOutline.of(sweep).to_json()),
                # a list, because the order matters
                **({"others": [[other.cluster, other.pin] for other in others]} if others else {}),
            }
        )
        return cls.read(digest, store)

    @classmethod
    def stored_on_clusters(
        cls,
        sweep: Sweep,
        text: str,
        plans: Sequence[tuple[Plan, PlanEnvironment]],
        store: PinStore,
        *,
        choice: str = "",
        limit: int | None = None,
    ) -> PinnedSweep:
        """Store the checked plans of the same points for each cluster of a sweep; return that for the first.

        The parameters are those of :meth:`stored`.
        """
        others = [
            cls.stored(sweep, text, plan, around, store, choice=choice, limit=limit)
            for plan, around in plans[1:]
        ]
        plan, around = plans[0]
        return cls.stored(sweep, text, plan, around, store, choice=choice, limit=limit, others=others)

    @classmethod
    def read(cls, digest: str, store: PinStore | None = None) -> PinnedSweep:
        """Return a stored plan.

        :raises PinError: if it does not exist, or the copy is damaged
        """
        store = store or PinStore()
        data = store.get(digest)
        if not isinstance(data, dict) or data.get("form") != _FORM:
            raise PinError(f"{digest[:16]} is not a plan that this version of the package can read")
        return cls(
            pin=digest,
            sweep=data["sweep"],
            file=data["file"],
            text=data["text"],
            sources=data["sources"],
            cluster=data["cluster"],
            points=tuple(data["points"]),
            digest=data["digest"],
            choice=data["choice"],
            limit=data["limit"],
            package=data["package"],
            description=data["description"],
            all_points=data["all_points"],
            commit=data["commit"],
            others={str(cluster): str(pin) for cluster, pin in data.get("others", ())},
            _objects=tuple(data["objects"]),
            _shared=tuple(data["shared"]),
            _plan_environment=data["surroundings"],
            _outline=data["outline"],
            _store=store,
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any], store: PinStore | None = None) -> PinnedSweep:
        """Return the plan to which a result of :meth:`to_json` refers.

        :param data: the reference, or the form of version 0.1.0, which held the spec: it is planned and stored now
        :raises PinError: if the plan cannot be read
        """
        if "text" not in data:
            return cls.read(str(data.get("pin")), store)
        from airflow_megatron.plan.sweep_plan import plan_sweep
        from airflow_megatron.spec.spec_files import load_sweep_text

        sweep = load_sweep_text(data["text"], data["file"], data.get("sources"))
        plan_environment = PlanEnvironment.now(data["cluster"])
        wanted = set(data["points"])
        chosen = [point for point in sweep.points if point.name in wanted]
        plan = plan_sweep(sweep, plan_environment.cluster, chosen)
        return cls.stored(sweep, data["text"], plan, plan_environment, store or PinStore())

    def to_json(self) -> dict[str, Any]:
        """Return a short reference, plain JSON data."""
        return {
            "pin": self.pin,
            "sweep": self.sweep,
            "cluster": ", ".join((self.cluster, *self.others)),
            "points": len(self.points),
            "digest": self.digest,
        }

    @functools.cached_property
    def by_cluster(self) -> Mapping[str, PinnedSweep]:
        """Cluster → the plan for it, in the order of the spec."""
        return {
            self.cluster: self,
            **{cluster: PinnedSweep.read(pin, self._store) for cluster, pin in self.others.items()},
        }

    def on(self, cluster: str) -> PinnedSweep:
        """Return the plan for one of the clusters.

        :raises PinError: if the sweep was not planned for it
        """
        try:
            return self.by_cluster[cluster]
        except KeyError:
            raise PinError(
                f"the plan of {self.sweep} is for {', '.join(self.by_cluster)}, not for {cluster}"
            ) from None

    @property
    def placements(self) -> Placements:
        """The clusters of the sweep's points."""
        return Placements(self.sweep, self._store.root)

    def placed_plan(self) -> Plan:
        """Return the plan with the jobs of each point on its cluster; the plan itself, if there is one cluster."""
        if not self.others:
            return self.plan()
        from airflow_megatron.plan.sweep_plan import placed_plan  # imported here as for plan()

        placed = {point: its.cluster for point, its in self.placements.read().items()}
        return placed_plan([one.plan() for one in self.by_cluster.values()], placed)

    @functools.cached_property
    def plan_environment(self) -> PlanEnvironment:
        """The pinned cluster profile and its files."""
        return PlanEnvironment.from_json(self._store.get(self._plan_environment), self._store)

    @functools.cached_property
    def outline(self) -> SweepOutline:
        """The outline of its DAGs: stages and notifiers."""
        return SweepOutline.from_json(self._store.get(self._outline))

    def use(self, dag_id: str, run_id: str) -> None:
        """Make this the plan that a run executes from now on."""
        self._store.set_newest(dag_id, run_id, self.pin, self._outline)

    def plan(self) -> Plan:
        """Return the plan with all its jobs."""
        from airflow_megatron.plan.sweep_plan import (
            Plan,  # imported here because most tasks need one job only, and the import of planning is slow
        )

        jobs = [self._job(data) for data in self._shared]
        for digest in self._objects:
            jobs += [self._job(data) for of_point in self._store.get(digest).values() for data in of_point]
        by_point = jobs_by_point(jobs)
        ordered = [job for point in ("", *self.points) for job in by_point.get(point, ())]
        several = bool(self.outline.settings.clusters)
        return Plan(self.sweep, self.cluster, self.points, tuple(ordered), several=several)

    @functools.cached_property
    def jobs_by_point(self) -> Mapping[str, Sequence[Job]]:
        """Point → its jobs; those of the whole sweep under the empty name."""
        return jobs_by_point(self.plan().jobs)

    def shared_jobs(self) -> list[Job]:
        """Return the jobs that run once for the sweep."""
        return [self._job(data) for data in self._shared]

    def jobs_of(self, point: str) -> list[Job]:
        """Return the jobs of a point, those of the whole sweep first.

        :raises PinError: if the plan does not have the point
        """
        try:
            index = self.points.index(point) // POINTS_IN_ONE_OBJECT
        except ValueError:
            hint = did_you_mean(point, self.points) or f"it has {', '.join(self.points[:8])} …"
            raise PinError(f"the plan of {self.sweep} has no point {point!r}; {hint}") from None
        own = self._store.get(self._objects[index])[point]
        return [self._job(data) for data in (*self._shared, *own)]

    def changes(self) -> list[str]:
        """Return the sources that have changed since planning: file names, and keys of the cluster profile."""
        found = []
        for path, text in ((self.file, self.text), *self.sources.items()):
            try:
                whole = str(Path(path).absolute())
                now = read_spec_file(path) if path == self.file else read_named_file(whole, self.file)
            except (OSError, NamedFileError):
                now = None
            if now != text:
                found.append(path if now is not None else f"{path} (gone)")
        try:
            live = PlanEnvironment.now(self.cluster)
        except SpecError as error:
            return [*found, f"cluster profile {self.cluster} ({error.problems[0].message})"]
        return [*found, *self.plan_environment.changes(live)]

    def _job(self, data: Mapping[str, Any]) -> Job:
        return Job.from_json({**data, "pin": self.pin})


@functools.lru_cache(maxsize=8)
def _plan_environment_of(pin: str, root: Path) -> PlanEnvironment:
    return PinnedSweep.read(pin, PinStore(root)).plan_environment


def plan_environment_of(job: Job) -> PlanEnvironment:
    """Return the pinned cluster profile and files of a job's run, or the current ones for a job without a run.

    :raises PinError: if the pinned copy cannot be read
    :raises SpecError: if the profile does not exist
    """
    if job.profile:
        return PlanEnvironment.now(ClusterProfile.model_validate(job.profile))
    return pinned_plan_environment(job.pin, job.cluster)


def pinned_plan_environment(pin: str, cluster: str) -> PlanEnvironment:
    """Return the cluster profile and files of a stored plan, or the current ones of a profile without a plan.

    :raises PinError: if the pinned copy cannot be read
    :raises SpecError: if the profile does not exist
    """
    return _plan_environment_of(pin, PinStore().root) if pin else PlanEnvironment.now(cluster)


def jobs_by_point(jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Return point → its jobs; those of the whole sweep under the empty name."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        found.setdefault(job.point, []).append(job)
    return found


def point_digest(jobs: Sequence[Job]) -> str:
    """Return a digest of the commands and inputs of a point's jobs."""
    text = json.dumps([[job.stage, job_digest(job)] for job in jobs])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
