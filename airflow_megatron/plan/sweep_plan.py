"""The plan of a sweep: every job with its command, checked, and the digest that pins it."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from pydantic import BaseModel

from airflow_megatron.checks.sweeps.foreign import check_trainer
from airflow_megatron.checks.sweeps.notifiers import notifier_problems
from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.arguments.tables import ArgumentError, argument_table
from airflow_megatron.megatron.commands.commands import (
    job_command,
    job_files,
    launches_itself,
    required_outputs,
)
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.megatron.trainers.trainer_table import trainer_table
from airflow_megatron.plan.job_names import job_called
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.submission_checks import check_jobs
from airflow_megatron.plan.sweep_cluster import sweep_cluster
from airflow_megatron.requirements.file_owners import with_file_owners
from airflow_megatron.requirements.queue_estimates import gpu_hours
from airflow_megatron.requirements.training_arguments import JobArguments
from airflow_megatron.requirements.training_estimates import Estimates, job_estimates
from airflow_megatron.slurm.submission.job_script import JobScriptError
from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean, suggestion
from airflow_megatron.spec.documents.list_texts import key_in_place_of_value
from airflow_megatron.spec.expressions.resolution import template_names
from airflow_megatron.spec.foreign.foreign_sweep import ForeignSweep
from airflow_megatron.spec.model.schema import declarations
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS
from airflow_megatron.spec.model.trainers import TRAINERS
from airflow_megatron.spec.native.sweep import NativeSweep
from airflow_megatron.spec.native.sweep_grammar import swept_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.documents.yaml_document import KeyPath
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import SweepSpecSection
    from airflow_megatron.spec.model.sweep import Point, Sweep


def _encoder(order: Literal["deterministic"] | None = None) -> msgspec.json.Encoder:
    """Return an encoder that writes sections of the schema too, each once: the jobs of a stage share theirs."""
    written: dict[int, tuple[BaseModel, dict[str, Any]]] = {}

    def plain(value: object) -> object:
        if not isinstance(value, BaseModel):
            raise TypeError(f"{value!r} is no plain value")
        known = written.get(id(value))
        if known is None:
            # with the section itself, so that no other one gets its id
            known = written[id(value)] = value, value.model_dump(exclude_none=True, exclude_defaults=True)
        return known[1]

    return msgspec.json.Encoder(enc_hook=plain, order=order)


_ROWS_AT_ONCE: Final = 256


@dataclass(frozen=True)
class Plan:
    """The resolved jobs of (some) points of a sweep.

    :param sweep: name of the sweep
    :param cluster: name of the cluster profile
    :param points: names of the points, in order
    :param jobs: all jobs; those that run once for the sweep come first
    :param warnings: what the checks found allowed but probably not meant
    :param estimates: what jobs will need, by name, as far as it can be estimated
    """

    sweep: str
    cluster: str
    points: tuple[str, ...]
    jobs: tuple[Job, ...]
    warnings: tuple[Problem, ...] = field(default=(), compare=False)
    estimates: Estimates = field(default_factory=lambda: Estimates({}, {}), compare=False)

    @property
    def digest(self) -> str:
        """SHA-256, shortened, over everything resolved: equal plans have equal digests."""
        hashed, encoder = hashlib.sha256(), _encoder("deterministic")
        for job in self.jobs:
            hashed.update(encoder.encode(msgspec.structs.replace(job, pin="") if job.pin else job))
        return hashed.hexdigest()[:16]

    def jobs_of(self, point: str) -> list[Job]:
        """Return the jobs of a point, those of the whole sweep included."""
        return [job for job in self.jobs if job.point in ("", point)]

    def job(self, name: str) -> Job:
        """Return the job called ``name``; see :func:`.job_called`.

        :raises KeyError: with the nearest names when there is none
        """
        return job_called(self.jobs, name)

    def to_json(self) -> dict[str, Any]:
        """Return what ``plan --format json`` prints."""
        return {**self._summary(), "jobs": [self._row(job) for job in self.jobs]}

    def json_text(self) -> Iterator[bytes]:
        """Yield :meth:`to_json` as indented JSON in UTF-8, in pieces: all rows at once would take gigabytes."""
        encoder = _encoder()
        head = msgspec.json.format(encoder.encode(self._summary()), indent=2).rstrip(b"}").rstrip()
        yield head + b',\n  "jobs": ['
        separator = b""
        for first in range(0, len(self.jobs), _ROWS_AT_ONCE):
            rows = [self._row(job) for job in self.jobs[first : first + _ROWS_AT_ONCE]]
            # indented as in the whole text
            text = msgspec.json.format(encoder.encode({"jobs": rows}), indent=2)
            yield separator + text.removeprefix(b'{\n  "jobs": [').removesuffix(b"\n  ]\n}")
            separator = b","
        yield b"\n  ]\n}\n" if self.jobs else b"]\n}\n"

    def _summary(self) -> dict[str, Any]:
        return {
            "sweep": self.sweep,
            "digest": self.digest,
            "cluster": self.cluster,
            "points": len(self.points),
            "gpu_hours": gpu_hours(self.jobs).hours,
            "warnings": [str(warning) for warning in self.warnings],
            **({"no_estimates": self.estimates.unknown_gpu} if self.estimates.unknown_gpu else {}),
        }

    def _row(self, job: Job) -> dict[str, Any]:
        row = plan_row(job)
        row["array"] = job.array
        for name, condition in (("start", job.start), ("cancel", job.cancel), ("finish", job.finish)):
            row[name] = str(condition) if condition else None
        if job.name in self.estimates.jobs:
            row["estimate"] = self.estimates.jobs[job.name].to_json()
        elif job.name in self.estimates.missing:
            row["no_estimate"] = self.estimates.missing[job.name]
        return row


def plan_row(job: Job) -> dict[str, Any]:
    """Return a job as the plan and the result tables show it."""
    return {
        "name": job.name,
        "point": job.point,
        "stage": job.stage,
        "kind": job.kind,
        "branch": job.branch,
        "params": dict(job.params),
        "sweep_params": {name: job.params[name] for name in job.swept if name in job.params},
        "depends_on": [dependency.to_plan() for dependency in job.depends_on],
        "run_dir": job.run_dir,
        "command": list(job.command),
        "release": job.release,
        **({"iteration": job.iteration} if job.iteration is not None else {}),
        **({"source": dataclasses.asdict(job.source)} if job.source else {}),
        **({"expect": job.expect} if job.expect else {}),
        **({"measure": dict(job.measure)} if job.measure else {}),
        **({} if job.slurm.gpus_per_node else {"gpus": False}),
    }


def plan_point(
    sweep: Sweep, point: Point, cluster: ClusterProfile, arguments: JobArguments | None = None
) -> list[Job]:
    """Return the jobs of a point with their commands.

    :param arguments: keeps the Megatron arguments of the jobs, for checks
    :raises SpecError: naming file and line
    """
    return with_file_owners(
        _with_commands(sweep, sweep.jobs(point, cluster), arguments or JobArguments(cluster))
    )


def plan_sweep(
    sweep: Sweep,
    cluster: ClusterProfile | None = None,
    points: Sequence[Point] | None = None,
    arguments: JobArguments | None = None,
) -> Plan:
    """Return the plan of a sweep, or of some of its points.

    :param arguments: keeps the Megatron arguments of the jobs, for checks
    :raises SpecError: naming file and line
    """
    cluster = cluster or sweep_cluster(sweep)
    chosen = sweep.points if points is None else tuple(points)
    jobs = _with_commands(sweep, sweep.shared_jobs(cluster), arguments or JobArguments(cluster))
    shared = {job.name for job in jobs}
    for point in chosen:
        for job in plan_point(sweep, point, cluster, arguments):
            if job.point or job.name not in shared:
                jobs.append(job)
    return Plan(sweep.name, cluster.name, tuple(point.name for point in chosen), tuple(jobs))


def check_document(sweep: Sweep, cluster: ClusterProfile | None = None) -> None:
    """Check what can be known without expanding the points.

    :param cluster: the profile of the spec's cluster when left out
    :raises SpecError: with every problem found
    """
    cluster = cluster or sweep_cluster(sweep)
    if isinstance(sweep, ForeignSweep):
        check_trainer(sweep, cluster)
    if not isinstance(sweep, NativeSweep):
        if problems := list(notifier_problems(sweep)):
            raise SpecError(problems)
        return
    spec = sweep.spec
    if spec.entry is not None and not TRAINERS[spec.trainer].has_entries:
        hint = (
            f"write trainer: {' or '.join(name for name in TRAINERS.names() if TRAINERS[name].has_entries)}"
        )
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
    problems = [*_unknown_arguments(sweep, table), *_unused_axes(sweep, table), *notifier_problems(sweep)]
    if problems:
        raise SpecError(problems)


def check_expressions(sweep: Sweep, cluster: ClusterProfile | None = None) -> None:
    """Evaluate every expression at the first point: an undefined name is an error before anything is planned.

    :param cluster: the profile of the spec's cluster when left out
    :raises SpecError: with the first expression that fails
    """
    cluster = cluster or sweep_cluster(sweep)
    sweep.shared_jobs(cluster)
    sweep.jobs(sweep.points[0], cluster)


def check_sweep(
    sweep: Sweep, cluster: ClusterProfile | None = None, points: Sequence[Point] | None = None
) -> Plan:
    """Check everything that can be known before submission.

    That is arguments, names, expressions and scripts of each job; checkpoints and schedules of jobs that build on each
    other; and the cluster's limits.

    :param points: some of the sweep's points; all when left out
    :return: the plan with its warnings, when nothing is wrong
    :raises SpecError: with every problem found
    """
    cluster = cluster or sweep_cluster(sweep)
    check_document(sweep, cluster)
    if cluster.signatures:  # the shipped ones are right
        from airflow_megatron.slurm.verdicts.signatures import site_catalogue

        site_catalogue(tuple(cluster.signatures))
    arguments = JobArguments(cluster)
    plan = plan_sweep(sweep, cluster, points, arguments)
    _check_scripts(sweep, plan.jobs, cluster)
    estimates = job_estimates(plan.jobs, arguments)
    errors, warnings = check_jobs(sweep, plan.jobs, len(plan.points), arguments, estimates.jobs)
    if errors:
        raise SpecError(errors)
    return dataclasses.replace(
        plan, warnings=tuple(sorted({*sweep.warnings(), *warnings})), estimates=estimates
    )


def _check_scripts(sweep: Sweep, jobs: Iterable[Job], cluster: ClusterProfile) -> None:
    """Render the script of one job for each stage and template.

    Other tools' files name templates that may only be on another machine: their sweeps warn about these, so that the
    jobs can still be looked at; submitting one refuses it.
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
            place = sweep.place_of(job.stage, error.name)
            raise SpecError(sweep.document.problem(place, str(error))) from error
        outputs, own_launch = required_outputs(job), launches_itself(job, cluster)
        if (job.command, job.outputs, job.files, job.own_launch) != (command, outputs, files, own_launch):
            job = msgspec.structs.replace(
                job, command=command, outputs=outputs, files=files, own_launch=own_launch
            )
        planned.append(job)
    return planned


def _unknown_arguments(sweep: NativeSweep, table: ArgumentTable) -> list[Problem]:
    """Report keys of ``megatron:`` sections that the trainer does not know."""
    spec = sweep.spec
    sections: list[tuple[KeyPath, Iterable[str]]] = [(("megatron",), spec.megatron)]
    sections += [(("stages", name, "megatron"), stage.megatron) for name, stage in spec.stages.items()]
    return [
        sweep.document.problem((*path, name), *_unknown_argument(name, table, spec))
        for path, names in sections
        for name in names
        if table.get(name) is None
    ]


def _unknown_argument(name: str, table: ArgumentTable, spec: SweepSpecSection) -> tuple[str, str]:
    """Return what is wrong with an argument that the trainer does not know, and the hint."""
    if argument_table(spec.release).get(name) is not None:
        message = f"the trainer {spec.trainer} does not take {spec.release}'s argument {name!r}"
        return message, "drop it, or use another trainer"
    hint = (
        key_in_place_of_value(name) or suggestion(table.nearest(name)) or "own variables stand under params:"
    )
    return f"{_parser(spec, table)} has no argument {name!r}", hint


def _parser(spec: SweepSpecSection, table: ArgumentTable) -> str:
    """Return what a message calls the parser that the trainer's arguments are for."""
    return trainer_called(spec.trainer).parser_name(table, spec.release)


def _unused_axes(sweep: NativeSweep, table: ArgumentTable) -> list[Problem]:
    """Report swept keys that nothing reads: neither Megatron arguments nor used in an expression."""
    spec = sweep.spec
    used = template_names(spec.model_dump(exclude_none=True, exclude={"notify"}))
    problems = []
    for key in swept_keys(spec.sweep):
        stage, _, name = key.rpartition(".")
        if stage and stage not in spec.stages:
            hint = did_you_mean(stage, spec.stages) or f"stages: {', '.join(spec.stages)}"
            message = f"{key!r} names a stage {stage!r}, which does not exist"
        elif name in used or table.get(name) or name in spec.params:
            continue
        else:
            message = (
                f"nothing reads the swept value {key!r}: "
                f"it is no argument of {_parser(spec, table)} and in no expression"
            )
            hint = (
                key_in_place_of_value(name)
                or suggestion(table.nearest(name))
                or "use it in an expression, or drop it"
            )
        place = next(
            (path for path in sweep.document.positions if path[:1] == ("sweep",) and path[-1] == key),
            ("sweep",),
        )
        problems.append(sweep.document.problem(place, message, hint))
    return problems
