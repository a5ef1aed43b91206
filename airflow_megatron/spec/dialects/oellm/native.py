"""Conversion of an oellm-autoexp sweep to a native spec with resolved values.

Values that all points and stages share stand once; those of a stage with the stage; those that differ from point to
point are columns of ``sweep: {configs: […]}``. Run directories stay expressions, so that the spec works on any cluster.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.dialects.oellm.interpolation.configuration import ConfigurationError
from airflow_megatron.spec.dialects.oellm.interpolation.errors import JobError
from airflow_megatron.spec.dialects.oellm.siblings import SiblingError
from airflow_megatron.spec.dialects.oellm.slurm import RESOURCES
from airflow_megatron.spec.documents.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.spec.dialects.oellm.dialect import OellmSweep
    from airflow_megatron.spec.model.conditions import Condition, Event
    from airflow_megatron.spec.model.jobs import Job

_POINT_DIR = "/@point@"
_LABEL = "label"
_MISSING = object()


class NativeError(AirflowMegatronError, ValueError):
    """A part of a sweep that has no native form."""


def native_spec(sweep: OellmSweep, argument_defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the data of a native spec with the same jobs.

    :param argument_defaults: Megatron arguments that are left out when they have these values
    :raises SpecError: if the points have stage trees that differ
    """
    families = _families(sweep)
    names = [point.name for point in sweep.points]
    try:
        return _Writer(sweep, names, families, argument_defaults or {}).spec()
    except NativeError as error:
        raise SpecError(sweep.document.problem(("sweep",), str(error))) from error


def _families(sweep: OellmSweep) -> list[list[Job]]:
    try:
        families = [
            [job for job, _ in sweep.build(sweep.family(point), point.name, "local", _POINT_DIR)]
            for point in sweep.points
        ]
    except (ConfigurationError, JobError, SiblingError) as error:
        raise SpecError(sweep.problem(error)) from error
    shapes = {tuple((job.stage, job.kind) for job in family) for family in families}
    kinds = {tuple(job.kind for job in family) for family in families}
    if len(shapes) > 1 and (len(kinds) > 1 or len(families[0]) > 1):
        trees = "; ".join(" → ".join(stage for stage, _ in shape) for shape in sorted(shapes))
        raise SpecError(
            sweep.document.problem(
                ("sweep",),
                f"its points have different stages ({trees}), which one native spec cannot hold",
                "import them one by one, with --override sweep.filter=…",
            )
        )
    return families


class _Writer:
    def __init__(
        self,
        sweep: OellmSweep,
        names: Sequence[str],
        families: Sequence[Sequence[Job]],
        argument_defaults: Mapping[str, Any],
    ) -> None:
        self.sweep, self.families = sweep, families
        self.defaults = argument_defaults
        self.rows: list[dict[str, Any]] = [{_LABEL: name} for name in names]
        self.stages = [_native_name(job, families) for job in families[0]]

    def spec(self) -> dict[str, Any]:
        arguments = self._arguments()
        shared, own = self._shared(arguments)
        stages = {}
        for position, stage in enumerate(self.stages):
            jobs = [family[position] for family in self.families]
            sections = [self._section(job, family) for job, family in zip(jobs, self.families, strict=True)]
            _fill_environments(sections)
            section = self._unified(sections, stage, "value")
            if own[position]:
                section["megatron"] = own[position]
            stages[stage] = section
        settings = self.sweep.settings
        spec: dict[str, Any] = {
            "name": self.sweep.name,
            "cluster": list(settings.clusters) or settings.cluster,
            "trainer": self.families[0][0].trainer,
            "release": self.families[0][0].release,
            "point": f"{{{{ {_LABEL} }}}}",
        }
        declared = {
            name: dict(declaration)
            for family in self.families
            for job in family
            for name, declaration in job.extra_arguments.items()
        }
        if declared:
            spec["extra_arguments"] = declared
        if shared:
            spec["megatron"] = shared
        spec["sweep"] = {"configs": self.rows}
        spec["stages"] = stages
        return spec

    def _arguments(self) -> list[list[dict[str, Any]]]:
        """Return the Megatron arguments by stage and family."""
        return [
            [
                {
                    name: _portable(family[position].params[name], family[position], family)
                    for name in family[position].explicit_arguments
                    if self._wanted(name, family[position].params[name])
                }
                for family in self.families
            ]
            for position in range(len(self.stages))
        ]

    def _wanted(self, name: str, value: Any) -> bool:
        return bool(self.defaults.get(name, _MISSING) != value)

    def _shared(
        self, arguments: Sequence[Sequence[Mapping[str, Any]]]
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Distribute the arguments to the spec, its stages, and the columns of the sweep."""
        trains = [position for position, values in enumerate(arguments) if any(values)]
        shared: dict[str, Any] = {}
        own: list[dict[str, Any]] = [{} for _ in arguments]
        names = dict.fromkeys(
            name for position in trains for values in arguments[position] for name in values
        )
        for name in names:
            columns = [[values.get(name, _MISSING) for values in arguments[position]] for position in trains]
            if all(column == columns[0] for column in columns):
                if _same(columns[0]):
                    shared[name] = columns[0][0]
                else:
                    self._column(name, columns[0])
                continue
            for position, column in zip(trains, columns, strict=True):
                if not _same(column):
                    self._column(f"{self.stages[position]}.{name}", column)
                elif column[0] is not _MISSING:
                    own[position][name] = column[0]
        return shared, own

    def _column(self, key: str, values: Sequence[Any]) -> None:
        for row, value in zip(self.rows, values, strict=True):
            if value is not _MISSING:
                row[key] = value

    def _section(self, job: Job, family: Sequence[Job]) -> dict[str, Any]:
        section: dict[str, Any] = {"kind": job.kind}
        parent = next(
            (other for other in family if job.depends_on and other.name == job.depends_on[0].job), None
        )
        if parent is not None:
            section["parent"] = _native_name(parent, self.families)
        start = self._start(job, family) or {}
        if job.source is not None:
            start |= {"from": _portable(job.source.path, job, family)}
            if job.source.iteration is not None:
                start["iteration"] = job.source.iteration
            if job.source.mode != "continue":
                start["mode"] = job.source.mode
        if start:
            section["start"] = start
        restart = job.restart.model_dump(exclude_unset=True)
        if restart:
            section["restart"] = restart
        if job.container is not None:
            section["container"] = _portable(job.container.model_dump(exclude_unset=True), job, family)
        if job.array:
            section["array"] = True
        for word, condition in (("cancel", job.cancel), ("finish", job.finish)):
            written = self._condition(condition, job, family) if condition else None
            if written:
                section[word] = written
        events = [self._event(event, job, family) for event in job.events]
        if events:
            section["events"] = events
        if job.command:
            section["command"] = list(job.command)
        params = {name: job.params[name] for name in job.variables if name not in RESOURCES}
        if job.stage_kind.works_on and job.iteration is not None and job.source is None:
            params["iteration"] = job.iteration
        slurm = job.slurm.model_dump(exclude_none=True, exclude_unset=True)
        for word, values in (("params", params), ("slurm", slurm), ("env", dict(job.env))):
            if values:
                section[word] = _portable(values, job, family)
        return section

    def _start(self, job: Job, family: Sequence[Job]) -> dict[str, Any] | None:
        if job.start is not None:
            return self._condition(job.start, job, family)
        if not job.depends_on:
            return None
        dependency = job.depends_on[0]
        if dependency.until == "checkpoint":
            return {"checkpoint": dependency.iteration}
        return {"log": dependency.pattern} if dependency.until == "log" else None

    def _condition(self, condition: Condition, job: Job, family: Sequence[Job]) -> dict[str, Any] | None:
        match condition.kind:
            case "finished":
                return {"finished": self._stage_at(condition.path, family)}
            case "checkpoint":
                owner = next(other for other in family if other.checkpoint_dir == condition.path)
                return {"checkpoint": condition.iteration, "of": _native_name(owner, self.families)}
            case "log":
                owner_of_log = next((other for other in family if other.log_pattern == condition.path), None)
                if owner_of_log is None:
                    words = ["grep", "-qE", "-e", condition.pattern, _portable(condition.path, job, family)]
                    return {"command": words}
                return {"log": condition.pattern, "of": _native_name(owner_of_log, self.families)}
            case "file":
                return {"file": _portable(condition.path, job, family)}
            case "command":
                return {"command": _portable(condition.command, job, family)}
            case "not":
                part = self._condition(condition.parts[0], job, family)
                return {"not": part} if part else None
            case "all" | "any":
                if any(part.kind == "ended" for part in condition.parts):
                    # a stage whose parent failed is not submitted: no condition is needed for it
                    return None
                parts = [self._condition(part, job, family) for part in condition.parts]
                return {condition.kind: [part for part in parts if part]}
            case _:
                return None

    def _stage_at(self, stage_dir: str, family: Sequence[Job]) -> str:
        return next(_native_name(other, self.families) for other in family if other.stage_dir == stage_dir)

    def _event(self, event: Event, job: Job, family: Sequence[Job]) -> dict[str, Any]:
        written: dict[str, Any] = {"name": event.name}
        written[event.on] = event.after if event.on == "idle" else event.pattern
        if event.on == "idle" and event.after is not None:
            written["idle"] = round(event.after)
        if event.condition:
            written["when"] = self._condition(event.condition, job, family)
        written["do"] = event.do
        if event.command:
            written["command"] = _portable(event.command, job, family)
        if event.do == "notify":
            written["message"] = event.message
        if event.limit != 1:
            written["limit"] = event.limit
        return written

    def _unified(self, values: Sequence[Any], stage: str, name: str) -> Any:
        """Return one value for all families, or an expression with a column if they differ."""
        if _same(values):
            return values[0]
        if all(isinstance(value, dict) for value in values) and len({tuple(value) for value in values}) == 1:
            return {
                key: self._unified([value[key] for value in values], stage, _column_name(name, key))
                for key in values[0]
            }
        if all(isinstance(value, list) for value in values) and len({len(value) for value in values}) == 1:
            return [
                self._unified([value[index] for value in values], stage, f"{name}_{index}")
                for index in range(len(values[0]))
            ]
        if any(isinstance(value, dict | list) for value in values):
            raise NativeError(f"stage {stage}: {name.replace('_', ' ')} differs in shape from point to point")
        self._column(f"{stage}.{name}", values)
        return f"{{{{ {name} }}}}"


def _fill_environments(sections: Sequence[dict[str, Any]]) -> None:
    """Give every point the same variables; a variable that a point does not set keeps the profile's value."""
    names = dict.fromkeys(name for section in sections for name in section.get("env", ()))
    for section in sections:
        if names:
            section["env"] = {name: section.get("env", {}).get(name) for name in names}


def _column_name(name: str, key: str) -> str:
    word = re.sub(r"\W", "_", key)
    return word if name == "value" else f"{name}_{word}"


def _same(values: Sequence[Any]) -> bool:
    return all(type(value) is type(values[0]) and value == values[0] for value in values)


def _native_name(job: Job, families: Sequence[Sequence[Job]]) -> str:
    """Return the stage's name in the spec; points with one stage each share a name."""
    if len(families[0]) == 1 and len({family[0].stage for family in families}) > 1:
        return job.kind
    return job.stage


def _portable(value: Any, job: Job, family: Sequence[Job]) -> Any:
    """Return a value with the directories of the family's jobs as expressions, and other text escaped for Jinja."""
    if isinstance(value, dict):
        return {key: _portable(item, job, family) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(item, job, family) for item in value]
    if not isinstance(value, str):
        return value
    if any(mark in value for mark in ("{{", "{%", "{#")):
        value = "".join(
            f"{{{{ '{piece}' }}}}" if index % 2 else piece
            for index, piece in enumerate(re.split(r"(\{\{|\{%|\{#)", value))
        )
    if _POINT_DIR not in value:
        return value
    directories = {other.run_dir: other for other in reversed(family)}
    for directory in sorted(directories, key=len, reverse=True):
        owner = directories[directory]
        name = "run_dir" if directory == job.run_dir else f"stages[{_in_stages(owner)!r}].run_dir"
        value = re.sub(rf"{re.escape(directory)}(?=/|\Z|[^\w@-])", f"{{{{ {name} }}}}", value)
    return value


def _in_stages(job: Job) -> str:
    return job.branch or job.stage
