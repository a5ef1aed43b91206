"""Building the jobs of a point of a native sweep."""

from __future__ import annotations

import dataclasses
import posixpath
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from pydantic import ValidationError

from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.documents.quantities import parse_interval, parse_memory, parse_walltime
from airflow_megatron.spec.expressions.resolution import (
    ExpressionError,
    evaluate_tree,
    resolve,
    template_names,
    within,
)
from airflow_megatron.spec.layout.run_layout import (
    RUN_FOLDERS,
    RunLayout,
    SweepLayout,
    model_config_of,
    result_dir,
)
from airflow_megatron.spec.model.checkpoint_sources import CheckpointSource, escaped, resolved_source
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.spec.model.jobs import Dependency, Job
from airflow_megatron.spec.model.resources import JobResources
from airflow_megatron.spec.model.schema import (
    ContainerSection,
    EachCheckpointSection,
    MonitorSection,
    WrapperSection,
)
from airflow_megatron.spec.model.secret_sources import secret_sources
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS, kinds_with
from airflow_megatron.spec.model.stage_tree import instances_of
from airflow_megatron.spec.native.conditions import (
    ConditionScope,
    checked_pattern,
    duration_seconds,
    each_checkpoint_conditions,
    each_found_condition,
    resolved_condition,
    resolved_event,
    training_end,
    whole_iteration,
    whole_number,
)
from airflow_megatron.spec.native.stages import RESOURCES
from airflow_megatron.spec.native.sweep_grammar import swept_keys
from airflow_megatron.spec.trust.plain_text import shown_value
from airflow_megatron.spec.trust.quoting import QuotingError, checked_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_core import ErrorDetails

    from airflow_megatron.spec.documents.yaml_document import KeyPath
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.conditions import Event
    from airflow_megatron.spec.model.schema import StageSection
    from airflow_megatron.spec.model.stage_tree import StageInstance
    from airflow_megatron.spec.model.sweep import Point
    from airflow_megatron.spec.native.stages import StageRecipe, StageRecipes
    from airflow_megatron.spec.native.sweep import NativeSweep


class JobBuilder:
    """Builds the jobs of one point, or of the whole sweep (``point`` None)."""

    def __init__(
        self, sweep: NativeSweep, point: Point | None, cluster: ClusterProfile, recipes: StageRecipes
    ) -> None:
        self.sweep, self.point, self.cluster, self.recipes = sweep, point, cluster, recipes
        self.spec, self.tree = sweep.spec, recipes.tree
        self.extra_arguments = recipes.extra_arguments
        self.sweep_dir = SweepLayout.of(cluster.run_root, sweep.name).path
        self.point_dir = f"{self.sweep_dir}/{point.name}" if point else self.sweep_dir
        self.made: dict[str, Job] = {}
        self.names: dict[str, Mapping[str, Any]] = {}
        self.shown: dict[str, dict[str, Any]] = {}

    def build(self) -> list[Job]:
        """Return the jobs, parents first.

        :raises SpecError: if an expression fails or run directories collide
        """
        of_point: list[StageInstance] = []
        for instance in self.tree:
            with self._placed_errors(instance):
                if self._is_of_point(instance):
                    self.made[instance.name] = self._job(instance)
                    of_point.append(instance)
        is_filtered = len(of_point) < len(self.tree)
        if self.point and is_filtered and all(instance.scope == "sweep" for instance in of_point):
            message = f"the filters of the stages leave none at point {self.point.name}"
            hint = "drop the point: sweep: {filter: …}"
            raise SpecError(self.sweep.document.problem(("stages",), message, hint))
        self._check_branches()
        jobs: list[Job] = []
        for instance in of_point:
            with self._placed_errors(instance):
                jobs.append(self._with_conditions(instance))
        return jobs

    @contextmanager
    def _placed_errors(self, instance: StageInstance) -> Iterator[None]:
        """Turn a failing expression into an error that names stage, point and line."""
        try:
            yield
        except ExpressionError as error:
            place: KeyPath = ("stages", instance.stage, *error.keys)
            positions = self.sweep.document.positions
            if place not in positions and error.keys in positions:  # a section of the whole sweep
                place = error.keys
            error.stage = error.stage or instance.name
            problem = self.sweep.expression_problem(error, place)
            if later := self._later_stage(str(error), instance):
                message = f"{later} does not run before {instance.stage}; only earlier stages are known in expressions"
                problem = dataclasses.replace(
                    problem, message=f"{problem.message.partition(': there is')[0]}: {message}"
                )
            if self._is_swept_only(str(error), instance):
                once = "runs once for all points (scope: sweep), so it has none of the sweep's values"
                problem = dataclasses.replace(
                    problem,
                    message="".join(problem.message.partition("not defined")[:2])
                    + f": {instance.stage} {once}",
                    hint="drop the name, or scope: sweep",
                )
            where = f"stage {error.stage}" + (f" at point {self.point.name}" if self.point else "")
            raise SpecError(
                Problem(
                    problem.file, problem.line, problem.column, f"{where}: {problem.message}", problem.hint
                )
            ) from error

    def _later_stage(self, text: str, instance: StageInstance) -> str:
        """Return the stage that an expression reads although it is not an earlier one; empty for other errors."""
        others = {name for item in self.tree for name in (item.name, item.stage)}
        others -= self.recipes.by_name[instance.name].visible.keys()
        wanted = (name for name in sorted(others) if f"there is no entry {name!r}" in text)
        return next((name for name in wanted if f"stages.{name}" in text or "stages[" in text), "")

    def _is_swept_only(self, text: str, instance: StageInstance) -> bool:
        """Return whether an expression of a stage of the whole sweep reads what only points have."""
        return instance.scope == "sweep" and any(
            f"uses {name!r}, which is not defined" in text
            for key in swept_keys(self.spec.sweep)
            for name in (key, key.partition(".")[0])
        )

    def _is_of_point(self, instance: StageInstance) -> bool:
        """Return whether the point has a stage: neither its filter nor that of a stage before it drops it."""
        if instance.parent is not None and instance.parent not in self.made:
            return False
        recipe = self.recipes.by_name[instance.name]
        with within("filter"):
            return self.sweep.passes(recipe.section.filter, self._raw_values(instance, recipe))

    def _job(self, instance: StageInstance) -> Job:
        recipe = self.recipes.by_name[instance.name]
        section = recipe.section
        parent = self.made.get(instance.parent or "")
        shared = instance.scope == "sweep"
        raw = self._raw_values(instance, recipe)
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
            "stages": {
                name: self._visible(self.made[other])
                for name, other in recipe.visible.items()
                if other in self.made
            },
        }
        if parent:
            given["parent"] = _visible(parent)
        with within("run_dir"):
            run_dir = self._run_dir(instance, section, raw, given)
        given["run_dir"] = run_dir
        point_swept = () if shared or not self.point else self.point.swept
        prefix = f"{instance.stage}."
        swept = tuple(
            dict.fromkeys(
                key.removeprefix(prefix) for key in point_swept if "." not in key or key.startswith(prefix)
            )
        )
        wanted = None
        if recipe.wanted is not None:
            wanted = [name for name in raw if name in recipe.wanted or name in swept]
        resolved = resolve(raw, given, wanted)
        names = {**given, **resolved}
        self.names[instance.name] = names
        source = None
        with within("start"):
            start, depends_on = self._start(instance, section, parent, names)
            if section.start is not None and section.start.from_ is not None:
                source = resolved_source(section.start, section.kind, names)
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
            explicit_arguments=recipe.explicit_arguments,
            variables=recipe.variables,
            swept=swept,
            depends_on=depends_on,
            run_dir=run_dir,
            parent_dir=parent.run_dir if parent and parent.branch and source is None else None,
            iteration=_source_iteration(source, section)
            if source
            else self._iteration(instance, parent, start, resolved),
            source=source,
            command=_command(section, names),
            outputs=_outputs(section, run_dir, names),
            slurm=recipe.fixed_slurm or _evaluated_slurm(recipe, names),
            env=_environment(recipe.env, names),
            **secret_sources(recipe.secrets, names),
            restart=recipe.restart_at(names),
            health=recipe.health_at(names),
            template=section.template,
            extra_arguments=self.extra_arguments,
            expect=_expected(evaluate_tree(section.expect, names)),
            measure=_measure(section, names, self.cluster)
            if STAGE_KINDS[section.kind].reported_as == "benchmark"
            else {},
            max_jobs=self.spec.max_jobs,
            ahead=self.spec.ahead if section.ahead is None else section.ahead,
            array=self.spec.max_active_points if section.array is True else section.array or None,
            container=_container(section.container or self.spec.container, names),
            **self._launch_additions(section, names),
        )

    def _launch_additions(self, section: StageSection, names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the wrapper and the environment of a training's command."""
        additions: dict[str, Any] = {}
        if not STAGE_KINDS[section.kind].runs_trainer:
            if section.wrapper or section.monitor:
                key = "wrapper" if section.wrapper else "monitor"
                kinds = ", ".join(kinds_with("runs_trainer"))
                with within(key):
                    raise ExpressionError(f"{key} is for stages of kind {kinds}, not {section.kind}")
            return additions
        if self.spec.entry is not None:
            additions["entry"] = self.spec.entry
        wrapper = section.wrapper or self.spec.wrapper
        if wrapper is not None:
            wrapper = WrapperSection(command=wrapper) if isinstance(wrapper, list) else wrapper
            additions["wrapper"] = tuple(str(evaluate_tree(word, names)) for word in wrapper.command)
            additions["wrapped_ranks"] = tuple(wrapper.ranks or ())
        monitor = self.spec.monitor if section.monitor is None else section.monitor
        if monitor:
            asked = MonitorSection() if monitor is True else monitor
            with within("monitor", "every"):
                every = duration_seconds(evaluate_tree(asked.every, names), "monitor.every", parse_interval)
            additions["monitor"] = {"every": every, "command": asked.command}
        return additions

    def _visible(self, job: Job) -> dict[str, Any]:
        if job.stage not in self.shown:
            self.shown[job.stage] = _visible(job)
        return self.shown[job.stage]

    def _raw_values(self, instance: StageInstance, recipe: StageRecipe) -> dict[str, Any]:
        if not self.point or instance.scope != "point":
            return {**recipe.below, **recipe.above}
        values, own = self.point.values, f"{instance.stage}."
        plain = {key: value for key, value in values.items() if "." not in key}
        stage = {key.removeprefix(own): value for key, value in values.items() if key.startswith(own)}
        return {**recipe.below, **plain, **recipe.above, **stage}

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
            relative = str(evaluate_tree(section.run_dir, {**given, **needed}, raw))
            if relative.startswith("/") or ".." in relative.split("/"):
                raise ExpressionError(f"run_dir {relative!r} must stay inside the point's directory")
            # one directory has one name: ./x/ is x, by which directories of stages are compared
            return posixpath.normpath(f"{self.point_dir}/{relative}")
        return (
            self.point_dir
            if instance.name == self.recipes.main_branch
            else f"{self.point_dir}/{instance.name}"
        )

    def _start(
        self, instance: StageInstance, section: StageSection, parent: Job | None, names: Mapping[str, Any]
    ) -> tuple[int | None, tuple[Dependency, ...]]:
        """Return the checkpoint that it starts from, where its start condition is one, and its dependencies."""
        if parent is None:
            others = [self.made[name] for name in instance.after if name in self.made]
            return None, tuple(Dependency(job.name, job.stage, "condition") for job in others)
        start = section.start
        if start is not None and instance.waits == "checkpoint":
            if parent.branch is None and not (parent.stage_kind.reports_checkpoints or parent.command):
                with within("checkpoint"):
                    raise ExpressionError(
                        f"start.checkpoint: the parent {parent.stage} ({parent.kind}) saves no checkpoints; drop start:"
                    )
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
        parent = self.made.get(instance.parent or "")
        on_models = job.stage_kind.works_on == "models"
        after_pattern = on_models and job.source is None and parent is not None and parent.source
        if not (
            section.start
            or section.cancel
            or section.finish
            or section.each_checkpoint
            or section.events
            or (after_pattern and after_pattern.is_pattern)
        ):
            return job

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
            with within("start"):
                changes["start"] = resolved_condition(
                    section.start, ConditionScope(names, job.run_dir, parent, jobs_of)
                )
            changes["start_every_attempt"] = section.start.before_every_attempt
        if section.cancel is not None:
            with within("cancel"):
                changes["cancel"] = resolved_condition(section.cancel, own)
        if section.finish is not None:
            with within("finish"):
                changes["finish"] = resolved_condition(section.finish, own)
        with within("each_checkpoint"):
            changes |= self._each(job, section, parent, own)
        pauses = [item.every for item in (section.start, section.finish) if item and item.every is not None]
        if pauses:
            changes["check_interval"] = float(duration_seconds(evaluate_tree(pauses[0], names), "every"))
        events: list[Event] = []
        for index, event in enumerate(section.events):
            with within("events", index):
                events.append(resolved_event(event, index, own))
        changes["events"] = tuple(events)
        return msgspec.structs.replace(job, **changes)

    def _each(
        self, job: Job, section: StageSection, parent: Job | None, own: ConditionScope
    ) -> dict[str, Any]:
        """Return what changes of a job that works on each checkpoint, or follows one that works on several runs."""
        each = EachCheckpointSection() if section.each_checkpoint is True else section.each_checkpoint or None
        if job.source is not None and job.source.is_pattern:
            return {"source": _of_each(job.source, each, own.names)} if each else {}
        after = (
            parent.source if parent and job.source is None and job.stage_kind.works_on == "models" else None
        )
        if after is not None and after.is_pattern and parent is not None:
            return _after_pattern(job, parent, section, own.names)
        if each and job.source is not None:
            return {"finish": each_found_condition(each, *each_checkpoint_paths(job), own)}
        if each and parent is not None:
            source, done = each_checkpoint_paths(job)
            start, finish = each_checkpoint_conditions(each, source, done, parent, own)
            return {"start": start, "finish": finish, "start_every_attempt": True}
        return {}

    @staticmethod
    def _iteration(
        instance: StageInstance, parent: Job | None, start: int | None, params: Mapping[str, Any]
    ) -> int | None:
        """Return the checkpoint that the job starts from (train) or works on (convert, evaluate)."""
        if instance.trains:
            ended = start is None and instance.waits == "parent" and parent is not None and parent.trains
            last = training_end(parent) if ended and parent else None
            return start if last is None else last
        if "iteration" in params:
            with within("params", "iteration"):
                return whole_number(params["iteration"], "iteration")
        if start is not None:
            return start
        if parent is None:
            return None
        if parent.source is not None and not parent.trains:
            return parent.iteration
        last = training_end(parent)
        return parent.iteration if last is None else last

    def _check_branches(self) -> None:
        owners: dict[str, str] = {}
        own = [item for item in self.tree if item.branch in (item.name, None) and item.name in self.made]
        for instance in own:
            job = self.made[instance.name]
            if job.run_dir in owners:
                raise SpecError(
                    self.sweep.document.problem(
                        ("stages", instance.stage, "run_dir"),
                        f"stages {owners[job.run_dir]!r} and {job.stage!r} share the run directory {job.run_dir}",
                        "give each its own run_dir",
                    )
                )
            owners[job.run_dir] = job.stage
        for instance in own:
            folder, directory = "", self.made[instance.name].run_dir
            while directory != self.sweep_dir and directory != "/":
                directory, _, folder = directory.rpartition("/")
                if directory in owners and folder in RUN_FOLDERS:
                    message = f"stage {instance.name!r} works in {folder}/, where {owners[directory]!r} keeps its files"
                    hint = "give it another run_dir, or name"
                    place = ("stages", instance.stage, "run_dir")
                    raise SpecError(self.sweep.document.problem(place, message, hint))


def _visible(job: Job) -> dict[str, Any]:
    """Return what expressions of later stages may read of a job: its place, its iteration and its params."""
    return {
        **job.params,
        "name": job.name,
        "run_dir": job.run_dir,
        "checkpoint_dir": job.checkpoint_dir,
        "iteration": job.params.get("train_iters", job.last_iteration or job.iteration),
        "log": job.log_file(1),
    }


def _environment(env: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables; one whose expression gives none is the cluster profile's."""
    values = {key: evaluate_tree(value, names) for key, value in env.items()}
    return {key: str(value) for key, value in values.items() if value is not None}


def _command(section: StageSection, names: Mapping[str, Any]) -> tuple[str, ...]:
    command = tuple(str(evaluate_tree(word, names, from_files=True)) for word in section.command or ())
    if command and not command[0].strip():
        with within("command", 0):
            raise ExpressionError("command: its first word, the program, is empty")
    return command


def _container(section: ContainerSection | None, names: Mapping[str, Any]) -> ContainerSection | None:
    """Return the container with its expressions evaluated."""
    if section is None:
        return None
    with within("container"):
        try:
            return ContainerSection.model_validate(
                evaluate_tree(section.model_dump(exclude_unset=True), names)
            )
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in ("container", *wrong["loc"]))
            raise ExpressionError(_refusal(name, wrong)) from error


def _refusal(name: str, wrong: ErrorDetails) -> str:
    """Return why a section refuses the value of an expression."""
    if wrong["type"] == "value_error":  # of a validator of this package
        return f"{name}: {wrong['ctx']['error']}"
    if wrong["type"] == "refused":
        context = wrong["ctx"]
        return f"{'.'.join((name, *context['entry']))}: {context['message']} ({context['hint']})"
    return f"{name} is {shown_value(wrong['input'])}: {wrong['msg'].lower()}"


def _source_iteration(source: CheckpointSource, section: StageSection) -> int | None:
    """Return the iteration of a checkpoint outside the sweep: that a training continues from, or that is worked on.

    A Hugging Face model has none: its results are then those of iteration 0.
    """
    kind = STAGE_KINDS[section.kind]
    if kind.trains:
        return source.iteration if source.mode == "continue" else None
    if section.each_checkpoint:
        if source.iteration is not None:  # named by the path: beside it start.iteration is refused
            raise ExpressionError(
                f"start.from names one of iteration {source.iteration}, and each_checkpoint means all in a directory;"
                " drop one of them"
            )
        return None
    if source.iteration is None and kind.works_on == "checkpoints":
        raise ExpressionError(
            "start.iteration is missing: which checkpoint is converted? Write iteration: N, or each_checkpoint: true"
        )
    return source.iteration or 0


def _of_each(
    source: CheckpointSource, section: EachCheckpointSection | Literal[True], names: Mapping[str, Any]
) -> CheckpointSource:
    """Return what a stage works on of which each checkpoint is wanted, in every directory that a pattern matches."""
    each = EachCheckpointSection() if section is True else section
    first = whole_iteration(evaluate_tree(each.from_iteration, names), "from_iteration", least=0)
    spacing = whole_iteration(evaluate_tree(each.spacing, names), "spacing")
    return dataclasses.replace(source, from_iteration=first, spacing=spacing)


def _after_pattern(job: Job, parent: Job, section: StageSection, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return what changes of an evaluation that follows a conversion of several runs: it begins when that has ended."""
    converted = RunLayout(f"{escaped(parent.runs_dir)}/*").converted_dir
    if section.each_checkpoint:
        start = Condition("finished", path=parent.stage_dir)
        return {
            "source": _of_each(CheckpointSource(converted, is_pattern=True), section.each_checkpoint, names),
            "start": start,
        }
    if job.iteration is None:
        raise ExpressionError(
            f"{parent.stage} converts each checkpoint of several runs; add each_checkpoint: true, "
            "or params: {iteration: N}"
        )
    return {"source": CheckpointSource(result_dir(converted, job.iteration), job.iteration, is_pattern=True)}


def each_checkpoint_paths(job: Job) -> tuple[str, str]:
    """Return where a stage that works on each checkpoint finds its work, and what it leaves of each."""
    kind, source = job.stage_kind, job.source
    done = kind.done(job.layout, "{iteration}")
    if kind.works_on == "checkpoints":
        return (source.path if source else job.checkpoint_dir), done
    if source is not None:
        return model_config_of(result_dir(source.path, "{iteration}")), done
    return job.layout.converted_mark("{iteration}"), done


def _outputs(section: StageSection, run_dir: str, names: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files that must exist, absolute and each with one name."""
    paths: list[str] = []
    for index, item in enumerate(section.outputs):
        with within("outputs", index):
            given = str(evaluate_tree(item, names))
            if not given.strip():
                raise ExpressionError("outputs: a path is empty; write one below the run directory")
            path = given if given.startswith("/") else f"{run_dir}/{given}"
            if not given.startswith("/") or ".." not in given.split("/"):  # which may lead back out of a link
                path = posixpath.normpath(path)
            if not given.startswith("/") and not path.startswith(f"{run_dir}/"):
                raise ExpressionError(
                    f"outputs: {given!r} is not below the run directory; a file elsewhere is named by its whole path:"
                    f" {path}"
                )
            try:
                paths.append(checked_path(path))
            except QuotingError as error:
                raise ExpressionError(f"outputs: {error}") from error
    return tuple(paths)


def _memory(value: object) -> str:
    try:
        return parse_memory(value)
    except ValueError as error:
        raise ExpressionError(f"slurm.mem: {error}") from error


def _evaluated_slurm(recipe: StageRecipe, names: Mapping[str, Any]) -> JobResources:
    data = {key: evaluate_tree(value, names) for key, value in recipe.slurm.items()}
    if isinstance(data.get("mem"), str | int | float):
        with within("slurm", "mem"):
            data["mem"] = _memory(data["mem"])
    for key, parse in (("time", parse_walltime), ("signal_before", parse_interval)):
        if isinstance(recipe.slurm.get(key), str):
            with within("slurm", key):
                data[key] = duration_seconds(data[key], f"slurm.{key}", parse)
    for key in RESOURCES:
        if key in data and (not isinstance(data[key], int) or isinstance(data[key], bool)):
            with within("slurm", key):
                raise ExpressionError(f"slurm.{key} is {data[key]!r}, not a whole number")
        if key != "gpus_per_node" and data.get(key) == 0:
            with within("slurm", key):
                raise ExpressionError(f"slurm.{key} is 0; write at least 1")
    try:
        return JobResources.model_validate(data)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in wrong["loc"])
        with within("slurm", *wrong["loc"]):
            raise ExpressionError(_refusal(f"slurm.{name}", wrong)) from error


def _expected(value: object) -> str | None:
    if value in (None, "", False):
        return None
    if value != "oom":
        raise ExpressionError(f"expect is {shown_value(value)}; it can be oom, or nothing")
    return "oom"


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max  # also of integers, of which float() may fail


def _measure(section: StageSection, names: Mapping[str, Any], cluster: ClusterProfile) -> dict[str, Any]:
    reported = section.measure.reported.model_dump(exclude_none=True)
    values = {key: evaluate_tree(value, names) for key, value in reported.items()}
    for key, value in values.items():
        if value is not None and not _is_finite(value):
            raise ExpressionError(f"measure.reported.{key} is {shown_value(value)}; it must be a number")
    return {
        "skip": section.measure.skip,
        "reported": {key: value for key, value in values.items() if value is not None},
        "hidden": sorted(template_names([reported, section.expect])),
        **({"gpu": cluster.gpu} if cluster.gpu else {}),
    }
