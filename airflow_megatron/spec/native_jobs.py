"""Building the jobs of a point of a native sweep."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.errors import Problem, SpecError
from airflow_megatron.spec.expressions import ExpressionError, evaluate_tree, resolve, template_names
from airflow_megatron.spec.jobs import Dependency, Job
from airflow_megatron.spec.native_conditions import (
    ConditionScope,
    checked_pattern,
    each_checkpoint_conditions,
    resolved_condition,
    resolved_event,
    whole_iteration,
)
from airflow_megatron.spec.quantities import parse_duration
from airflow_megatron.spec.schema import EachCheckpointSection, SlurmSection, StageSection
from airflow_megatron.spec.stage_tree import instances_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_megatron.spec.cluster_profile import ClusterProfile
    from airflow_megatron.spec.native_sweep import NativeSweep
    from airflow_megatron.spec.stage_tree import StageInstance
    from airflow_megatron.spec.sweep import Point

_KIND_PARAMS = {"convert": ("tokenizer",), "evaluate": ("tasks_dir", "tasks", "limit", "num_fewshot")}
"""Params that a kind's own command reads."""
_RESOURCES = ("nodes", "gpus_per_node", "cpus_per_task")


class JobBuilder:
    """Builds the jobs of one point, or of the whole sweep (``point`` None)."""

    def __init__(self, sweep: NativeSweep, point: Point | None, cluster: ClusterProfile) -> None:
        self.sweep, self.point, self.cluster = sweep, point, cluster
        self.spec = sweep.spec
        self.sweep_dir = f"{cluster.run_root.rstrip('/')}/{sweep.name}"
        self.point_dir = f"{self.sweep_dir}/{point.name}" if point else self.sweep_dir
        self.made: dict[str, Job] = {}
        self.names: dict[str, Mapping[str, Any]] = {}
        self.shown: dict[str, dict[str, Any]] = {}

    def build(self, tree: Sequence[StageInstance]) -> list[Job]:
        """Return the jobs, parents first.

        :raises SpecError: when an expression fails or run directories collide
        """
        trains = [instance for instance in tree if instance.kind == "train"]
        self.tree = tree
        self.main_branch = next((instance.name for instance in trains if self._is_root(instance, tree)), None)
        for instance in tree:
            with self._placed_errors(instance):
                self.made[instance.name] = self._job(instance)
        self._check_branches()
        jobs: list[Job] = []
        for instance in tree:
            with self._placed_errors(instance):
                jobs.append(self._with_conditions(instance))
        return jobs

    @contextmanager
    def _placed_errors(self, instance: StageInstance) -> Iterator[None]:
        """Turn a failing expression into an error that names stage, point and line."""
        try:
            yield
        except ExpressionError as error:
            problem = self.sweep.expression_problem(error, ("stages", instance.stage))
            where = f"stage {instance.name}" + (f" at point {self.point.name}" if self.point else "")
            raise SpecError(
                Problem(
                    problem.file, problem.line, problem.column, f"{where}: {problem.message}", problem.mend
                )
            ) from error

    @staticmethod
    def _is_root(instance: StageInstance, tree: Sequence[StageInstance]) -> bool:
        by_name = {other.name: other for other in tree}
        parent = by_name.get(instance.parent or "")
        return instance.scope == "point" and (parent is None or parent.branch is None)

    def _job(self, instance: StageInstance) -> Job:
        section = self.spec.stages[instance.stage]
        parent = self.made.get(instance.parent or "")
        shared = instance.scope == "sweep"
        raw = self._raw_values(instance, section)
        name = ".".join(
            part
            for part in (self.sweep.name, "" if shared or not self.point else self.point.name, instance.name)
            if part
        )
        given: dict[str, Any] = {
            "sweep": self.sweep.name,
            "sweep_dir": self.sweep_dir,
            "point": "" if shared or not self.point else self.point.name,
            "stage": instance.name,
            "job_name": name,
            "python": self.cluster.python,
            "megatron_lm_dir": self.cluster.megatron_lm_dir,
            "stages": self._visible_stages(instance),
        }
        if parent:
            given["parent"] = _visible(parent)
        run_dir = self._run_dir(instance, section, raw, given)
        given["run_dir"] = run_dir
        needs = self.sweep.needs[instance.stage]
        own = {*section.params, *instance.values, *_RESOURCES, *_KIND_PARAMS.get(section.kind, ())}
        swept = () if shared or not self.point else self.point.swept
        wanted = None if section.kind == "train" else [name for name in raw if name in {*needs, *own, *swept}]
        resolved = resolve(raw, given, wanted)
        names = {**given, **resolved}
        self.names[instance.name] = names
        start, depends_on = self._start(instance, section, parent, names)
        return Job(
            name=name,
            sweep=self.sweep.name,
            point="" if shared or not self.point else self.point.name,
            stage=instance.name,
            kind=section.kind,
            cluster=self.cluster.name,
            trainer=self.spec.trainer,
            release=self.spec.release,
            branch=instance.branch,
            params=resolved,
            explicit_arguments=tuple({**self.spec.megatron, **section.megatron}),
            variables=tuple({**dict.fromkeys(_RESOURCES), **self.spec.params, **section.params}),
            swept=swept,
            depends_on=depends_on,
            run_dir=run_dir,
            parent_dir=parent.run_dir if parent and parent.branch else None,
            iteration=self._iteration(instance, parent, start, resolved),
            command=tuple(str(evaluate_tree(word, names)) for word in section.command or ()),
            outputs=tuple(_under(run_dir, str(evaluate_tree(item, names))) for item in section.outputs),
            slurm=self._slurm(section, names),
            env={
                key: str(evaluate_tree(value, names))
                for key, value in {**self.spec.env, **section.env}.items()
            },
            restart=section.restart or self.spec.restart,
            template=section.template,
        )

    def _visible_stages(self, instance: StageInstance) -> dict[str, Any]:
        """Return what expressions may read of other stages, by instance, and by stage where one is meant."""
        visible = {name: self._visible(job) for name, job in self.made.items()}
        for stage in self.spec.stages:
            meant = [item.name for item in instances_of(stage, instance, self.tree) if item.name in visible]
            if stage not in visible and len(meant) == 1:
                visible[stage] = visible[meant[0]]
        return visible

    def _visible(self, job: Job) -> dict[str, Any]:
        if job.stage not in self.shown:
            self.shown[job.stage] = _visible(job)
        return self.shown[job.stage]

    def _raw_values(self, instance: StageInstance, section: StageSection) -> dict[str, Any]:
        point_values: Mapping[str, Any] = {}
        if self.point and instance.scope == "point":
            point_values = self.point.values
        slurm = _merged_slurm(self.cluster.slurm, self.spec.slurm, section.slurm)
        resources = {key: getattr(slurm, key) or 1 for key in _RESOURCES}
        prefix = f"{instance.stage}."
        return {
            **resources,
            **self.spec.params,
            **self.spec.megatron,
            **{key: value for key, value in point_values.items() if "." not in key},
            **section.params,
            **section.megatron,
            **instance.values,
            **{key[len(prefix) :]: value for key, value in point_values.items() if key.startswith(prefix)},
        }

    def _run_dir(
        self, instance: StageInstance, section: StageSection, raw: Mapping[str, Any], given: Mapping[str, Any]
    ) -> str:
        if instance.scope == "sweep":
            return f"{self.sweep_dir}/_shared/{instance.name}"
        if instance.branch is None:
            return f"{self.point_dir}/{instance.name}"
        if instance.branch != instance.name:
            return self.made[instance.branch].run_dir
        if section.run_dir is not None:
            needed = resolve(raw, given, template_names(section.run_dir))
            relative = str(evaluate_tree(section.run_dir, {**given, **needed}))
            if relative.startswith("/") or ".." in relative.split("/"):
                raise ExpressionError(f"run_dir {relative!r} must stay inside the point's directory")
            return f"{self.point_dir}/{relative}".removesuffix("/.")
        return self.point_dir if instance.name == self.main_branch else f"{self.point_dir}/{instance.name}"

    def _start(
        self, instance: StageInstance, section: StageSection, parent: Job | None, names: Mapping[str, Any]
    ) -> tuple[int | None, tuple[Dependency, ...]]:
        """Return the checkpoint that it starts from, where its start condition is one, and its dependencies."""
        if parent is None:
            return None, ()
        start = section.start
        if start is not None and instance.waits == "checkpoint":
            iteration = whole_iteration(evaluate_tree(start.checkpoint, names), "start.checkpoint")
            return iteration, (Dependency(parent.name, parent.stage, "checkpoint", iteration),)
        if start is not None and instance.waits == "log":
            pattern = checked_pattern(evaluate_tree(start.log, names), "start.log")
            return None, (Dependency(parent.name, parent.stage, "log", pattern=pattern),)
        if instance.waits == "condition":
            others = [self.made[name] for name in instance.after if name in self.made]
            dependencies = [Dependency(job.name, job.stage, "condition") for job in (parent, *others)]
            branch_point: int | None = None
            if start is not None and start.checkpoint is not None and start.of in (None, parent.stage):
                branch_point = whole_iteration(evaluate_tree(start.checkpoint, names), "start.checkpoint")
            return branch_point, tuple(dependencies)
        return None, (Dependency(parent.name, parent.stage),)

    def _with_conditions(self, instance: StageInstance) -> Job:
        """Return a job with the conditions of its stage; they may speak of stages in any order."""
        section, job = self.spec.stages[instance.stage], self.made[instance.name]
        if not (
            section.start or section.cancel or section.finish or section.each_checkpoint or section.events
        ):
            return job
        parent = self.made.get(instance.parent or "")

        def jobs_of(stage: str) -> list[Job]:
            found = [
                self.made[item.name]
                for item in instances_of(stage, instance, self.tree)
                if item.name in self.made
            ]
            if not found:
                raise ExpressionError(f"there is no stage {stage!r} at this point")
            return found

        names = self.names[instance.name]
        own = ConditionScope(names, job.run_dir, job, jobs_of)
        changes: dict[str, Any] = {}
        if section.start is not None and instance.waits == "condition":
            changes["start"] = resolved_condition(
                section.start, ConditionScope(names, job.run_dir, parent, jobs_of)
            )
            changes["start_every_attempt"] = section.start.before_every_attempt
        if section.cancel is not None:
            changes["cancel"] = resolved_condition(section.cancel, own)
        if section.finish is not None:
            changes["finish"] = resolved_condition(section.finish, own)
        if section.each_checkpoint and parent is not None:
            each = section.each_checkpoint
            each = EachCheckpointSection() if each is True else each
            source, done = each_checkpoint_paths(job)
            start, finish = each_checkpoint_conditions(each, source, done, parent, own)
            changes |= {"start": start, "finish": finish, "start_every_attempt": True}
        pauses = [item.every for item in (section.start, section.finish) if item and item.every is not None]
        if pauses:
            changes["check_interval"] = float(parse_duration(evaluate_tree(pauses[0], names)))
        changes["events"] = tuple(
            resolved_event(event, index, own) for index, event in enumerate(section.events)
        )
        return dataclasses.replace(job, **changes)

    @staticmethod
    def _iteration(
        instance: StageInstance, parent: Job | None, start: int | None, params: Mapping[str, Any]
    ) -> int | None:
        """Return the checkpoint that the job starts from (train) or works on (convert, evaluate)."""
        if instance.kind == "train":
            return start
        if "iteration" in params:
            return int(params["iteration"])
        if start is not None:
            return start
        if parent is None:
            return None
        return int(parent.params["train_iters"]) if "train_iters" in parent.params else parent.iteration

    def _slurm(self, section: StageSection, names: Mapping[str, Any]) -> SlurmSection:
        merged = _merged_slurm(self.cluster.slurm, self.spec.slurm, section.slurm)
        data = {
            key: evaluate_tree(value, names) for key, value in merged.model_dump(exclude_none=True).items()
        }
        for key in ("time", "signal_before"):
            if key in data:
                data[key] = parse_duration(data[key])
        for key in _RESOURCES:
            if key in data and (not isinstance(data[key], int) or isinstance(data[key], bool)):
                raise ExpressionError(f"slurm.{key} is {data[key]!r}, not a whole number")
        return SlurmSection.model_validate(data)

    def _check_branches(self) -> None:
        owners: dict[str, str] = {}
        for job in self.made.values():
            if job.branch != job.stage and job.branch is not None:
                continue
            if job.run_dir in owners:
                raise SpecError(
                    self.sweep.document.problem(
                        ("stages", job.stage.split(".")[0], "run_dir"),
                        f"stages {owners[job.run_dir]!r} and {job.stage!r} share the run directory {job.run_dir}",
                        "give each its own run_dir",
                    )
                )
            owners[job.run_dir] = job.stage


def _visible(job: Job) -> dict[str, Any]:
    """Return what expressions of later stages may read of a job: its place, its iteration and its params."""
    return {
        **job.params,
        "name": job.name,
        "run_dir": job.run_dir,
        "checkpoint_dir": job.checkpoint_dir,
        "iteration": job.params.get("train_iters", job.iteration),
        "log": job.log_file(1),
    }


def each_checkpoint_paths(job: Job) -> tuple[str, str]:
    """Return where a stage that works on each checkpoint finds its work, and what it leaves of each."""
    converted = f"{job.run_dir}/converted_checkpoints/iter_{{iteration}}.done"
    if job.kind == "convert":
        return job.checkpoint_dir, converted
    return converted, f"{job.run_dir}/eval_results/iter_{{iteration}}/results.json"


def _under(directory: str, path: str) -> str:
    return path if path.startswith("/") else f"{directory}/{path}"


def _merged_slurm(*sections: SlurmSection) -> SlurmSection:
    data: dict[str, Any] = {}
    for section in sections:
        given = section.model_dump(exclude_none=True, exclude_unset=True)
        options = [*data.get("options", []), *given.pop("options", [])]
        data |= given
        if options:
            data["options"] = options
    return SlurmSection.model_construct(**data)
