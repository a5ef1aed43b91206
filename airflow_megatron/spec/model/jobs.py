"""Jobs: one stage at one point, with all values resolved."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_megatron.spec.layout.run_layout import RunLayout, checkpoint_dir_of, log_pattern_of, stage_dir_of
from airflow_megatron.spec.model.checkpoint_sources import CheckpointSource
from airflow_megatron.spec.model.conditions import Condition, Event
from airflow_megatron.spec.model.resources import JobResources
from airflow_megatron.spec.model.schema import (
    ContainerSection,
    HealthSection,
    RestartSection,
    StageKindName,
    TrainerName,
)
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS, StageKind
from airflow_megatron.spec.model.trainers import TRAINERS, Trainer
from airflow_megatron.spec.model.training_length import last_iteration

if TYPE_CHECKING:
    from collections.abc import Mapping

_TUPLES = ("explicit_arguments", "variables", "swept", "command", "outputs", "wrapper", "wrapped_ranks")
_OMITTED_WHEN_EMPTY = (
    *("pin", "profile", "wrapper", "wrapped_ranks"),
    *("monitor", "entry", "delivered", "container", "ahead"),
)
_CONDITIONS = ("start", "cancel", "finish")


class Dependency(msgspec.Struct, frozen=True):
    """A dependency of a job.

    :param job: name of the other job
    :param stage: its stage instance
    :param until: ``finished``, ``checkpoint``, ``log`` or ``condition``
    :param iteration: the checkpoint's iteration
    :param pattern: the regular expression that is searched in the log
    """

    job: str
    stage: str
    until: str = "finished"
    iteration: int | None = None
    pattern: str | None = None

    def to_plan(self) -> dict[str, str]:
        """Return the form in the output of ``plan --format json``."""
        detail = {"checkpoint": f"checkpoint {self.iteration}", "log": f"log {self.pattern}"}
        return {"job": self.job, "until": detail.get(self.until, self.until)}


class Job(msgspec.Struct, frozen=True, eq=False):
    """One stage at one point.

    It is not a dataclass, because a plan has hundreds of thousands of jobs, and a dataclass with so many fields takes
    ten times as long to create and replace.

    :param name: unique in the sweep
    :param sweep: name of the sweep
    :param point: name of the point, empty for a job of the whole sweep
    :param stage: name of the stage instance
    :param kind: kind of the stage
    :param cluster: name of the cluster profile
    :param trainer: the trainer of the sweep
    :param release: the Megatron release that defines its arguments
    :param branch: stage instance of its training branch, or None
    :param params: every resolved value: variables, Megatron arguments, swept values
    :param explicit_arguments: the params in ``megatron:`` sections
    :param variables: the params in ``params:`` sections, and resources
    :param swept: the params that the sweep varies
    :param depends_on: its dependencies
    :param run_dir: absolute directory on the cluster
    :param parent_dir: run directory of the parent's branch, if it has one
    :param iteration: checkpoint iteration from which a training continues, or which a convert or evaluate job processes
    :param source: a checkpoint or model outside the sweep that it starts from or processes, instead of its parent's
    :param command: words of the user's command; empty for that of the kind
    :param outputs: files that must exist at the end, absolute
    :param slurm: resources, resolved
    :param env: environment of the command
    :param restart: the restart policy
    :param health: checks of a training's log while it runs; None for none
    :param template: sbatch template, or None for that of the kind
    :param script: a complete sbatch script of the user, submitted instead of a rendered template
    :param log: absolute path of the job's log; None for that of the attempt
    :param work_dir: working directory of such a script; None for the run directory
    :param start: condition before its submission
    :param start_every_attempt: check ``start`` again before every further attempt
    :param cancel: condition that stops it while it is queued or running
    :param finish: condition that makes it finished, instead of the rule of the kind
    :param events: the events to detect while it runs
    :param check_interval: seconds between two runs of a condition's command; None for every poll of the cluster
    :param extra_arguments: declarations of arguments that the release does not have, by flag
    :param expect: ``oom`` if it is expected to run out of memory
    :param measure: for a benchmark: ``skip``, the first iterations that do not count; ``reported``, values measured
        elsewhere; ``hidden``, the params that only these two read; ``gpu``, the cluster's GPU model
    :param max_jobs: maximum number of jobs of the sweep in the queue, None for no limit
    :param files: files that its script writes before the command starts: path → text
    :param secrets: environment variables that its script reads from private files: name → path on the cluster
    :param delivered: environment variables whose values Airflow delivers at each submission: name → source, see
        :func:`airflow_megatron.spec.model.secret_sources.secret_sources`
    :param ahead: number of following stages that are queued behind it while it runs
    :param own_launch: whether its command starts the processes itself, so that it is run once
    :param array: maximum number of the stage's jobs that run at once as tasks of one job array; None: each is
        submitted alone
    :param entry: upstream's training script, empty for ``pretrain_gpt.py``
    :param wrapper: words before the training command
    :param wrapped_ranks: the ranks that use the wrapper; empty for all
    :param container: its container; None for that of the cluster profile
    :param monitor: ``every``, seconds between two samples of the GPUs, and the ``command``; empty for none
    :param pin: digest of the pinned plan from which it was read, empty for a job that is planned now
    :param profile: the cluster profile itself, for a job outside of sweeps without a named one; empty for the profile
        called *cluster*
    """

    name: str
    sweep: str
    point: str
    stage: str
    kind: StageKindName
    cluster: str
    trainer: TrainerName
    release: str
    branch: str | None
    params: Mapping[str, Any]
    explicit_arguments: tuple[str, ...]
    variables: tuple[str, ...]
    swept: tuple[str, ...]
    depends_on: tuple[Dependency, ...]
    run_dir: str
    parent_dir: str | None = None
    iteration: int | None = None
    source: CheckpointSource | None = None
    command: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    slurm: JobResources = msgspec.field(default_factory=JobResources)
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    restart: RestartSection = msgspec.field(default_factory=RestartSection)
    health: HealthSection | None = None
    template: str | None = None
    script: str | None = None
    log: str | None = None
    work_dir: str | None = None
    start: Condition | None = None
    start_every_attempt: bool = False
    cancel: Condition | None = None
    finish: Condition | None = None
    events: tuple[Event, ...] = ()
    check_interval: float | None = None
    extra_arguments: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    expect: str | None = None
    measure: Mapping[str, Any] = msgspec.field(default_factory=dict)
    max_jobs: int | None = None
    array: int | None = None
    files: Mapping[str, str] = msgspec.field(default_factory=dict)
    secrets: Mapping[str, str] = msgspec.field(default_factory=dict)
    delivered: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    own_launch: bool = False
    entry: str = ""
    wrapper: tuple[str, ...] = ()
    wrapped_ranks: tuple[int, ...] = ()
    monitor: Mapping[str, Any] = msgspec.field(default_factory=dict)
    container: ContainerSection | None = None
    pin: str = ""
    profile: Mapping[str, Any] = msgspec.field(default_factory=dict)
    ahead: int = 0

    def __eq__(self, other: object) -> bool:
        """Compare everything but ``pin``."""
        if not isinstance(other, Job):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _FIELDS if name != "pin")

    @property
    def last_iteration(self) -> int | None:
        """The iteration at which a training ends, None if its parameters do not determine it."""
        return last_iteration(self.params, self.trained_by, self.release)

    @property
    def stage_kind(self) -> StageKind:
        """Its stage kind."""
        return STAGE_KINDS.objects[self.kind]

    @property
    def trained_by(self) -> Trainer:
        """Its trainer."""
        return TRAINERS.objects[self.trainer]

    @property
    def runs_trainer(self) -> bool:
        """Whether it runs on all GPUs, started by the launcher."""
        return STAGE_KINDS.objects[self.kind].runs_trainer

    @property
    def trains(self) -> bool:
        """Whether it writes checkpoints and continues from them."""
        return STAGE_KINDS.objects[self.kind].trains

    @property
    def world_size(self) -> int:
        """Number of training processes, one for each GPU."""
        return (self.slurm.nodes or 1) * self.slurm.gpu_processes

    @property
    def active_processes(self) -> int:
        """Number of processes that Megatron uses, without the reserve of its in-process restart."""
        active = self.params.get("inprocess_active_world_size")
        if self.params.get("inprocess_restart") is True and isinstance(active, int) and active > 0:
            return active
        return self.world_size

    @property
    def layout(self) -> RunLayout:
        """Layout of the job's run directory."""
        return RunLayout(self.run_dir)

    @property
    def stage_dir(self) -> str:
        """Directory of the stage's attempts; instances of one branch share a run directory, so the name is in it."""
        return stage_dir_of(self.run_dir, self.stage)

    @property
    def checkpoint_dir(self) -> str:
        """Directory of the branch's Megatron checkpoints."""
        return checkpoint_dir_of(self.run_dir)

    @property
    def runs_dir(self) -> str:
        """Directory for the outputs made from several runs outside the sweep, a folder for each."""
        return self.layout.runs_dir

    @property
    def origin_dir(self) -> str | None:
        """Directory of the checkpoints from which a training starts while it has none of its own; None without one."""
        if self.source is not None:
            return self.source.path
        return checkpoint_dir_of(self.parent_dir) if self.parent_dir else None

    def log_file(self, attempt: int) -> str:
        """Return the log of an attempt."""
        return self.log_pattern.replace("{attempt}", str(attempt))

    @property
    def log_pattern(self) -> str:
        """Path of the logs, with ``{attempt}`` in it if each attempt has its own."""
        return self.log or log_pattern_of(self.run_dir, self.stage)

    @property
    def shared_log(self) -> str | None:
        """The log, if all attempts write to the same one."""
        return None if self.log is None or "{attempt}" in self.log else self.log

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, from which :meth:`from_json` makes an equal job."""
        data = {name: getattr(self, name) for name in _FIELDS}
        data["depends_on"] = [msgspec.structs.asdict(dependency) for dependency in self.depends_on]
        data["slurm"] = self.slurm.model_dump(exclude_none=True, exclude_defaults=True)
        data["restart"] = self.restart.model_dump()
        data["health"] = self.health.model_dump() if self.health else None
        data["source"] = dataclasses.asdict(self.source) if self.source else None
        for name in _TUPLES:
            data[name] = list(data[name])
        data["params"], data["env"], data["measure"] = dict(self.params), dict(self.env), dict(self.measure)
        data["files"], data["secrets"] = dict(self.files), dict(self.secrets)
        data["delivered"] = {name: dict(source) for name, source in self.delivered.items()}
        data["extra_arguments"] = {name: dict(value) for name, value in self.extra_arguments.items()}
        for name in _CONDITIONS:
            condition: Condition | None = data[name]
            data[name] = condition.to_json() if condition else None
        data["events"] = [event.to_json() for event in self.events]
        data["monitor"] = dict(self.monitor)
        data["container"] = self.container.model_dump(exclude_defaults=True) if self.container else None
        data["profile"] = dict(self.profile)
        for name in _OMITTED_WHEN_EMPTY:
            if not data[name]:
                del data[name]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Parse the output of :meth:`to_json`."""
        values = dict(data)
        values["depends_on"] = tuple(Dependency(**item) for item in values["depends_on"])
        values["slurm"] = JobResources.model_validate(values["slurm"])
        values["restart"] = RestartSection.model_validate(values["restart"])
        health = values.get("health")
        values["health"] = HealthSection.model_validate(health) if health else None
        values["source"] = CheckpointSource(**values["source"]) if values.get("source") else None
        container = values.get("container")
        values["container"] = ContainerSection.model_validate(container) if container else None
        for name in _TUPLES:
            values[name] = tuple(values.get(name, ()))
        for name in _CONDITIONS:
            values[name] = Condition.from_json(values[name]) if values.get(name) else None
        values["events"] = tuple(Event.from_json(event) for event in values.get("events", ()))
        return cls(**values)


_FIELDS = Job.__struct_fields__
