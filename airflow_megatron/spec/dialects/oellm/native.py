"""Conversion of an oellm-autoexp sweep to a native spec with resolved values.

Values that all points and stages share stand once; those of a stage with the stage; those that differ from point to
point are columns of ``sweep: {configs: […]}``. A stage that some points lack has a ``filter``; one that has another
parent or form at some points becomes several stages. Run directories stay expressions, so that the spec works on any
cluster.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.dialects.oellm.errors import JobError, SiblingError
from airflow_megatron.spec.dialects.oellm.slurm import RESOURCES
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.quantities import slurm_time
from airflow_megatron.spec.foreign.interpolation.configuration import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from airflow_megatron.spec.dialects.oellm.dialect import OellmSweep
    from airflow_megatron.spec.model.conditions import Condition, Event
    from airflow_megatron.spec.model.jobs import Job

_POINT_DIR = "/@point@"
_LABEL = "label"
_OWN_STAGES = "own_stages"
_FIXED = frozenset({"kind", "parent", "finished", "of", "name", "do", "limit", "restart", "array"})
"""Keys of a stage that take no expressions: jobs in which they differ are of different stages."""
_FREE = frozenset({"params", "slurm", "container"})
"""Sections of a stage that take expressions everywhere."""
_MISSING = object()


def native_spec(sweep: OellmSweep, argument_defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the data of a native spec with the same jobs.

    :param argument_defaults: Megatron arguments that are left out when they have these values
    :raises SpecError: if a value cannot be resolved
    """
    try:
        families = [
            sweep.kept_jobs(sweep.family(point), point.name, "local", _POINT_DIR) for point in sweep.points
        ]
    except (ConfigurationError, JobError, SiblingError) as error:
        raise SpecError(sweep.file_places.problem(error)) from error
    return _Writer(sweep, [point.name for point in sweep.points], families, argument_defaults or {}).spec()


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
        self.names: dict[str, str] = {}
        self.stages = self._stages()

    def spec(self) -> dict[str, Any]:
        shared, own = self._shared(
            {
                stage: {row: self._arguments(job, self.families[row]) for row, job in jobs.items()}
                for stage, jobs in self.stages.items()
            }
        )
        stages = {}
        for stage, jobs in self.stages.items():
            sections = {row: self._section(job, self.families[row]) for row, job in jobs.items()}
            _fill_environments(sections.values())
            section = self._unified(sections, stage, "value")
            if len(jobs) < len(self.rows):
                section["filter"] = f"{{{{ {stage!r} in {_OWN_STAGES} }}}}"
            if own[stage]:
                section["megatron"] = own[stage]
            stages[stage] = section
        if any("filter" in section for section in stages.values()):
            for row, values in enumerate(self.rows):
                values[_OWN_STAGES] = [stage for stage, jobs in self.stages.items() if row in jobs]
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

    def _stages(self) -> dict[str, dict[int, Job]]:
        """Return the jobs of each stage of the spec, by their rows; one stage has jobs of one form."""
        jobs = [job for family in self.families for job in family]
        alone = len(jobs) == len(self.families) and len({job.kind for job in jobs}) == 1
        by_kind = alone and len({job.stage for job in jobs}) > 1
        forms: dict[tuple[str, Any], str] = {}
        stages: dict[str, dict[int, Job]] = {}
        taken = {job.stage for job in jobs}
        for row, family in enumerate(self.families):
            for job in family:
                base = self.names[job.name] = job.kind if by_kind else job.stage
                form = base, _form(self._section(job, family))
                if form not in forms:
                    numbered = (f"{base}_{number}" for number in itertools.count(2))
                    free = (name for name in numbered if name not in taken and name not in stages)
                    forms[form] = next(free) if base in stages else base
                self.names[job.name] = forms[form]
                stages.setdefault(forms[form], {})[row] = job
        return stages

    def _arguments(self, job: Job, family: Sequence[Job]) -> dict[str, Any]:
        """Return the Megatron arguments of a job."""
        return {
            name: _portable(job.params[name], job, family)
            for name in job.explicit_arguments
            if self.defaults.get(name, _MISSING) != job.params[name]
        }

    def _shared(
        self, arguments: Mapping[str, Mapping[int, Mapping[str, Any]]]
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Distribute the arguments to the spec, its stages, and the columns of the sweep."""
        trains = {stage: rows for stage, rows in arguments.items() if any(rows.values())}
        shared: dict[str, Any] = {}
        own: dict[str, dict[str, Any]] = {stage: {} for stage in arguments}
        for name in dict.fromkeys(
            name for rows in trains.values() for values in rows.values() for name in values
        ):
            columns = {
                stage: {row: values.get(name, _MISSING) for row, values in rows.items()}
                for stage, rows in trains.items()
            }
            merged = _merged(columns.values())
            if merged is not None:
                if _same(merged):
                    shared[name] = next(iter(merged.values()))
                else:
                    self._column(name, merged)
                continue
            for stage, column in columns.items():
                value = next(iter(column.values()))
                if not _same(column):
                    self._column(f"{stage}.{name}", column)
                elif value is not _MISSING:
                    own[stage][name] = value
        return shared, own

    def _column(self, key: str, values: Mapping[int, Any]) -> None:
        for row, value in values.items():
            if value is not _MISSING:
                self.rows[row][key] = value

    def _section(self, job: Job, family: Sequence[Job]) -> dict[str, Any]:
        section: dict[str, Any] = {"kind": job.kind}
        parent = next(
            (other for other in family if job.depends_on and other.name == job.depends_on[0].job), None
        )
        if parent is not None:
            section["parent"] = self._stage_of(parent)
        each = (
            next((leaf for leaf in job.start.leaves() if leaf.kind == "new_checkpoint"), None)
            if job.start
            else None
        )
        if each is not None:
            section["each_checkpoint"] = {"from_iteration": each.iteration, "spacing": each.spacing}
        start = self._start(job, family) or {} if each is None else {}
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
        for word, condition in (("cancel", job.cancel), ("finish", None if each else job.finish)):
            written = self._condition(condition, job, family) if condition else None
            if written:
                section[word] = written
        events = [self._event(event, job, family) for event in job.events]
        if events:
            section["events"] = events
        if job.command:
            section["command"] = list(job.command)
        params = {name: job.params[name] for name in job.variables if name not in RESOURCES}
        if job.stage_kind.works_on and job.iteration is not None and job.source is None and each is None:
            params["iteration"] = job.iteration
        slurm = job.slurm.model_dump(exclude_none=True, exclude_unset=True)
        if job.slurm.time is not None:
            slurm["time"] = slurm_time(job.slurm.time)
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
                return {"checkpoint": condition.iteration, "of": self._stage_of(owner)}
            case "log":
                owner_of_log = next((other for other in family if other.log_pattern == condition.path), None)
                if owner_of_log is None:
                    words = ["grep", "-qE", "-e", condition.pattern, _portable(condition.path, job, family)]
                    return {"command": words}
                return {"log": condition.pattern, "of": self._stage_of(owner_of_log)}
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
        return next(self._stage_of(other) for other in family if other.stage_dir == stage_dir)

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

    def _stage_of(self, job: Job) -> str:
        return self.names[job.name]

    def _unified(self, values: Mapping[int, Any], stage: str, name: str) -> Any:
        """Return one value for the rows of a stage, or an expression with a column if they differ.

        :param values: row → value; their forms are equal
        """
        first = next(iter(values.values()))
        if _same(values):
            return first
        if isinstance(first, dict):
            return {
                key: self._unified(
                    {row: value[key] for row, value in values.items()}, stage, _column_name(name, key)
                )
                for key in first
            }
        if isinstance(first, list):
            return [
                self._unified({row: value[index] for row, value in values.items()}, stage, f"{name}_{index}")
                for index in range(len(first))
            ]
        self._column(f"{stage}.{name}", values)
        return f"{{{{ {name} }}}}"


def _form(value: Any, fixed: frozenset[str] = _FIXED) -> Any:
    """Return what sections of one stage have in common: the keys, the lengths, and the values that are fixed.

    Environments are left out: a variable that a point does not set keeps the profile's value.
    """
    if isinstance(value, list):
        return tuple(_form(item, fixed) for item in value)
    if not isinstance(value, dict):
        return None
    return frozenset(
        (key, repr(item) if key in fixed else _form(item, frozenset() if key in _FREE else fixed))
        for key, item in value.items()
        if key != "env"
    )


def _merged(columns: Iterable[Mapping[int, Any]]) -> dict[int, Any] | None:
    """Return the value of each row if the columns agree."""
    merged: dict[int, Any] = {}
    for column in columns:
        for row, value in column.items():
            if not _same({0: merged.setdefault(row, value), 1: value}):
                return None
    return merged


def _fill_environments(sections: Collection[dict[str, Any]]) -> None:
    """Give every point the same variables; a variable that a point does not set keeps the profile's value."""
    names = dict.fromkeys(name for section in sections for name in section.get("env", ()))
    for section in sections:
        if names:
            section["env"] = {name: section.get("env", {}).get(name) for name in names}


def _column_name(name: str, key: str) -> str:
    word = re.sub(r"\W", "_", key)
    return word if name == "value" else f"{name}_{word}"


def _same(values: Mapping[int, Any]) -> bool:
    first = next(iter(values.values()))
    return all(type(value) is type(first) and value == first for value in values.values())


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
