"""The jobs of a sweep, as ``airflow-megatron plan --format json`` prints them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS, ReportedAs

SWEEP_WIDE: Final = "(sweep)"
"""Name of the point of a job that serves the whole sweep, such as data preparation."""

_LEARNING_RATE_NAMES: Final = frozenset(("lr", "learning_rate"))
_SEQ_LENGTH_NAMES: Final = frozenset(("seq_length", "seq_len", "sequence_length"))


@dataclass(frozen=True, slots=True)
class SweepJob:
    """The properties of a job that results need.

    :param name: unique in the sweep
    :param point: name of its point; :data:`SWEEP_WIDE` for a job without a point
    :param stage: name of its stage
    :param kind: name of its stage kind
    :param branch: the training branch it belongs to: ``pretrain``, ``cooldown_100M``, …
    :param run_dir: directory of that branch on the cluster
    :param parent_branch: for a training job that starts from another training's checkpoint (a cooldown): the branch
        of that training
    :param params: all its resolved parameters
    :param sweep_params: its values of the parameters that the sweep varies
    :param release: the Megatron release that defines its parameters
    :param start_iteration: the checkpoint that it starts from or works on
    :param source: for a training that continues a checkpoint from outside the sweep: its directory
    :param expect: ``oom`` if the spec expects it to run out of memory
    :param gpus: whether each of its processes has a GPU
    :param after: name of each job that it depends on, and what it waits for, as in the output of ``plan``
    :param measure: for a benchmark: as in :class:`airflow_megatron.spec.model.jobs.Job`
    """

    name: str
    point: str
    stage: str
    kind: str
    branch: str
    run_dir: str
    parent_branch: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    sweep_params: Mapping[str, Any] = field(default_factory=dict)
    release: str | None = None
    start_iteration: int | None = None
    source: str | None = None
    expect: str | None = None
    after: tuple[tuple[str, str], ...] = ()
    measure: Mapping[str, Any] = field(default_factory=dict)
    gpus: bool = True

    @property
    def reported_as(self) -> ReportedAs:
        """The part of the results that includes it; a kind whose package is not installed counts as an ordinary job."""
        kind = STAGE_KINDS.find(self.kind)
        return kind.reported_as if kind else "job"

    @property
    def learning_rate(self) -> float | None:
        """The peak learning rate; None if the parameters have none."""
        value = _named(self.params, _LEARNING_RATE_NAMES)
        if value is None:
            value = _named(self.sweep_params, _LEARNING_RATE_NAMES)
        return _number(value)

    @property
    def seq_length(self) -> int | None:
        """Tokens per sample; None if unknown. Megatron takes ``encoder_seq_length`` for it if it is given alone."""
        value = _number(_named(self.params, _SEQ_LENGTH_NAMES))
        if value is None:
            value = _number(self.params.get("encoder_seq_length"))
        return int(value) if value is not None else None

    @property
    def train_iters(self) -> int | None:
        """Iteration at which training ends; None if unknown."""
        value = _number(self.params.get("train_iters"))
        return int(value) if value is not None else None

    @property
    def nodes(self) -> int:
        """Number of nodes of the job."""
        return _count(self.params.get("nodes"))

    @property
    def processes(self) -> int:
        """Number of training processes, one for each GPU."""
        return self.nodes * _count(self.params.get("gpus_per_node"))

    @property
    def group(self) -> tuple[tuple[str, str], ...]:
        """The swept parameters except the learning rate: they identify points that differ only in the learning rate."""
        return tuple(
            (key, format_value(value))
            for key, value in sorted(self.sweep_params.items())
            if key.lower() not in _LEARNING_RATE_NAMES
        )


def read_jobs(jobs: Iterable[Mapping[str, Any]]) -> tuple[SweepJob, ...]:
    """Read the ``jobs`` of a plan.

    :param jobs: mappings with at least ``name``, ``stage`` and ``run_dir``. A training job that depends on a
        training job of its point is a branch of it.
    :returns: the jobs in the order given.
    :raises ValueError: if a job lacks one of these keys; names the job.
    """
    listed = list(jobs)
    by_name = {str(job.get("name")): job for job in listed}
    read = []
    for number, job in enumerate(listed):
        missing = [key for key in ("name", "stage", "run_dir") if not job.get(key)]
        if missing:
            raise ValueError(f"job {job.get('name') or number} of the plan has no {' and no '.join(missing)}")
        read.append(
            SweepJob(
                name=str(job["name"]),
                point=str(job.get("point") or SWEEP_WIDE),
                stage=str(job["stage"]),
                kind=str(job.get("kind") or "command"),
                branch=_branch(job),
                parent_branch=_parent_branch(job, by_name),
                run_dir=str(job["run_dir"]).rstrip("/") or "/",
                params=dict(job.get("params") or {}),
                sweep_params=dict(job.get("sweep_params") or {}),
                release=job.get("release"),
                gpus=job.get("gpus") is not False,
                start_iteration=job.get("iteration"),
                source=_source(job),
                expect=job.get("expect"),
                after=tuple(
                    (str(other.get("job")), str(other.get("until") or "finished"))
                    for other in job.get("depends_on") or ()
                ),
                measure=dict(job.get("measure") or {}),
            )
        )
    return tuple(read)


def run_directories(jobs: Iterable[SweepJob]) -> list[str]:
    """Return the run directories of the jobs in order, without duplicates."""
    return list(dict.fromkeys(job.run_dir for job in jobs))


def format_value(value: object) -> str:
    """Format a parameter's value for tables and legends: ``0.0003``, ``1e-05``, ``true``, ``1,2``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ",".join(format_value(item) for item in value)
    if isinstance(value, Mapping):
        return ",".join(f"{key}={format_value(item)}" for key, item in value.items())
    return "" if value is None else str(value)


def finite_value(value: object) -> object:
    """Return a value of a table for JSON, which has no infinity and no NaN: these become None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters for JSON, which has no infinity and no NaN: these become text."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else format_value(value)
    if isinstance(value, Mapping):
        return plain_values(value)
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _branch(job: Mapping[str, Any]) -> str:
    return str(job.get("branch") or job["stage"])


def _trains(job: Mapping[str, Any]) -> bool:
    kind = STAGE_KINDS.find(str(job.get("kind")))
    return kind is not None and kind.trains


def _parent_branch(job: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]]) -> str | None:
    if not _trains(job):
        return None
    for dependency in job.get("depends_on") or ():
        other = by_name.get(str(dependency.get("job")))
        if other is not None and _trains(other) and other.get("point") == job.get("point"):
            return _branch(other)
    return None


def _source(job: Mapping[str, Any]) -> str | None:
    source = job.get("source")
    if not isinstance(source, Mapping) or source.get("mode") != "continue" or job.get("kind") != "train":
        return None
    return str(source.get("path"))


def _named(params: Mapping[str, Any], names: frozenset[str]) -> Any:
    return next((value for key, value in params.items() if key.lower() in names), None)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1
