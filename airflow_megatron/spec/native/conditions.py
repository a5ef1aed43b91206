"""Resolving the conditions and events of a stage to plain values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.documents.quantities import meant_number, parse_duration
from airflow_megatron.spec.expressions.file_values import path_of
from airflow_megatron.spec.expressions.resolution import ExpressionError, evaluate_tree, is_template, within
from airflow_megatron.spec.model.conditions import Condition, Event
from airflow_megatron.spec.trust.patterns import PatternError, line_pattern
from airflow_megatron.spec.trust.plain_text import shown_value
from airflow_megatron.spec.trust.quoting import QuotingError, checked_path, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import ConditionSection, EachCheckpointSection, EventSection


_GROUP: Final = re.compile(r"\(\?P<(\w+)>")
_USED_GROUP: Final = re.compile(r"\bam_match_(\w+)")


@dataclass(frozen=True)
class ConditionScope:
    """What the conditions of one job may speak of.

    :param names: values for expressions
    :param run_dir: what relative files are relative to
    :param subject: the job whose checkpoints and log are meant when no other is named
    :param jobs_of: gives the jobs that the name of a stage means
    """

    names: Mapping[str, Any]
    run_dir: str
    subject: Job | None
    jobs_of: Callable[[str], Sequence[Job]]


def resolved_condition(section: ConditionSection, scope: ConditionScope) -> Condition:
    """Return the condition with every expression evaluated and every stage turned into its paths.

    :raises ExpressionError: if an expression fails, or nothing is asked for
    """
    parts: list[Condition] = []
    for stage in [section.finished] if isinstance(section.finished, str) else section.finished or ():
        parts += [Condition("finished", path=job.stage_dir) for job in scope.jobs_of(stage)]
    if section.checkpoint is not None:
        iteration = whole_iteration(evaluate_tree(section.checkpoint, scope.names), "checkpoint")
        for job in _subjects(section, scope):
            if job.branch is None and not (job.stage_kind.reports_checkpoints or job.command):
                with within("checkpoint"):
                    raise ExpressionError(
                        f"checkpoint: the stage {job.stage} ({job.kind}) saves none; name another with of:"
                    )
        parts += [
            Condition("checkpoint", path=job.checkpoint_dir, iteration=iteration, producer=job.stage_dir)
            for job in _subjects(section, scope)
        ]
    if section.of is not None and section.checkpoint is None and section.log is None:
        with within("of"):
            raise ExpressionError(
                "of: says whose checkpoint or log is meant; add checkpoint: or log:, or drop it"
            )
    if section.log is not None:
        pattern = checked_pattern(evaluate_tree(section.log, scope.names), "log")
        parts += [
            Condition("log", path=job.log_pattern, pattern=pattern, producer=job.stage_dir)
            for job in _subjects(section, scope)
        ]
    if section.file is not None:
        path = str(evaluate_tree(section.file, scope.names))
        if not path.strip():
            raise ExpressionError("file: is empty; write a path")
        try:
            path = checked_path(path if path.startswith("/") else f"{scope.run_dir}/{path}")
        except QuotingError as error:
            raise ExpressionError(f"file: {error}") from error
        parts.append(Condition("file", path=path))
    if section.prints is not None and section.command is None:
        raise ExpressionError("prints: is the output of a command; add command:")
    if section.command is not None:
        text = command_text(section.command, scope.names)
        prints = evaluate_tree(section.prints, scope.names)
        parts.append(
            Condition(
                "command",
                command=text,
                directory=scope.run_dir,
                prints=None if prints is None else str(prints),
            )
        )
    for kind, sections in (("all", section.all), ("any", section.any)):
        if sections is not None:
            if not sections:
                raise ExpressionError(f"{kind}: has no conditions")
            nested = tuple(resolved_condition(part, scope) for part in sections)
            parts.append(Condition("all" if kind == "all" else "any", parts=nested))
    if section.not_ is not None:
        parts.append(Condition("not", parts=(resolved_condition(section.not_, scope),)))
    if not parts:
        raise ExpressionError(
            "the condition asks for nothing; use finished, checkpoint, log, file, command, …"
        )
    return parts[0] if len(parts) == 1 else Condition("all", parts=tuple(parts))


def each_checkpoint_conditions(
    section: EachCheckpointSection, source: str, done: str, parent: Job, scope: ConditionScope
) -> tuple[Condition, Condition]:
    """Return what a stage that works on each checkpoint waits for before an attempt, and what makes it finished.

    :param section: which checkpoints are wanted
    :param source: checkpoint directory, or the path of one piece of work with ``{iteration}`` in it
    :param done: path of what the work on a checkpoint leaves, with ``{iteration}`` in it
    :param parent: the job that makes the pieces of work
    """
    end = training_end(parent)
    fresh = _new_checkpoint(section, source, done, scope, end if section.last else None)
    ended = Condition("ended", path=parent.stage_dir)
    if parent.trains and end is not None:
        # the training may have no verdict yet, but its required outputs exist
        final = Condition("checkpoint", path=parent.checkpoint_dir, iteration=end)
        ended = Condition("any", parts=(ended, final))
    start = Condition("any", parts=(fresh, ended))
    finish = Condition("all", parts=(ended, Condition("not", parts=(fresh,))))
    return start, finish


def each_found_condition(
    section: EachCheckpointSection, source: str, done: str, scope: ConditionScope
) -> Condition:
    """Return what makes a stage finished that works on each checkpoint found outside the sweep: on one at least.

    :param section: which checkpoints are wanted
    :param source: checkpoint directory, or the path of one piece of work with ``{iteration}`` in it
    :param done: path of what the work on a checkpoint leaves, with ``{iteration}`` in it
    """
    none_left = Condition("not", parts=(_new_checkpoint(section, source, done, scope, None),))
    return Condition("all", parts=(Condition("file", path=done.replace("{iteration}", "*")), none_left))


def _new_checkpoint(
    section: EachCheckpointSection, source: str, done: str, scope: ConditionScope, last: int | None
) -> Condition:
    return Condition(
        "new_checkpoint",
        path=source,
        done=done,
        iteration=whole_iteration(
            evaluate_tree(section.from_iteration, scope.names), "from_iteration", least=0
        ),
        spacing=whole_iteration(evaluate_tree(section.spacing, scope.names), "spacing"),
        last=last,
    )


def resolved_event(section: EventSection, index: int, scope: ConditionScope) -> Event:
    """Return an event with every expression evaluated.

    :raises ExpressionError: if it does not say what to look for, or what to do
    """
    name = section.name or f"event {index + 1}"
    sources = {
        key: value
        for key, value in (("log", section.log), ("state", section.state), ("idle", section.idle))
        if value is not None
    }
    if len(sources) != 1:
        raise ExpressionError(f"{name}: give exactly one of log, state, idle")
    on, value = next(iter(sources.items()))
    if section.do == "rollback" and (scope.subject is None or not scope.subject.trains):
        raise ExpressionError(
            f"{name}: do: rollback is for stages of kind train; this one has no checkpoints"
        )
    if section.do == "run" and section.command is None:
        raise ExpressionError(f"{name}: do: run needs a command")
    for key, reaction in (("command", "run"), ("message", "notify")):
        if getattr(section, key) and section.do != reaction:
            with within(key):
                raise ExpressionError(
                    f"{name}: {key} belongs to do: {reaction}, not to do: {section.do}; drop it, or add an event with"
                    f" do: {reaction}"
                )
    if section.command is not None and on == "log":
        _check_groups(section, name)
    return Event(
        name=name,
        on="log" if on == "log" else "state" if on == "state" else "idle",
        do=section.do,
        pattern="" if on == "idle" else checked_pattern(evaluate_tree(value, scope.names), on),
        after=float(duration_seconds(evaluate_tree(value, scope.names), "idle")) if on == "idle" else None,
        condition=resolved_condition(section.when, scope) if section.when else None,
        command="" if section.command is None else command_text(section.command, scope.names),
        message=str(evaluate_tree(section.message, scope.names)),
        limit=section.limit,
    )


def _check_groups(section: EventSection, name: str) -> None:
    """Refuse a command that reads a group which its pattern does not have; an expression may add any."""
    words = [section.command] if isinstance(section.command, str) else section.command or []
    pattern = section.log or ""
    if is_template(pattern):
        return
    groups = set(_GROUP.findall(pattern))
    for used in _USED_GROUP.findall(" ".join(map(str, words))):
        if used not in groups:
            known = f"its groups: {', '.join(sorted(groups))}" if groups else f"write (?P<{used}>…) in it"
            with within("command"):
                raise ExpressionError(
                    f"{name}: the pattern has no group {used!r}, which $am_match_{used} is; {known}"
                )


def command_text(command: str | Sequence[object], names: Mapping[str, Any]) -> str:
    """Return a command as shell text: text unchanged, a list of words quoted.

    :raises ExpressionError: if an expression fails, the command is empty, or a word cannot be passed to a shell
    """
    value = evaluate_tree(command, names)
    if not value or (isinstance(value, str) and not value.strip()):
        raise ExpressionError("command: is empty")
    if not isinstance(value, list):
        return str(value)
    try:
        return " ".join(quote(str(word)) for word in value)
    except QuotingError as error:
        raise ExpressionError(str(error)) from error


def checked_pattern(value: object, name: str) -> str:
    """Return a regular expression as text.

    :raises ExpressionError: if it is empty or none, or takes more than linear time
    """
    text = str(value)
    if not text:
        raise ExpressionError(f"{name}: the pattern is empty, and every line matches it")
    try:
        line_pattern(text)
    except PatternError as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise ExpressionError(f"{name}: {error}{hint}") from error
    return text


def whole_iteration(value: object, name: str, least: int = 1) -> int:
    """Return an iteration.

    :raises ExpressionError: if it is not a whole number, or below ``least``
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ExpressionError(
            f"{name} is {shown_value(value)}, not an iteration (a whole number from {least})"
        )
    return value


def training_end(training: Job) -> int | None:
    """Return the iteration at which a training ends, None if its parameters do not determine it.

    :raises ExpressionError: if ``train_iters`` is not a whole number, or only the job knows it
    """
    if "train_iters" in training.params:
        try:
            if path_of(training.params["train_iters"]) is not None:
                raise ExpressionError(
                    f"train_iters is known only when {training.stage} starts, but the stage after it processes the last"
                    " checkpoint; write train_iters as a number, or start: {checkpoint: …} in that stage"
                )
            return whole_number(training.params["train_iters"], "train_iters")
        except ExpressionError as error:
            error.parameter, error.stage = "train_iters", training.stage
            raise
    return training.last_iteration


def whole_number(value: object, name: str) -> int:
    """Return an argument that counts iterations, as a command line reads it: ``1e3`` and ``"1000"`` as well.

    :raises ExpressionError: if it is none
    """
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]  # the call says what it takes
    except (TypeError, ValueError, OverflowError) as error:
        number = meant_number(value)
        hint = f" (write {number})" if number else ""
        raise ExpressionError(f"{name} is {shown_value(value)}, not a whole number{hint}") from error


def duration_seconds(
    value: Any, name: str, parse: Callable[[int | float | str], int] = parse_duration
) -> int:
    """Return a duration in seconds.

    :param parse: parser of the value: :func:`.parse_duration`, or :func:`.parse_walltime` for a walltime
    :raises ExpressionError: if it refuses the value
    """
    try:
        return parse(value)
    except ValueError as error:
        raise ExpressionError(f"{name}: {error}") from error


def _subjects(section: ConditionSection, scope: ConditionScope) -> Sequence[Job]:
    if section.of is not None:
        return scope.jobs_of(section.of)
    if scope.subject is None:
        raise ExpressionError("whose checkpoint or log is meant? add of: <stage>")
    return [scope.subject]
