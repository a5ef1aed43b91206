"""A sweep written in the project's own language."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.documents.list_texts import meant_list
from airflow_megatron.spec.documents.yaml_document import leaves
from airflow_megatron.spec.expressions.bounds import TooMuchWorkError
from airflow_megatron.spec.expressions.resolution import (
    ExpressionError,
    compile_expression,
    evaluate,
    is_template,
    resolve,
    template_names,
)
from airflow_megatron.spec.model.dag_names import MAX_POINT, is_point_name
from airflow_megatron.spec.model.stage_tree import stage_tree
from airflow_megatron.spec.model.sweep import Point, Sweep, SweepSettings, named_clusters
from airflow_megatron.spec.native.benchmark import with_stages
from airflow_megatron.spec.native.jobs import JobBuilder
from airflow_megatron.spec.native.overrides import OPTION
from airflow_megatron.spec.native.own_names import taken_names
from airflow_megatron.spec.native.stage_keys import unread_keys
from airflow_megatron.spec.native.stages import StageRecipes
from airflow_megatron.spec.native.sweep_grammar import expand_sweep, unset_compositions
from airflow_megatron.spec.trust.plain_text import shown_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import SweepSpecSection

_OWN_KEYS = ("array", "template", "start", "cancel", "finish", "events")
"""Keys of a stage that messages point at, besides those in its sections."""


class NativeSweep(Sweep):
    """A sweep written in the project's own language.

    :param spec: the checked document
    :param document: the YAML behind it, for messages
    """

    def __init__(self, spec: SweepSpecSection, document: YamlDocument) -> None:
        settings = SweepSettings(
            description=spec.description,
            **named_clusters(spec.cluster),
            tags=tuple(spec.tags),
            max_active_points=spec.max_active_points,
            poll_interval=spec.poll_interval,
            max_jobs=spec.max_jobs,
            notify=tuple(spec.notify),
            trackers=tuple(spec.trackers),
        )
        _check_templates(document)
        spec = with_stages(spec, document)
        tree = stage_tree(spec, document)
        if problems := [*unread_keys(spec, document), *taken_names(spec, document)]:
            raise SpecError(problems)
        super().__init__(spec.name or Path(document.file).stem, document, settings, tree)
        self.spec = spec
        self._given = {"sweep": self.name}
        self._recipes: StageRecipes | None = None

    def jobs(self, point: Point, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs of one point, those of the whole sweep included, parents first."""
        return JobBuilder(self, point, cluster, self._recipes_for(cluster)).build()

    def shared_jobs(self, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs that run once for all points."""
        recipes = StageRecipes(self.spec, self.shared_stages, cluster)
        return JobBuilder(self, None, cluster, recipes).build()

    def _recipes_for(self, cluster: ClusterProfile) -> StageRecipes:
        """Return what the points' jobs have in common; a plan asks for one cluster many times."""
        if self._recipes is None or self._recipes.cluster is not cluster:
            self._recipes = StageRecipes(self.spec, self.tree, cluster)
        return self._recipes

    def warnings(self) -> list[Problem]:
        """Return warnings about keys that no group sets, and values of ``--set`` that the sweep replaces."""
        unset = [
            self.document.problem(
                path,
                f"list_composition has {key}, which no group sets",
                did_you_mean(key, keys, limit=1) or "drop it",
            )
            for path, key, keys in unset_compositions(self.spec.sweep)
        ]
        return unset + [
            self.document.problem(path, *self._replaced(path[1]))
            for path, file in self.document.files.items()
            if file.startswith(f"{OPTION} ")
            and len(path) == 2
            and path[0] in ("megatron", "params")
            and all(path[1] in point.values for point in self.points)
        ]

    def _replaced(self, name: str | int) -> tuple[str, str]:
        swept = next(
            (path for path in self.document.positions if path[0:1] == ("sweep",) and path[-1] == name), ()
        )
        of_sweep = f", or set the swept values: {OPTION} {'.'.join(map(str, swept))}=[…]" if swept else ""
        return (
            f"the sweep gives {name} at every point, so this value is not used",
            f"choose points with --select{of_sweep}",
        )

    def names_of(self, point: Point) -> Mapping[str, Any]:
        """Return params, Megatron arguments and swept values."""
        return {**self.spec.params, **self.spec.megatron, **readable(point.values)}

    def place_of(self, stage: str, name: str) -> KeyPath:
        """Return where a parameter of a stage is given, or the stage.

        Of several places that whose value a job gets (:meth:`.JobBuilder.build`).
        """
        return self.place_at("", stage, name)

    def place_at(self, point: str, stage: str, name: str) -> KeyPath:
        """Return the position of the value that a parameter of a stage has at one point.

        Of several places in ``sweep:`` the first one with the value of the point, or the first one.
        """
        places = self.document.positions
        stage = next((instance.stage for instance in self.tree if instance.name == stage), stage)
        if name == "params":  # a word of the grammar of sweep: too
            return ("stages", stage, name)
        values = self._points_by_name[point].values if point in self._points_by_name else {}
        swept = [path for path in places if path[:1] == ("sweep",)]
        swept.sort(key=lambda path: not self._holds(path, values))
        fanned: KeyPath = ("stages", stage, "for_each")
        candidates: list[KeyPath] = [
            *(path for path in swept if path[-1:] == (f"{stage}.{name}",)),
            *(path for path in places if path[:3] == fanned and path[-1:] == (name,)),
            ("stages", stage, "megatron", name),
            ("stages", stage, "params", name),
            *(path for path in swept if path[-1:] == (name,)),
            ("megatron", name),
            ("params", name),
            ("benchmark", "iterations" if name == "train_iters" else name),
            *([("stages", stage, name)] if name in _OWN_KEYS else []),
            (name,),
        ]
        return next((path for path in candidates if path in places), ("stages", stage))

    def given_at(self, point: str, stage: str, name: str) -> KeyPath:
        """Return the position of that value; empty if the spec gives the parameter none."""
        return self._if_named(self.place_at(point, stage, name), name)

    def _holds(self, path: KeyPath, values: Mapping[str, Any]) -> bool:
        """Return whether a place in ``sweep:`` has the value of one of these keys, alone or in a list."""
        if path[-1] not in values:
            return False
        given: Any = self.document.data
        for key in path:
            given = given[key]
        value = values[path[-1]]  # type: ignore[index]  # the keys of values are texts
        return given == value or (isinstance(given, list) and value in given)

    def _bad_name(self, name: str, values: Mapping[str, Any]) -> Problem:
        """Return the problems of a point's name: itself, or the text in it that was meant for a list."""
        for axis, value in values.items():
            wanted = meant_list(value)
            if wanted and str(value) in name:
                place = self._place_of(axis)
                return self.document.problem(
                    place, f"{axis} is one text, {value!r}, not a list of values", f"{axis}: {wanted}"
                )
        if len(name) > MAX_POINT:
            message = f"{shown_value(name)} cannot be a point's name: it has {len(name)} characters"
            return self.document.problem(("point",), message, f"at most {MAX_POINT}")
        hint = "letters, digits and ._=+- only, no '..'"
        if "{" in name or "$" in name:
            hint = f'write expressions as "{{{{ {next(iter(values), "name")} }}}}"'
        return self.document.problem(("point",), f"{name!r} cannot be a point's name", hint)

    def _repeated_name(
        self, name: str, one: tuple[int, Mapping[str, Any]], other: tuple[int, Mapping[str, Any]]
    ) -> Problem:
        """Return the problem of two points, each given by its number and values, with one name."""
        points = f"points {one[0] + 1} and {other[0] + 1} are both named {name!r}"
        axes = [key for key in {**one[1], **other[1]} if one[1].get(key) != other[1].get(key)]
        if not axes:
            message = f"{points}, and all their values are equal"
            return self.document.problem(("sweep",), message, "remove one of the equal values")
        hint = f"use every swept value in point:, here {' or '.join(axes)}"
        return self.document.problem(("point",), points, hint)

    def _place_of(self, axis: str) -> KeyPath:
        paths = (path for path in self.document.positions if path[:1] == ("sweep",) and path[-1:] == (axis,))
        return next(paths, ("sweep",))

    def _points(self) -> Iterator[Point]:
        base = {**self.spec.params, **self.spec.megatron}
        seen: dict[str, tuple[int, Mapping[str, Any]]] = {}
        problems: list[Problem] = []
        for number, combination in enumerate(expand_sweep(self.spec.sweep, self.document)):
            names = base | readable(combination.values)
            try:
                if not all(self.passes(condition, names) for condition in combination.filters):
                    continue
            except ExpressionError as error:
                raise SpecError(self.expression_problem(error, self._place_of("filter"))) from error
            try:
                name = str(self._evaluate(self.spec.point, names))
            except ExpressionError as error:
                raise SpecError(self.expression_problem(error, ("point",))) from error
            if not is_point_name(name):
                problems.append(self._bad_name(name, combination.values))
            elif name in seen:
                problems.append(self._repeated_name(name, seen[name], (number, combination.values)))
            seen.setdefault(name, (number, combination.values))
            if len(problems) >= 5:
                break
            yield Point(
                name, combination.values, tuple(filter(combination.swept.__contains__, combination.values))
            )
        if problems:  # one mistake gives many wrong names
            raise SpecError(list({problem.line: problem for problem in reversed(problems)}.values()))
        if not seen:
            raise SpecError(
                self.document.problem(("sweep",), "the sweep has no points", "its filter drops them all")
            )

    def passes(self, condition: str | bool, names: Mapping[str, Any]) -> bool:
        """Return whether a combination, or a stage of a point, passes a filter.

        :raises ExpressionError: if it is neither true nor false
        """
        value = self._evaluate(condition, names)
        if isinstance(value, str):
            hint = "" if is_template(condition) else f'; write "{{{{ {condition} }}}}"'
            raise ExpressionError(f"filter {condition!r} gives text ({value!r}), not true or false{hint}")
        return bool(value)

    def _evaluate(self, source: Any, names: Mapping[str, Any]) -> Any:
        if not is_template(source):
            return source
        scope = resolve(names, self._given, template_names(source))
        scope.setdefault("sweep", self.name)
        return evaluate(source, scope, names)

    def expression_problem(self, error: ExpressionError, otherwise: KeyPath = ("sweep",)) -> Problem:
        """Point at the line of the value whose expression failed, or at ``otherwise`` when it is not found."""
        text = str(error)
        best = self.place_of(error.stage, error.parameter) if error.parameter else otherwise
        for path, source in _placed_templates(self.document.data):
            if repr(source) in text:
                best = path
        return self.document.problem(best, text)


def readable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point's values as expressions read them: those of one stage, ``cooldown.lr``, as its attributes."""
    if not any("." in key for key in values):
        return dict(values)
    of_stage: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        stage, dot, name = key.partition(".")
        if dot:
            of_stage.setdefault(stage, {})[name] = value
    return {**of_stage, **{key: value for key, value in values.items() if "." not in key}}


def placed_texts(value: Any) -> Iterator[tuple[KeyPath, str]]:
    """Yield the strings of a document with their places."""
    return ((path, text) for path, text in leaves(value) if isinstance(text, str))


def _placed_templates(value: Any) -> Iterator[tuple[KeyPath, str]]:
    return (found for found in placed_texts(value) if is_template(found[1]))


def _check_templates(document: YamlDocument) -> None:
    """Refuse expressions that cannot be parsed, wherever they stand."""
    problems: list[Problem] = []
    for path, source in _placed_templates(document.data):
        try:
            compile_expression(source)
        except ExpressionError as error:
            problems.append(document.problem(path, str(error)))
            if isinstance(error.__cause__, TooMuchWorkError):
                break  # all others would be refused for it as well
    if problems:
        raise SpecError(problems)
