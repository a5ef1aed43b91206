"""Jobs that a task of a user's DAG describes, outside of sweeps."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from airflow_megatron.checks.sweeps.sbatch import sbatch_findings
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.quoting import QuotingError, checked_path
from airflow_megatron.spec.documents.quantities import (
    parse_duration,
    parse_interval,
    parse_walltime,
    slurm_time,
)
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.model.resources import JobResources
from airflow_megatron.spec.model.schema import Environment, RestartSection, SlurmSection
from airflow_megatron.spec.trust.quoting import checked_text

STAGE: Final = "job"
"""Stage name of such a job, in the names of its directories and logs."""
_COUNTS: Final = ("nodes", "gpus_per_node", "cpus_per_task")
_TEXTS: Final = ("partition", "account", "qos", "constraint", "reservation", "exclude")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._=+@-]+")


class DescriptionError(AirflowMegatronError, ValueError):
    """An invalid description of a job; the message says what to write instead."""


@dataclass(frozen=True)
class JobDescription:
    """The description of a job by the arguments of a task.

    :param name: readable name, and the prefix of its name in Slurm
    :param owner: id of the DAG
    :param command: words, or one line for bash; empty for a script
    :param script: text of a complete sbatch script
    :param resources: the keys of :class:`~airflow_megatron.spec.model.schema.SlurmSection`; None for missing ones
    :param env: environment of the command
    :param outputs: required output files; relative paths are relative to the job's directory
    :param restart: its restart policy
    :param template: the sbatch template of a command, None for the default
    :param files: files to write before the command starts: name in the job's directory → text
    """

    name: str
    owner: str
    command: str | Sequence[str] = ()
    script: str | None = None
    resources: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    restart: RestartSection = field(default_factory=RestartSection)
    template: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def job(self, run_dir: str, profile: ClusterProfile, *, is_named: bool) -> Job:
        """Return the job.

        :param run_dir: absolute path of its directory on the cluster
        :param profile: its cluster profile
        :param is_named: whether the profile is a profile of the project, found by its name
        :raises DescriptionError: if the job cannot be submitted
        """
        command = self._words()
        if bool(command) == bool(self.script):
            raise DescriptionError(f"{self.name}: give either command or script")
        resources = slurm_section(self.resources)
        if self.script is not None:
            self._check_script(self.script)
            resources = JobResources(options=[*_sbatch_words(resources), *resources.options])
        else:
            resources = _with_defaults(profile, resources)
        job = Job(
            name=self.name,
            sweep=self.owner,
            point="",
            stage=STAGE,
            kind="command",
            cluster=profile.name,
            trainer="megatron_core",
            release="",
            branch=None,
            params={},
            explicit_arguments=(),
            variables=(),
            swept=(),
            depends_on=(),
            run_dir=_checked(run_dir),
            command=command,
            outputs=tuple(_checked(_inside(run_dir, path)) for path in self._paths()),
            slurm=resources,
            env=_environment(self.env),
            restart=self.restart,
            template=self.template,
            script=self.script,
            files={_inside(run_dir, name): text for name, text in self.files.items()},
            profile={} if is_named else profile.model_dump(mode="json", exclude_defaults=True),
        )
        for finding in sbatch_findings([job]):
            if not finding.warning:
                raise DescriptionError(f"{self.name}: {finding.message}; {finding.hint}")
        return job

    def _words(self) -> tuple[str, ...]:
        if isinstance(self.command, str):
            return ("bash", "-c", _text(self.command)) if self.command.strip() else ()
        if not isinstance(self.command, Sequence) or isinstance(self.command, bytes):
            raise DescriptionError(f"command is {self.command!r}; write a line for bash, or a list of words")
        if None in self.command:
            raise DescriptionError("command holds None; write words")
        words = tuple(_text(str(word)) for word in self.command)
        if words and not words[0].strip():
            raise DescriptionError(f"command begins with {words[0]!r}; write a program")
        return words

    def _check_script(self, script: str) -> None:
        if not isinstance(script, str):
            raise DescriptionError(f"script is {script!r}; write the text of an sbatch script")
        if not _text(script).startswith("#!"):
            raise DescriptionError(
                f"{self.name}: script is the text of an sbatch script, which begins with #!/bin/bash; "
                "for the text of a file write Path(…).read_text()"
            )
        if "\r\n" in script:
            raise DescriptionError(
                f"{self.name}: its lines end in CR LF, which sbatch refuses; convert the script with dos2unix"
            )

    def _paths(self) -> Sequence[str]:
        if isinstance(self.outputs, str) or not isinstance(self.outputs, Iterable):
            raise DescriptionError(f"outputs is {self.outputs!r}; write a list of paths")
        for path in self.outputs:
            if not isinstance(path, str) or not path.strip():
                raise DescriptionError(f"outputs holds {path!r}; write paths")
            if path.startswith("~"):
                raise DescriptionError(f"outputs holds {path!r}; no shell expands ~, write an absolute path")
        return self.outputs


def connection_profile(conn_id: str, work_dir: str, *, slurm_bin: str, login_shell: bool) -> ClusterProfile:
    """Return the profile of a cluster that has a connection but no profile file.

    :param work_dir: directory of the jobs, shared by all nodes
    """
    return ClusterProfile(
        name=conn_id,
        ssh_conn_id=conn_id,
        run_root=work_dir,
        python="python3",
        megatron_lm_dir=work_dir,
        slurm_bin=slurm_bin or None,
        login_shell=login_shell,
    )


def run_directory(root: str, dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """Return the directory of a task's job, unique to the task instance.

    :param root: directory of all such jobs
    :param map_index: -1 for a task that is not mapped
    """
    parts = [root.rstrip("/"), *(_file_name(text) for text in (dag_id, run_id, task_id))]
    return "/".join([*parts, str(map_index)] if map_index >= 0 else parts)


def restart_section(given: Mapping[str, Any] | None) -> RestartSection:
    """Return the restart policy of a task.

    :raises DescriptionError: for unknown keys and invalid values
    """
    if not isinstance(given, Mapping | None):
        raise DescriptionError(f"restart is {given!r}; write a mapping, such as {{'retryable': 10}}")
    try:
        return RestartSection.model_validate(dict(given or {}))
    except ValidationError as error:
        raise DescriptionError(f"restart: {_first(error)}") from None


def seconds_of(name: str, value: float | str | timedelta) -> float:
    """Return the seconds of an argument of a task: a number of seconds, a text such as ``30s``, or a timedelta.

    :param name: the argument, for the message
    :raises DescriptionError: if it is none of these
    """
    try:
        if isinstance(value, timedelta):
            seconds = value.total_seconds()
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = float(value)
        else:
            seconds = parse_duration(value)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise DescriptionError(f"{name} is {value!r}; write seconds, a text such as '30s', or a timedelta")
    return seconds


def slurm_section(resources: Mapping[str, Any]) -> JobResources:
    """Return the resources, whose values may be text from rendered templates.

    :raises DescriptionError: for an invalid value
    """
    values = {key: value for key, value in resources.items() if value is not None and value != ""}
    for key in _COUNTS:
        text = str(values.get(key, "0")).strip()
        if not text.isdecimal():
            raise DescriptionError(f"{key} is {values[key]!r}; write a whole number")
        if key in values:
            values[key] = int(text)
    for key in _TEXTS:
        value = values.get(key, "")
        if not isinstance(value, str):
            raise DescriptionError(f"{key} is {value!r}; write text")
        if len(_text(value).splitlines()) > 1:
            raise DescriptionError(f"{key} is {value!r}; write one line")
    options = values.get("options", ())
    if not isinstance(options, Sequence) or isinstance(options, bytes):
        raise DescriptionError(f"options is {options!r}; write a list of words")
    values["options"] = options.split() if isinstance(options, str) else [str(word) for word in options]
    time = values.get("time")
    try:
        if time is not None:
            is_delta = isinstance(time, timedelta)
            values["time"] = parse_interval(time.total_seconds()) if is_delta else parse_walltime(time)
        SlurmSection.model_validate(values)
        return JobResources.model_validate(values)
    except ValidationError as error:
        raise DescriptionError(_first(error)) from None
    except ValueError as error:
        raise DescriptionError(f"time: {error}") from None


def _environment(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a job; those without a value are left out.

    :raises DescriptionError: for an invalid name or value
    """
    if not isinstance(given, Mapping):
        raise DescriptionError(f"env is {given!r}; write a mapping of names to values")
    for name, value in given.items():
        if not isinstance(value, str | int | float | None):
            raise DescriptionError(f"env.{name} is {value!r}; write text or a number")
    values = {str(name): _text(str(value)) for name, value in given.items() if value is not None}
    try:
        TypeAdapter(Environment).validate_python(values)
    except ValidationError as error:
        raise DescriptionError(f"env.{_first(error)}") from None
    return values


def _with_defaults(profile: ClusterProfile, own: JobResources) -> JobResources:
    """Return resources with the cluster's defaults for missing ones, except GPUs, which a task must request."""
    given = own.model_dump(exclude_none=True, exclude_defaults=True)
    usual = profile.slurm.model_dump(exclude_none=True, exclude_defaults=True, exclude={"gpus_per_node"})
    partition = profile.partition(given.get("partition") or usual.get("partition")).slurm
    usual |= partition.model_dump(exclude_none=True, exclude_defaults=True, exclude={"gpus_per_node"})
    return JobResources.model_validate({**usual, **given})


def _sbatch_words(resources: JobResources) -> list[str]:
    """Return resources as options of sbatch, for a user's script."""
    values = resources.model_dump(
        exclude_none=True, exclude_defaults=True, exclude={"options", "signal_before"}
    )
    if "time" in values:
        values["time"] = slurm_time(int(values["time"]))
    return [f"--{key.replace('_', '-')}={value}" for key, value in values.items()]


def _file_name(text: str) -> str:
    """Return a file name for a text; different texts have different names."""
    safe = _UNSAFE.sub("_", text)[:100]
    if safe == text and safe.strip("."):
        return text
    return f"{safe.strip('.')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _inside(directory: str, path: str) -> str:
    return path if path.startswith("/") else f"{directory}/{path}"


def _checked(path: str) -> str:
    try:
        return checked_path(path)
    except QuotingError as error:
        raise DescriptionError(str(error)) from None


def _text(value: str) -> str:
    try:
        return checked_text(value)
    except QuotingError as error:
        raise DescriptionError(str(error)[:300]) from None


def _first(error: ValidationError) -> str:
    """Return the first problem of a section, with its key."""
    detail = error.errors(include_url=False)[0]
    context = detail.get("ctx", {})
    message = detail["msg"]
    if detail["type"] == "value_error":  # of a validator of this package
        message = str(context["error"])
    elif detail["type"] == "refused":
        message = f"{context['message']}; {context['hint']}"
    return f"{detail['loc'][0]}: {message}"
