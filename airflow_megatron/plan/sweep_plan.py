"""The plan of a sweep: every job with its command, checked, and the digest that pins it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, TypeVar

import msgspec
from pydantic import BaseModel

from airflow_megatron.checks.sweeps.foreign import check_trainer
from airflow_megatron.checks.sweeps.notifiers import notifier_problems
from airflow_megatron.checks.sweeps.trackers import tracker_problems
from airflow_megatron.checks.sweeps.unread_keys import unknown_arguments, unused_axes
from airflow_megatron.errors import RegistryError
from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.megatron.commands.commands import (
    job_command,
    job_files,
    launches_itself,
    required_outputs,
)
from airflow_megatron.megatron.trainers.trainer_table import trainer_table
from airflow_megatron.plan.job_names import job_called
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.submission_checks import check_jobs
from airflow_megatron.plan.sweep_cluster import sweep_cluster, sweep_clusters
from airflow_megatron.requirements.file_owners import with_file_owners
from airflow_megatron.requirements.queue_estimates import gpu_hours
from airflow_megatron.requirements.training_arguments import JobArguments
from airflow_megatron.requirements.training_estimates import Estimates, job_estimates
from airflow_megatron.results.readings.plan_rows import plan_row
from airflow_megatron.slurm.submission.job_script import JobScriptError
from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.foreign.foreign_sweep import ForeignSweep
from airflow_megatron.spec.model.schema import declarations
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS
from airflow_megatron.spec.model.trainers import TRAINERS
from airflow_megatron.spec.native.profile_places import ProfilePlaces
from airflow_megatron.spec.native.sweep import NativeSweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.sweep import Point, Sweep

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _encoder(order: Literal["deterministic"] | None = None) -> msgspec.json.Encoder:
    """Return an encoder that also encodes sections of the schema, each once, because jobs of a stage share
    sections.
    """
    of_section = msgspec.json.Encoder(order=order)
    written: dict[int, tuple[BaseModel, msgspec.Raw]] = {}

    def plain(value: object) -> object:
        if not isinstance(value, BaseModel):
            raise TypeError(f"{value!r} is not a plain value")
        known = written.get(id(value))
        if known is None:
            # keep the section, so that no other object gets its id
            section = value.model_dump(exclude_none=True, exclude_defaults=True)
            known = written[id(value)] = value, msgspec.Raw(of_section.encode(section))
        return known[1]

    return msgspec.json.Encoder(enc_hook=plain, order=order)


_ROWS_AT_ONCE: Final = 16
_ROW_INDENT: Final = b"\n    "


def digest_of(encoded_jobs: Iterable[bytes | bytearray]) -> str:
    """Return the digest of a plan, by :meth:`Plan.encoded_jobs`."""
    hashed = hashlib.sha256()
    for encoded in encoded_jobs:
        hashed.update(encoded)
    return hashed.hexdigest()[:16]


@dataclass(frozen=True)
class PlanSummary:
    """Totals over all jobs of a plan.

    :param points: the number of points
    :param gpu_hours: maximum GPU-hours with one attempt per job
    :param no_estimates: why there are no estimates, None if there are some
    """

    sweep: str
    digest: str
    cluster: str
    points: int
    gpu_hours: float
    warnings: tuple[Problem, ...]
    no_estimates: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the output of ``plan --format json``."""
        return {
            "sweep": self.sweep,
            "digest": self.digest,
            "cluster": self.cluster,
            "points": self.points,
            "gpu_hours": self.gpu_hours,
            "warnings": [str(warning) for warning in self.warnings],
            **({"no_estimates": self.no_estimates} if self.no_estimates else {}),
        }

    @property
    def head(self) -> bytes:
        """The beginning of :meth:`Plan.json_text`, up to the first row."""
        text = msgspec.json.format(msgspec.json.encode(self.to_json()), indent=2)
        return text.rstrip(b"}").rstrip() + b',\n  "jobs": ['


@dataclass(frozen=True)
class Plan:
    """The resolved jobs of (some) points of a sweep.

    :param sweep: name of the sweep
    :param cluster: name of the cluster profile
    :param points: names of the points, in order
    :param jobs: all jobs; those that run once for the sweep come first
    :param warnings: warnings of the checks: valid settings that are probably mistakes
    :param estimates: estimated needs of jobs by name, as far as they can be estimated
    :param several: whether the spec names several clusters
    """

    sweep: str
    cluster: str
    points: tuple[str, ...]
    jobs: tuple[Job, ...]
    warnings: tuple[Problem, ...] = field(default=(), compare=False)
    estimates: Estimates = field(default_factory=lambda: Estimates({}, {}), compare=False)
    several: bool = field(default=False, compare=False)

    @property
    def digest(self) -> str:
        """Shortened SHA-256 over all resolved values; equal plans have equal digests."""
        return digest_of(self.encoded_jobs())

    def encoded_jobs(self, first: int = 0) -> Iterator[bytes | bytearray]:
        """Yield the input of the digest, starting at a job: all resolved values of each job, valid until the next
        iteration.
        """
        encoder = _encoder("deterministic")
        encoded = bytearray()
        for job in self.jobs[first:]:
            encoder.encode_into(msgspec.structs.replace(job, pin="") if job.pin else job, encoded)
            yield encoded

    def jobs_of(self, point: str) -> list[Job]:
        """Return the jobs of a point, those of the whole sweep included."""
        return [job for job in self.jobs if job.point in ("", point)]

    def job(self, name: str) -> Job:
        """Return the job called ``name``; see :func:`.job_called`.

        :raises KeyError: with the nearest names, if there is none
        """
        return job_called(self.jobs, name)

    def to_json(self) -> dict[str, Any]:
        """Return the output of ``plan --format json``."""
        return {**self.summary().to_json(), "jobs": [self._row(job) for job in self.jobs]}

    def json_text(self) -> Iterator[bytes]:
        """Yield :meth:`to_json` as JSON in UTF-8 with one line for each job, in pieces, because all rows at once
        could need gigabytes.
        """
        yield self.summary().head
        yield from self.rows_text()
        yield b"\n  ]\n}\n" if self.jobs else b"]\n}\n"

    def rows_text(self, first: int = 0, *, continued: bool = False) -> Iterator[bytes]:
        """Yield the rows of the jobs from one on, formatted as in :meth:`json_text`.

        :param continued: whether other rows precede them
        """
        encoder = _encoder()
        for start in range(first, len(self.jobs), _ROWS_AT_ONCE):
            rows = bytearray()
            for job in self.jobs[start : start + _ROWS_AT_ONCE]:
                rows += b"," + _ROW_INDENT
                encoder.encode_into(self._row(job), rows, -1)
            yield bytes(rows) if continued or start > first else bytes(rows[1:])

    def summary(self) -> PlanSummary:
        """Return the output of ``plan --format json`` before the jobs."""
        return PlanSummary(
            *(self.sweep, self.digest, self.cluster, len(self.points), gpu_hours(self.jobs).hours),
            *(self.warnings, self.estimates.unknown_gpu),
        )

    def _row(self, job: Job) -> dict[str, Any]:
        row = plan_row(job)
        row["array"] = job.array
        row["start"] = str(job.start) if job.start else None
        row["cancel"] = str(job.cancel) if job.cancel else None
        row["finish"] = str(job.finish) if job.finish else None
        if (estimate := self.estimates.jobs.get(job.name)) is not None:
            row["estimate"] = estimate.to_json()
        elif job.name in self.estimates.missing:
            row["no_estimate"] = self.estimates.missing[job.name]
        return row


def _reports_other_packages(
    function: Callable[Concatenate[Sweep, Parameters], Result],
) -> Callable[Concatenate[Sweep, Parameters], Result]:
    """Report an exception of another package's class as a problem of the spec that uses it."""

    @functools.wraps(function)
    def reporting(sweep: Sweep, /, *words: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            return function(sweep, *words, **named)
        except RegistryError as error:
            hint = "correct or uninstall that package"
            raise SpecError(sweep.document.problem((), str(error), hint)) from error

    return reporting


def plan_point(
    sweep: Sweep, point: Point, cluster: ClusterProfile, arguments: JobArguments | None = None
) -> list[Job]:
    """Return the jobs of a point with their commands.

    :param arguments: keeps the Megatron arguments of the jobs, for checks
    :raises SpecError: with file and line
    """
    return with_file_owners(
        _with_commands(sweep, sweep.jobs(point, cluster), arguments or JobArguments(cluster))
    )


@_reports_other_packages
def plan_sweep(
    sweep: Sweep,
    cluster: ClusterProfile | None = None,
    points: Sequence[Point] | None = None,
    arguments: JobArguments | None = None,
) -> Plan:
    """Return the plan of a sweep, or of some of its points.

    :param arguments: keeps the Megatron arguments of the jobs, for checks
    :raises SpecError: with file and line
    """
    cluster = cluster or sweep_cluster(sweep)
    chosen = sweep.points if points is None else tuple(points)
    jobs = _with_commands(sweep, sweep.shared_jobs(cluster), arguments or JobArguments(cluster))
    shared = {job.name for job in jobs}
    for point in chosen:
        for job in plan_point(sweep, point, cluster, arguments):
            if job.point or job.name not in shared:
                jobs.append(job)
    return Plan(
        sweep.name,
        cluster.name,
        tuple(point.name for point in chosen),
        tuple(jobs),
        several=bool(sweep.settings.clusters),
    )


@_reports_other_packages
def check_document(sweep: Sweep, cluster: ClusterProfile | None = None) -> None:
    """Run the checks that do not need the expanded points.

    :param cluster: cluster profile; default: those of the spec
    :raises SpecError: with every problem found
    """
    if cluster is None:
        for profile in sweep_clusters(sweep):
            check_document(sweep, profile)
        return
    if isinstance(sweep, ForeignSweep):
        check_trainer(sweep, cluster)
    if not isinstance(sweep, NativeSweep):
        if problems := [*notifier_problems(sweep), *tracker_problems(sweep)]:
            raise SpecError(problems)
        return
    spec = sweep.spec
    if spec.entry is not None and not TRAINERS[spec.trainer].has_entries:
        hint = f"write trainer: {' or '.join(name for name, one in TRAINERS.usable().items() if one.has_entries)}"
        message = f"the trainer {spec.trainer} has no {spec.entry}"
        raise SpecError(sweep.document.problem(("entry",), message, hint))
    try:
        table = trainer_table(
            *(spec.trainer, spec.release, cluster, declarations(spec.extra_arguments), spec.entry),
            search=any(STAGE_KINDS[stage.kind].searches for stage in spec.stages.values()),
        )
    except ArgumentError as error:
        places = {spec.release: ("release",), spec.entry: ("entry",)}
        place = places.get(error.name, ("extra_arguments", error.name))
        raise SpecError(sweep.document.problem(place, str(error))) from error
    except (OSError, ValueError) as error:
        section = f"trainers: {{{spec.trainer}: {{arguments_table: …}}}}"
        message = f"cluster {cluster.name}, {section}: {error}"
        raise SpecError(sweep.document.problem(("cluster",), message)) from error
    problems = [
        *unknown_arguments(sweep, table),
        *unused_axes(sweep, table),
        *notifier_problems(sweep),
        *tracker_problems(sweep),
    ]
    if problems:
        raise SpecError(problems)


def check_expressions(sweep: Sweep, cluster: ClusterProfile | None = None) -> None:
    """Evaluate every expression at the first point, to report undefined names before the sweep is planned.

    :param cluster: cluster profile; default: those of the spec
    :raises SpecError: with the first expression that fails
    """
    for profile in [cluster] if cluster else sweep_clusters(sweep):
        sweep.shared_jobs(profile)
        sweep.jobs(sweep.points[0], profile)


@_reports_other_packages
def check_sweep(
    sweep: Sweep, cluster: ClusterProfile | None = None, points: Sequence[Point] | None = None
) -> Plan:
    """Run all checks before submission.

    They cover arguments, names, expressions and scripts of each job; checkpoints and schedules of jobs that depend on
    each other; and the cluster's limits.

    :param points: some of the sweep's points; default: all
    :return: the plan with its warnings, if there is no error
    :raises SpecError: with every problem found
    """
    cluster = cluster or sweep_cluster(sweep)
    check_document(sweep, cluster)
    if cluster.signatures:  # the shipped signatures need no check
        from airflow_megatron.slurm.verdicts.signatures import site_catalogue

        site_catalogue(tuple(cluster.signatures))
    arguments = JobArguments(cluster)
    plan = plan_sweep(sweep, cluster, points, arguments)
    check_scripts(sweep, plan.jobs, cluster)
    estimates = job_estimates(plan.jobs, arguments)
    errors, warnings = check_jobs(sweep, plan.jobs, len(plan.points), arguments, estimates.jobs)
    if errors:
        raise SpecError(errors)
    return dataclasses.replace(
        plan, warnings=tuple(sorted({*sweep.warnings(), *warnings})), estimates=estimates
    )


def check_on_clusters(
    sweep: Sweep, clusters: Sequence[ClusterProfile], points: Sequence[Point] | None = None
) -> list[Plan]:
    """Run all checks for each of several clusters; return a plan for each, in order.

    :raises SpecError: with every problem found, each once
    """
    plans: list[Plan] = []
    problems: list[Problem] = []
    for cluster in clusters:
        try:
            plans.append(check_sweep(sweep, cluster, points))
        except SpecError as error:
            problems += error.problems
    if len(clusters) > 1 and plans:
        problems += _login_node_problems(sweep, plans[0])
    if problems:
        raise SpecError(list(dict.fromkeys(problems)))
    return plans


def _login_node_problems(sweep: Sweep, plan: Plan) -> Iterator[Problem]:
    """Yield stages of the whole sweep that would run on the login node for each of several points at once."""
    for job in plan.jobs:
        if not job.point and job.stage_kind.runs_first_on_login_node(job):
            yield sweep.document.problem(
                sweep.place_of(job.stage, "where"),
                f"the stage {job.stage} runs on the login node, and the runs of several points would start it there at "
                "the same time, because the sweep names several clusters",
                "write where: job, and run airflow-megatron prefetch SPEC --cluster NAME for clusters without "
                "internet on nodes",
            )


def placed_plan(plans: Sequence[Plan], placed: Mapping[str, str]) -> Plan:
    """Return one plan with the jobs of each point on its cluster, for readers of results.

    Points without a cluster are placed on the first one in use, where no results of them exist. Jobs that run once for
    the sweep are those of all clusters in use, so their names repeat.

    :param plans: of the same points, one for each cluster
    :param placed: point → name of its cluster
    """
    by_cluster = {plan.cluster: plan for plan in plans}
    first = plans[0]
    if len(plans) == 1:
        return first
    used = [name for name in by_cluster if any(placed.get(point) == name for point in first.points)]
    used = used or [first.cluster]
    jobs: list[Job] = []
    own: dict[tuple[str, str], list[Job]] = {}
    for name in used:
        for job in by_cluster[name].jobs:
            if job.point:
                own.setdefault((name, job.point), []).append(job)
            else:
                jobs.append(job)
    for point in first.points:
        cluster = placed.get(point, "")
        jobs += own.get((cluster if cluster in used else used[0], point), ())
    warnings = tuple(dict.fromkeys(warning for plan in plans for warning in plan.warnings))
    return Plan(first.sweep, ", ".join(by_cluster), first.points, tuple(jobs), warnings, several=True)


def check_scripts(sweep: Sweep, jobs: Iterable[Job], cluster: ClusterProfile) -> None:
    """Render the script of one job for each stage and template.

    Files of other tools may name templates that exist only on another machine. For such sweeps a missing template is a
    warning, so that the jobs can be inspected; the submission refuses them.
    """
    rendered: set[tuple[str, str | None]] = set()
    for job in jobs:
        kind = (job.stage, job.template)
        if kind in rendered or (job.template and not isinstance(sweep, NativeSweep)):
            continue
        rendered.add(kind)
        try:
            job_script(job, cluster, 1)
        except (JobScriptError, ValueError) as error:
            place = sweep.place_of(job.stage, "template")
            raise SpecError(sweep.document.problem(place, str(error))) from error


def _with_commands(sweep: Sweep, jobs: Iterable[Job], arguments: JobArguments) -> list[Job]:
    planned: list[Job] = []
    cluster = arguments.cluster
    for job in jobs:
        try:
            own = not job.runs_trainer or job.command
            given = None if own else (arguments.of(job), arguments.table(job))
            command = job_command(job, cluster, given)
            files = job_files(job, cluster)
        except CommandError as error:
            raise SpecError(_command_problem(sweep, job, cluster, error)) from error
        outputs, own_launch = required_outputs(job), launches_itself(job, cluster)
        if (job.command, job.outputs, job.files, job.own_launch) != (command, outputs, files, own_launch):
            job = msgspec.structs.replace(
                job, command=command, outputs=outputs, files=files, own_launch=own_launch
            )
        planned.append(job)
    return _with_environment_of_earlier(planned, cluster)


def _command_problem(sweep: Sweep, job: Job, cluster: ClusterProfile, error: CommandError) -> Problem:
    """Return the problem of an invalid command, where its value is given: in the spec or in the cluster's profile."""
    place = sweep.place_at(job.point, job.stage, error.name)
    in_spec = place[-1:] == (error.name,) and error.name != "params"
    if not in_spec and isinstance(sweep, NativeSweep):
        profile = ProfilePlaces(cluster)
        if given := profile.of_argument(job.trainer, error.name):
            return profile.problem(given, str(error))
        kind = job.stage_kind
        for name in job.params:
            own = sweep.place_of(job.stage, name)
            if own[0] != "stages" or own[2:] != ("params", name) or name in (kind.params or ()):
                continue
            wanted = (kind.params or ()) if error.name == "params" else (error.name,)
            if hint := did_you_mean(name, wanted, limit=1):
                return sweep.document.problem(
                    own, f"stage {job.stage}: {job.kind} does not read {name}", hint
                )
    add = f"; add {sweep.key_of(error.name, error.section)}" if error.section else ""
    return sweep.document.problem(place, f"{sweep.in_its_keys(error.message, (error.name,))}{add}")


def _with_environment_of_earlier(jobs: list[Job], cluster: ClusterProfile) -> list[Job]:
    """Return jobs with the variables that stages such as ``prefetch`` give all jobs that follow them.

    :param jobs: parents first
    """
    given: dict[str, Mapping[str, str]] = {}
    changed: list[Job] = []
    for job in jobs:
        inherited = {
            name: value
            for dependency in job.depends_on
            for name, value in given.get(dependency.job, {}).items()
        }
        passed_on = {**inherited, **job.stage_kind.environment_of_later(job, cluster)}
        if passed_on:
            given[job.name] = passed_on
        changed.append(msgspec.structs.replace(job, env={**inherited, **job.env}) if inherited else job)
    return changed
