"""From a sweep spec to its points and jobs."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.errors import Problem, SpecError
from airflow_megatron.spec.expressions import (
    ExpressionError,
    evaluate,
    evaluate_tree,
    is_template,
    resolve,
    template_names,
)
from airflow_megatron.spec.jobs import Dependency, Job
from airflow_megatron.spec.quantities import parse_duration
from airflow_megatron.spec.schema import SlurmSection, StageSection, SweepSpecSection, validate
from airflow_megatron.spec.stage_tree import StageInstance, stage_tree
from airflow_megatron.spec.sweep_grammar import expand_sweep
from airflow_megatron.spec.yaml_document import KeyPath, YamlDocument, load_yaml_file, load_yaml_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_megatron.spec.cluster_profile import ClusterProfile

_POINT_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._=+-]{0,120}\Z")
_KIND_PARAMS = {"convert": ("tokenizer",), "evaluate": ("tasks_dir", "tasks", "limit", "num_fewshot")}
"""Params that a kind's own command reads."""
_RESOURCES = ("nodes", "gpus_per_node", "cpus_per_task")


@dataclass(frozen=True)
class Point:
    """One combination of swept values.

    :param name: unique in the sweep; also the run id of its DAG run
    :param values: what the sweep assigns, expressions not yet evaluated
    :param swept: the keys that vary, in document order; ``stage.key`` varies for that stage only
    """

    name: str
    values: Mapping[str, Any]
    swept: tuple[str, ...]


class Sweep:
    """A loaded sweep spec. Loading checks the document and the stage tree; points are expanded on first use.

    :param spec: the checked document
    :param document: the YAML behind it, for messages
    """

    def __init__(self, spec: SweepSpecSection, document: YamlDocument) -> None:
        self.spec = spec
        self.document = document
        self.name = spec.name or Path(document.file).stem
        self.tree: tuple[StageInstance, ...] = stage_tree(spec, document)

    @functools.cached_property
    def points(self) -> tuple[Point, ...]:
        """The points in document order.

        :raises SpecError: on a malformed sweep block, a failing expression, a repeated or unusable name
        """
        return tuple(self._points())

    @property
    def shared_stages(self) -> tuple[StageInstance, ...]:
        """The stages that run once for all points."""
        return tuple(instance for instance in self.tree if instance.scope == "sweep")

    def point(self, name: str) -> Point:
        """Return the point called ``name``.

        :raises SpecError: when there is none
        """
        for point in self.points:
            if point.name == name:
                return point
        some = ", ".join(point.name for point in self.points[:8])
        raise SpecError(
            self.document.problem(("point",), f"the sweep has no point {name!r}", f"it has {some} …")
        )

    def jobs(self, point: Point, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs of one point, those of the whole sweep included, parents first.

        :raises SpecError: when an expression of a stage fails
        """
        return list(_JobBuilder(self, point, cluster).build(self.tree))

    def shared_jobs(self, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs that run once for all points."""
        return list(_JobBuilder(self, None, cluster).build(self.shared_stages))

    def _points(self) -> Iterator[Point]:
        base = {**self.spec.params, **self.spec.megatron}
        seen: dict[str, int] = {}
        problems: list[Problem] = []
        for number, combination in enumerate(expand_sweep(self.spec.sweep, self.document)):
            names = {**base, **readable(combination.values)}
            try:
                if not all(self._passes(condition, names) for condition in combination.filters):
                    continue
                name = str(self._evaluate(self.spec.point, names))
            except ExpressionError as error:
                raise SpecError(self._expression_problem(error)) from error
            if not _POINT_NAME.match(name):
                problems.append(
                    self.document.problem(
                        ("point",),
                        f"{name!r} cannot be a point's name",
                        "letters, digits and ._=+- only, no '..'",
                    )
                )
            elif name in seen:
                problems.append(
                    self.document.problem(
                        ("point",),
                        f"points {seen[name] + 1} and {number + 1} are both named {name!r}",
                        "use every swept value in point:",
                    )
                )
            seen.setdefault(name, number)
            if len(problems) >= 5:
                break
            yield Point(
                name, combination.values, tuple(key for key in combination.values if key in combination.swept)
            )
        if problems:
            raise SpecError(problems)
        if not seen:
            raise SpecError(
                self.document.problem(("sweep",), "the sweep has no points", "its filter drops them all")
            )

    def _passes(self, condition: str | bool, names: Mapping[str, Any]) -> bool:
        value = self._evaluate(condition, names)
        if isinstance(value, str):
            raise ExpressionError(f"filter {condition!r} gives text ({value!r}), not true or false")
        return bool(value)

    def _evaluate(self, source: Any, names: Mapping[str, Any]) -> Any:
        given = {"sweep": self.name}
        needed = resolve(names, given, template_names(source))
        return evaluate(source, {**given, **needed}) if is_template(source) else source

    def _expression_problem(self, error: ExpressionError) -> Problem:
        """Point at the line of the value whose expression failed."""
        text = str(error)
        best: KeyPath = ("sweep",)
        for path in self.document.positions:
            value: Any = self.document.data
            for part in path:
                value = value[part]
            if is_template(value) and repr(value) in text:
                best = path
        return self.document.problem(best, text)


def readable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point's values as expressions read them: those of one stage, ``cooldown.lr``, as its attributes."""
    of_stage: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        stage, dot, name = key.partition(".")
        if dot:
            of_stage.setdefault(stage, {})[name] = value
    return {**of_stage, **{key: value for key, value in values.items() if "." not in key}}


class _JobBuilder:
    """Builds the jobs of one point, or of the whole sweep (``point`` None)."""

    def __init__(self, sweep: Sweep, point: Point | None, cluster: ClusterProfile) -> None:
        self.sweep, self.point, self.cluster = sweep, point, cluster
        self.spec = sweep.spec
        self.sweep_dir = f"{cluster.run_root.rstrip('/')}/{sweep.name}"
        self.point_dir = f"{self.sweep_dir}/{point.name}" if point else self.sweep_dir
        self.made: dict[str, Job] = {}

    def build(self, tree: Sequence[StageInstance]) -> Iterator[Job]:
        trains = [instance for instance in tree if instance.kind == "train"]
        self.main_branch = next((instance.name for instance in trains if self._is_root(instance, tree)), None)
        for instance in tree:
            try:
                job = self._job(instance)
            except ExpressionError as error:
                problem = self.sweep._expression_problem(error)
                where = f"stage {instance.name}" + (f" at point {self.point.name}" if self.point else "")
                message = f"{where}: {problem.message}"
                raise SpecError(
                    Problem(problem.file, problem.line, problem.column, message, problem.mend)
                ) from error
            self.made[instance.name] = job
            yield job
        self._check_branches()

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
            "stages": {other: _visible(job) for other, job in self.made.items()},
        }
        if parent:
            given["parent"] = _visible(parent)
        run_dir = self._run_dir(instance, section, raw, given)
        given["run_dir"] = run_dir
        needs = template_names([section.command, section.env, section.outputs, self._start_values(section)])
        own = {*section.params, *instance.values, *_RESOURCES, *_KIND_PARAMS.get(section.kind, ())}
        point_swept = () if shared or not self.point else self.point.swept
        prefix = f"{instance.stage}."
        swept = tuple(
            dict.fromkeys(
                key.removeprefix(prefix) for key in point_swept if "." not in key or key.startswith(prefix)
            )
        )
        wanted = None if section.kind == "train" else [name for name in raw if name in {*needs, *own, *swept}]
        resolved = resolve(raw, given, wanted)
        names = {**given, **resolved}
        start, depends_on = self._start(section, parent, names)
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
            explicit_arguments=tuple(sorted({**self.spec.megatron, **section.megatron})),
            variables=tuple(sorted({*_RESOURCES, *self.spec.params, *section.params})),
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

    @staticmethod
    def _start_values(section: StageSection) -> list[Any]:
        return [section.start.checkpoint, section.start.log] if section.start else []

    def _start(
        self, section: StageSection, parent: Job | None, names: Mapping[str, Any]
    ) -> tuple[int | None, tuple[Dependency, ...]]:
        if parent is None:
            return None, ()
        if section.start and section.start.checkpoint is not None:
            iteration = evaluate_tree(section.start.checkpoint, names)
            if not isinstance(iteration, int) or isinstance(iteration, bool) or iteration < 1:
                raise ExpressionError(
                    f"start.checkpoint is {iteration!r}, not an iteration (a whole number from 1)"
                )
            return iteration, (Dependency(parent.name, parent.stage, "checkpoint", iteration),)
        if section.start and section.start.log is not None:
            pattern = str(evaluate_tree(section.start.log, names))
            return None, (Dependency(parent.name, parent.stage, "log", pattern=pattern),)
        return None, (Dependency(parent.name, parent.stage),)

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
                try:
                    data[key] = parse_duration(data[key])
                except (TypeError, ValueError) as error:
                    raise ExpressionError(f"slurm.{key}: {error}") from error
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


def load_sweep(path: Path | str) -> Sweep:
    """Load and check a sweep spec file.

    :raises SpecError: with every problem found
    """
    return _sweep(load_yaml_file(path))


def load_sweep_text(text: str, file: str) -> Sweep:
    """Load and check a sweep spec given as text; ``file`` names it in messages."""
    return _sweep(load_yaml_text(text, file))


def _sweep(document: YamlDocument) -> Sweep:
    return Sweep(validate(SweepSpecSection, document), document)


def spec_files(directory: Path) -> list[Path]:
    """Return the spec files in a folder, sorted."""
    return sorted(itertools.chain(directory.glob("*.yaml"), directory.glob("*.yml")))
