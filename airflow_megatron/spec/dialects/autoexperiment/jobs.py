"""Jobs of AutoExperiment files: their own script templates, start conditions and ends.

The tool's loop (SLAMPAI/autoexperiment, ``autoexperiment/manager.py``, revision 3093b6b): a job is finished when its
``output_file`` matches ``termination_str`` or ``termination_cmd`` prints 1; it is submitted when
``start_condition_cmd`` prints 1, asked before every submission; it is submitted again until it is finished; a log that
stands still means a frozen job.
"""

from __future__ import annotations

import errno
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.dialects.autoexperiment.commands import submit_command
from airflow_megatron.spec.dialects.autoexperiment.expressions import (
    RefusedExpressionError,
    UnresolvedError,
    analyse_format,
    format_text,
)
from airflow_megatron.spec.dialects.autoexperiment.resolution import names_read
from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.documents.named_files import NamedFileError
from airflow_megatron.spec.foreign.foreign_sweep import RELEASE, TRAINER
from airflow_megatron.spec.model.conditions import Condition, Event
from airflow_megatron.spec.model.jobs import Dependency, Job
from airflow_megatron.spec.model.resources import JobResources
from airflow_megatron.spec.model.schema import RestartSection
from airflow_megatron.spec.trust.patterns import PatternError, line_pattern
from airflow_megatron.spec.trust.plain_text import shown_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.dialects.autoexperiment.points import StageOutline
    from airflow_megatron.spec.documents.yaml_document import YamlDocument

DEFAULT_CHECK_INTERVAL_S = 900.0
_SHORTEST_SILENCE_S = 1800.0
_RESTART = RestartSection(rolled_over=None, failed=3, no_progress=0)
_WRITTEN_TWICE = "a brace meant for the shell is written twice: ${{NAME}}"
BUILTIN = "builtin"


class MissingKeyError(SpecError):
    """A template reads a key that a job does not have.

    :param problem: with its place in the template
    :param key: the key
    """

    def __init__(self, problem: Problem, key: str) -> None:
        self.key = key
        super().__init__(problem)


class ScriptTemplates:
    """The sbatch templates that a file names, each read once.

    :param document: the file: relative paths start in its folder
    """

    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self.directory = Path(document.file).parent
        self._refusals: dict[str, str] = {}
        self._texts: dict[str, str | None] = {}
        self._paths: dict[str, Path] = {}

    def path(self, template: str) -> Path:
        """Return the path of a template."""
        if template not in self._paths:
            self._paths[template] = self.directory / Path(template).expanduser()
        return self._paths[template]

    def text(self, template: str) -> str | None:
        """Return a template's text; None if the file is missing, or if the document may not name it.

        :raises SpecError: if it is there and cannot be read
        """
        if template not in self._texts:
            self._texts[template] = None
            try:
                self._texts[template] = self.document.read(template)
            except (FileNotFoundError, NotADirectoryError):
                self._refusals[template] = "which does not exist"
            except NamedFileError as error:
                self._refusals[template] = f"which is not read: {error}"
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    self._refusals[template] = "which does not exist"
                    return None
                message = f"cannot be read: {error.strerror}"
                raise SpecError(Problem(str(self.path(template)), 0, 0, message)) from error
        return self._texts[template]

    def why_missing(self, template: str) -> str:
        """Return why a template has no text."""
        return self._refusals.get(template, "")

    def names(self, template: str) -> tuple[str, ...]:
        """Return the keys that a template uses; none if it is missing or cannot be formatted."""
        text = self.text(template)
        return names_read(text) if text is not None else ()

    def script(self, template: str, params: Mapping[str, Any]) -> str | None:
        """Return the script of a job from its template; None if the file is missing.

        :raises SpecError: if it reads a key that the job does not have, or holds a lone brace
        """
        text = self.text(template)
        if text is None:
            return None
        try:
            return format_text(text, params)
        except (UnresolvedError, RefusedExpressionError) as error:
            raise self._error(template, text, params, error) from error

    def _error(self, template: str, text: str, params: Mapping[str, Any], error: Exception) -> SpecError:
        file = str(self.path(template))
        for number, line in enumerate(text.splitlines(), 1):
            try:
                what = analyse_format(line)
            except RefusedExpressionError as refused:
                return SpecError(Problem(file, number, 0, str(refused), refused.hint))
            missing = next((name for name in what.names if name not in params), None)
            if missing is not None:
                hint = (
                    did_you_mean(missing, params)
                    or "give it a value; a brace meant for the shell is written twice"
                )
                message = f"no job has a key {missing!r}: {{{missing}}}"
                return MissingKeyError(Problem(file, number, 0, message, hint), missing)
            if what.error:
                return SpecError(Problem(file, number, 0, what.error, _WRITTEN_TWICE))
        return SpecError(Problem(file, 0, 0, str(error), _WRITTEN_TWICE))


def script_job(
    params: Mapping[str, Any],
    stage: StageOutline,
    *,
    sweep: str,
    point: str,
    swept: tuple[str, ...],
    cluster: str,
    sweep_dir: str,
    run_dir: str,
    parent: Job | None,
    templates: ScriptTemplates,
) -> Job:
    """Return a job that submits the file's own script.

    A template that does not exist leaves ``script`` empty and its path in ``template``: such a job cannot be submitted.

    :param params: the job's values
    :param sweep_dir: directory that relative paths start from
    :raises SpecError: if the template, a pattern or a number of the job is wrong
    """
    template = str(params.get("template", ""))
    script = templates.script(template, params) if template else None
    log = _below(sweep_dir, _text(params, "output_file", needed=True))
    interval = check_interval(params)
    command = submit_command(_text(params, "cmd", needed=True), _text(params, "sbatch_script", needed=True))
    return Job(
        name=str(params["name"]),
        sweep=sweep,
        point=point,
        stage=stage.name,
        kind="command",
        cluster=cluster,
        trainer=TRAINER,
        release=RELEASE,
        branch=None,
        params=params,
        explicit_arguments=(),
        variables=tuple(params),
        swept=tuple(key for key in swept if key in params),
        depends_on=(Dependency(parent.name, parent.stage, "condition"),) if parent else (),
        run_dir=run_dir,
        parent_dir=parent.run_dir if parent else None,
        command=command.words,
        slurm=_slurm(command.options),
        restart=_RESTART,
        template=None if script is not None else str(templates.path(template)) if template else None,
        script=script,
        log=log,
        work_dir=sweep_dir,
        start=_answer(params, "start_condition_cmd", sweep_dir),
        start_every_attempt=True,
        finish=finish_condition(params, log, sweep_dir),
        events=(_restart_when_silent(interval),),
        check_interval=interval,
    )


@functools.lru_cache(maxsize=64)
def _restart_when_silent(interval: float) -> Event:
    silence = max(3 * interval, _SHORTEST_SILENCE_S)
    return Event("frozen", on="idle", do="restart", after=silence, limit=None)


def check_interval(params: Mapping[str, Any]) -> float:
    """Return ``check_interval_secs``; 15 minutes by default.

    :raises ValueError: if it is not a positive number
    """
    value = params.get("check_interval_secs", DEFAULT_CHECK_INTERVAL_S)
    try:
        seconds = 0.0 if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"check_interval_secs is {shown_value(value)}, not a number of seconds")
    return seconds


def finish_condition(params: Mapping[str, Any], log: str, directory: str) -> Condition | None:
    """Return the conditions that finish a job: ``termination_str`` in its log, or 1 from ``termination_cmd``.

    :param directory: where the command runs
    :raises ValueError: if ``termination_str`` is not a regular expression that linear time is enough for
    """
    parts: list[Condition] = []
    pattern = _text(params, "termination_str")
    if pattern:
        try:
            line_pattern(pattern)
        except PatternError as error:
            hint = f" ({error.hint})" if error.hint else ""
            raise ValueError(f"termination_str {error}{hint}") from error
        parts.append(Condition("log", path=log, pattern=pattern))
    answer = _answer(params, "termination_cmd", directory)
    if answer:
        parts.append(answer)
    return parts[0] if len(parts) == 1 else Condition("any", parts=tuple(parts)) if parts else None


def _answer(params: Mapping[str, Any], key: str, directory: str) -> Condition | None:
    command = _text(params, key)
    return Condition("command", command=command, directory=directory, prints="1") if command else None


def _text(params: Mapping[str, Any], key: str, *, needed: bool = False) -> str:
    """Return the text of a key that AutoExperiment gives a shell, a pattern or a file system; empty without one.

    :raises ValueError: for another value, which fails there, and for blanks
    """
    value = params.get(key) or ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}, not a text; quote it if it is meant")
    if not value.strip() and (needed or value):
        raise ValueError(f"{key} is {'blank' if value else 'empty'}")
    return value


def _below(directory: str, path: str) -> str:
    return path if path.startswith("/") else f"{directory}/{path}"


@functools.lru_cache(maxsize=256)
def _slurm(options: tuple[str, ...]) -> JobResources:
    return JobResources(options=list(options))
