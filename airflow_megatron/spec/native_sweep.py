"""A sweep written in the project's own language."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.errors import Problem, SpecError
from airflow_megatron.spec.expressions import (
    ExpressionError,
    evaluate,
    is_template,
    resolve,
    template_names,
)
from airflow_megatron.spec.native_jobs import JobBuilder
from airflow_megatron.spec.stage_tree import stage_tree
from airflow_megatron.spec.sweep import Point, Sweep, SweepSettings
from airflow_megatron.spec.sweep_grammar import expand_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.spec.cluster_profile import ClusterProfile
    from airflow_megatron.spec.jobs import Job
    from airflow_megatron.spec.schema import SweepSpecSection
    from airflow_megatron.spec.yaml_document import KeyPath, YamlDocument

_POINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,120}\Z")


class NativeSweep(Sweep):
    """A sweep written in the project's own language.

    :param spec: the checked document
    :param document: the YAML behind it, for messages
    """

    def __init__(self, spec: SweepSpecSection, document: YamlDocument) -> None:
        settings = SweepSettings(
            description=spec.description,
            cluster=spec.cluster,
            tags=tuple(spec.tags),
            max_active_points=spec.max_active_points,
            max_active_jobs_per_stage=spec.max_active_jobs_per_stage,
            poll_interval=spec.poll_interval,
            results=spec.results,
        )
        super().__init__(
            spec.name or Path(document.file).stem, document, settings, stage_tree(spec, document)
        )
        self.spec = spec

    def jobs(self, point: Point, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs of one point, those of the whole sweep included, parents first."""
        return list(JobBuilder(self, point, cluster).build(self.tree))

    def shared_jobs(self, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs that run once for all points."""
        return list(JobBuilder(self, None, cluster).build(self.shared_stages))

    def names_of(self, point: Point) -> Mapping[str, Any]:
        """Return params, Megatron arguments and swept values."""
        return {**self.spec.params, **self.spec.megatron, **point.values}

    def place_of(self, stage: str, name: str) -> KeyPath:
        """Return where a parameter of a stage is given, or the stage."""
        stage = stage.rsplit(".", 1)[-1]
        for section in self.spec.stages:
            if stage.startswith(section):
                stage = section
        candidates: list[KeyPath] = [
            ("stages", stage, "megatron", name),
            ("stages", stage, "params", name),
            ("megatron", name),
            ("params", name),
            *(path for path in self.document.positions if path[:1] == ("sweep",) and path[-1:] == (name,)),
            (name,),
        ]
        return next((path for path in candidates if path in self.document.positions), ("stages", stage))

    def _points(self) -> Iterator[Point]:
        base = {**self.spec.params, **self.spec.megatron}
        seen: dict[str, int] = {}
        problems: list[Problem] = []
        for number, combination in enumerate(expand_sweep(self.spec.sweep, self.document)):
            own = {key: value for key, value in combination.values.items() if "." not in key}
            names = {**base, **own}
            try:
                if not all(self._passes(condition, names) for condition in combination.filters):
                    continue
                name = str(self._evaluate(self.spec.point, names))
            except ExpressionError as error:
                raise SpecError(self.expression_problem(error)) from error
            if not _POINT_NAME.match(name):
                problems.append(
                    self.document.problem(
                        ("point",), f"{name!r} cannot be a point's name", "letters, digits and ._=+- only"
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
            yield Point(name, combination.values, tuple(key for key in own if key in combination.swept))
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

    @functools.cached_property
    def needs(self) -> Mapping[str, frozenset[str]]:
        """The variables that each stage's own keys read, those of its Megatron arguments apart."""
        return {
            name: template_names(section.model_dump(exclude_none=True, exclude={"megatron", "slurm"}))
            for name, section in self.spec.stages.items()
        }

    def expression_problem(self, error: ExpressionError, otherwise: KeyPath = ("sweep",)) -> Problem:
        """Point at the line of the value whose expression failed, or at ``otherwise`` when it is not found."""
        text = str(error)
        best = otherwise
        for path in self.document.positions:
            value: Any = self.document.data
            for part in path:
                value = value[part]
            if is_template(value) and repr(value) in text:
                best = path
        return self.document.problem(best, text)
