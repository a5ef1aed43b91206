"""AutoExperiment files as sweeps: the tool's jobs, sorted into points and a stage tree.

A file is used unchanged. ``template: builtin`` instead of a script template's path makes Megatron jobs of this
project of it (:mod:`airflow_megatron.spec.dialects.autoexperiment.builtin`).
"""

from __future__ import annotations

import functools
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.dialects.autoexperiment.builtin import (
    ARGUMENT_KEYS,
    KEYS_OF,
    builtin_jobs,
    builtin_tree,
)
from airflow_megatron.spec.dialects.autoexperiment.expansion import expand_document
from airflow_megatron.spec.dialects.autoexperiment.grammar import document_axes
from airflow_megatron.spec.dialects.autoexperiment.jobs import (
    BUILTIN,
    MissingKeyError,
    ScriptTemplates,
    script_job,
)
from airflow_megatron.spec.dialects.autoexperiment.points import Outline, points_of
from airflow_megatron.spec.dialects.autoexperiment.references import load_autoexperiment_yaml
from airflow_megatron.spec.dialects.autoexperiment.unread import unread_keys
from airflow_megatron.spec.dialects.autoexperiment.unresolved import FIELDS, unresolved_problems
from airflow_megatron.spec.dialects.autoexperiment.warnings import document_warnings
from airflow_megatron.spec.documents.errors import Problem, SpecError, near_names
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.spec.documents.yaml_document import value_at
from airflow_megatron.spec.foreign.foreign_sweep import ForeignSweep
from airflow_megatron.spec.foreign.omegaconf_yaml import take_over
from airflow_megatron.spec.foreign.sidecar import NO_SIDECAR
from airflow_megatron.spec.layout.run_layout import SweepLayout
from airflow_megatron.spec.model.stage_tree import StageInstance
from airflow_megatron.spec.model.sweep import Point, SweepSettings
from airflow_megatron.spec.trust.permitted_variables import permitted_variables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.spec.dialects.autoexperiment.expansion import ExpandedJob, Expansion
    from airflow_megatron.spec.dialects.autoexperiment.grammar import Axis
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument
    from airflow_megatron.spec.foreign.sidecar import Sidecar
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

_NOT_OF_BUILTIN = (
    (
        ("cmd", "sbatch_script", "output_file", "check_interval_secs", "termination_cmd", "termination_str"),
        "submits, names and follows the jobs itself; options of sbatch stand in the cluster profile",
    ),
    (
        ("start_condition_cmd",),
        "does not ask it: a branch waits for checkpoint ITER, a conversion for new checkpoints",
    ),
)
"""Fields of AutoExperiment, and what this project's own scripts do instead."""


def load(document: YamlDocument, sidecar: Sidecar = NO_SIDECAR) -> AutoExperimentSweep:
    """Return the sweep that an AutoExperiment file describes.

    :param document: the file, its text included
    :param sidecar: its sidecar
    :raises SpecError: if it is invalid
    """
    own, warnings = load_autoexperiment_yaml(document.text, document.file, permitted_variables())
    take_over(own, document)
    sidecar.place_in(own)
    return AutoExperimentSweep(own, warnings, sidecar)


class AutoExperimentSweep(ForeignSweep):
    """The sweep of one file. Loading reads the document and finds the stages; jobs are expanded on first use.

    :param document: as :func:`load_autoexperiment_yaml` reads it
    :param reading_warnings: what was odd when it was read
    :param sidecar: its sidecar
    """

    def __init__(
        self,
        document: YamlDocument,
        reading_warnings: Sequence[Problem] = (),
        sidecar: Sidecar = NO_SIDECAR,
    ) -> None:
        self.axes: list[Axis] = document_axes(document)
        self.builtin = _is_builtin(self.axes)
        self.outline = Outline(document.data, self.axes, by_label=self.builtin)
        self.reading_warnings = tuple(reading_warnings)
        self.templates = ScriptTemplates(document)
        name = re.sub(r"[^A-Za-z0-9_-]+|^[^A-Za-z0-9]+", "_", Path(document.file).stem).lstrip("_-")[:100]
        settings = SweepSettings(description="Read from an AutoExperiment file.", tags=("autoexperiment",))
        super().__init__(
            name or "sweep",
            document,
            settings,
            builtin_tree(self.outline) if self.builtin else _script_tree(self.outline),
            sidecar,
        )

    @functools.cached_property
    def expansion(self) -> Expansion:
        """The jobs as AutoExperiment expands them, in its order.

        :raises SpecError: if the file is wrong
        """
        return expand_document(self.document, self.axes)

    @functools.cached_property
    def _jobs_of_points(self) -> Mapping[str, tuple[Point, Mapping[str, ExpandedJob]]]:
        return {point.name: (point, stages) for point, stages in points_of(self.outline, self.expansion.jobs)}

    @functools.cached_property
    def _run_dirs_are_own(self) -> bool:
        """Whether the file's RUN_DIR differs between all jobs of one stage."""
        seen: set[tuple[str, str]] = set()
        for _, stages in self._jobs_of_points.values():
            for stage, job in stages.items():
                place = (str(job.params.get("RUN_DIR", "")), stage)
                if not place[0] or place in seen:
                    return False
                seen.add(place)
        return True

    def own_jobs(self, point: Point, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs of one point, parents first.

        :raises SpecError: if a template or a job's field is wrong
        """
        stages = self._jobs_of_points[point.name][1]
        sweep_dir = SweepLayout.of(cluster.run_root, self.name).path
        params = {stage: job.params for stage, job in stages.items()}
        self._require_resolved(params.values())
        self._check_names(params.values())
        if self.builtin:
            return builtin_jobs(
                params,
                self.outline,
                self.tree,
                sweep=self.name,
                point=point,
                cluster=cluster,
                document=self.document,
            )
        made: dict[str, Job] = {}
        for stage in self.outline.stages:
            if stage.name not in params:
                continue
            own = params[stage.name]
            run_dir = f"{sweep_dir}/{point.name}"
            if self._run_dirs_are_own:
                given = str(own["RUN_DIR"]).rstrip("/")
                run_dir = given if given.startswith("/") else f"{sweep_dir}/{given}"
                self._check_run_dir(given, run_dir, cluster)
            try:
                made[stage.name] = script_job(
                    own,
                    stage,
                    sweep=self.name,
                    point=point.name,
                    swept=point.swept,
                    cluster=cluster.name,
                    sweep_dir=sweep_dir,
                    run_dir=run_dir,
                    parent=made.get(stage.parent or ""),
                    templates=self.templates,
                )
            except MissingKeyError as error:
                raise self._missing_key(error, stages[stage.name]) from error
            except SpecError:
                raise
            except ValueError as error:
                place = stages[stage.name].place_of(str(error).split(" ", 1)[0], self.document)
                raise SpecError(self.document.problem(place, f"{own['name']}: {error}")) from error
        return list(made.values())

    def _require_resolved(self, jobs: Iterable[Mapping[str, Any]]) -> None:
        """Refuse jobs that use a text with a missing key.

        :raises SpecError: with the place of each such text
        """
        if not self.expansion.unresolved:
            return
        problems: dict[Problem, None] = {}
        for params in jobs:
            own = ARGUMENT_KEYS if self.builtin else self.templates.names(str(params.get("template", "")))
            read = own if self.builtin else (*own, *FIELDS)
            found = unresolved_problems(self.document, params, self.expansion.unresolved, read)
            problems |= dict.fromkeys(found)
        if problems:
            raise SpecError(list(problems))

    def _check_names(self, jobs: Iterable[Mapping[str, Any]]) -> None:
        """Refuse names of jobs with line breaks and other control characters.

        :raises SpecError: with the place of ``name``
        """
        for params in jobs:
            if not str(params["name"]).isprintable():
                message = f"name gives a job the name {str(params['name'])[:200]!r}, with a control character"
                hint = "use letters, digits, '_', '-', '.', '='"
                raise SpecError(self.document.problem(self.document.last_place("name"), message, hint))

    def _missing_key(self, error: MissingKeyError, job: ExpandedJob) -> SpecError:
        """Return the error of a template that reads a key of other jobs, at the item of a list that lacks it."""
        key, (problem,) = error.key, error.problems
        if not any(key in other.params for other in self.expansion.jobs):
            return error
        reader = f"which line {problem.line} of {Path(problem.file).name} reads"
        for choice in job.choices:
            others = (path for path in self.document.positions if path[: len(choice.place)] == choice.place)
            if choice.named and any(path[-1:] == (key,) for path in others):
                message = (
                    f"{choice.place[-1] if choice.place else 'item'} {choice.label} has no {key}, {reader}"
                )
                near = near_names(key, job.params, limit=1)
                hint = f"write {key} instead of {near[0]}" if near else f"add {key}, as other items have it"
                return SpecError(
                    self.document.problem((*choice.place, choice.index, choice.label), message, hint)
                )
        message = f"{job.params['name']} has no key {key!r}, {reader}; other jobs have one"
        return SpecError(
            self.document.problem(job.place_of("name", self.document), message, f"give it {key}")
        )

    def _check_run_dir(self, given: str, run_dir: str, cluster: ClusterProfile) -> None:
        """Refuse a relative RUN_DIR that leaves the directory of the runs; an absolute one is used unchanged.

        :raises SpecError: if it does
        """
        root = posixpath.normpath(cluster.run_root)
        if given.startswith("/"):
            escapes = ".." in given.split("/")
        else:
            escapes = not posixpath.normpath(run_dir).startswith(f"{root}/")
        if escapes:
            message = f"RUN_DIR {given!r} leaves the run root {root}"
            place = self.document.last_place("RUN_DIR")
            raise SpecError(
                self.document.problem(place, message, "write a path below it, or an absolute one")
            )

    def shared_jobs(self, cluster: ClusterProfile) -> list[Job]:
        """Return an empty list: every job of such a file belongs to one point."""
        return []

    def names_of(self, point: Point) -> Mapping[str, Any]:
        """Return the values that are equal in all jobs of a point."""
        stages = [job.params for job in self._jobs_of_points[point.name][1].values()]
        first = stages[0]
        common = {
            key: value
            for key, value in first.items()
            if all(key in other and other[key] == value for other in stages)
        }
        return {**common, **point.values}

    def place_of(self, stage: str, name: str) -> KeyPath:
        """Return the place of a key in the file, or of the key that gives an argument of this project's own scripts."""
        return self.document.last_place(name) or self.document.last_place(KEYS_OF.get(name, name))

    def given_at(self, point: str, stage: str, name: str) -> KeyPath:
        """Return the place of the key that gives a job a value."""
        section = next((instance.stage for instance in self.tree if instance.name == stage), stage)
        points = self._jobs_of_points
        jobs = [points[point][1]] if point in points else [stages for _, stages in points.values()]
        job = next((stages[section] for stages in jobs if section in stages), None)
        if job is None:
            return ()
        return job.place_of(name, self.document) or job.place_of(KEYS_OF.get(name, name), self.document)

    def argument_key(self, argument: str) -> str:
        """Return the key that gives an argument of this project's own scripts."""
        is_word = "_" not in argument and argument != "lr"  # time, nodes, …: also words of a sentence
        return "" if is_word or not self.builtin else KEYS_OF.get(argument, "")

    def key_of(self, name: str, section: str) -> str:
        """Return the key that gives an argument of this project's own scripts."""
        return f"{KEYS_OF[name]}: …" if name in KEYS_OF else super().key_of(name, section)

    def missing_templates(self) -> list[Problem]:
        """Return the missing script templates; jobs that need them cannot be submitted."""
        if self.builtin:
            return []
        counts: dict[str, int] = {}
        for job in self.expansion.jobs:
            template = str(job.params.get("template", ""))
            counts[template] = counts.get(template, 0) + 1
        problems = []
        for template, count in counts.items():
            if not template:
                message = (
                    f"{counted(count, 'job has', 'jobs have')} no template, so there is no script to submit"
                )
            elif template == BUILTIN:
                others = len(self.expansion.jobs) - count
                message = (
                    f"{counted(count, 'job has', 'jobs have')} template: {BUILTIN}, and "
                    f"{counted(others, 'has', 'have')} another"
                )
                place = next(iter(self._places_of_template(template)), ())
                problems.append(
                    self.document.problem(place, message, f"write {BUILTIN} for all jobs or none")
                )
                continue
            elif self.templates.text(template) is None:
                path = self.templates.path(template)
                why = self.templates.why_missing(template)
                message = f"{counted(count, 'job needs', 'jobs need')} the script template {path}, {why}"
            else:
                continue
            place = next(iter(self._places_of_template(template)), ())
            problems.append(
                self.document.problem(
                    place, message, f"put it there, or set template: {BUILTIN} for this project's own scripts"
                )
            )
        return problems

    def _places_of_template(self, template: str) -> Iterator[KeyPath]:
        for path in self.document.positions:
            if path and path[-1] == "template" and value_at(self.document.data, path) == template:
                yield path

    def _read_keys(self) -> set[str] | None:
        """Return the keys that the jobs' templates read; None if one is missing."""
        if self.builtin:
            return {*ARGUMENT_KEYS}
        read: set[str] = set()
        for template in {str(job.params.get("template", "")) for job in self.expansion.jobs}:
            if not template or self.templates.text(template) is None:
                return None
            read.update(self.templates.names(template))
        return read

    def _fields_without_effect(self) -> Iterator[Problem]:
        """Yield a warning about the fields of AutoExperiment whose work this project's own scripts do differently."""
        if not self.builtin:
            return
        for keys, why in _NOT_OF_BUILTIN:
            places = [(key, place) for key in keys if (place := self.document.last_place(key))]
            if places:
                names = ", ".join(key for key, _ in places)
                yield self.document.problem(places[0][1], f"{names}: template: {BUILTIN} {why}")

    def warnings(self) -> list[Problem]:
        """Return warnings about probably unintended values that the tool accepts, and missing templates."""
        return [
            *self.reading_warnings,
            *document_warnings(self.document, self.expansion, builtin=self.builtin),
            *unread_keys(self.document, self.document.text, self._read_keys(), builtin=self.builtin),
            *self._fields_without_effect(),
            *(() if self.builtin else self.unused_settings("container")),
            *self.missing_templates(),
        ]

    def _points(self) -> Iterator[Point]:
        for point, _ in self._jobs_of_points.values():
            yield point


def _is_builtin(axes: Sequence[Axis]) -> bool:
    """Return whether the last ``template`` of the document is ``builtin``."""
    for axis in reversed(axes):
        templates = {flat["template"] for flat in axis.flats if "template" in flat}
        if templates:
            return templates == {BUILTIN}
    return False


def _script_tree(outline: Outline) -> tuple[StageInstance, ...]:
    return tuple(
        StageInstance(
            stage.name,
            stage.name,
            "command",
            "point",
            stage.parent,
            None,
            waits="condition" if stage.waits else "parent",
        )
        for stage in outline.stages
    )
