"""Translation of oellm-autoexp's conditions and events (``class_name: FileExistsCondition`` …) to this package's.

Class names and fields as in ``oellm_autoexp/monitor/{conditions,actions}.py`` (c6d0cc0). What watches a sibling's
directory is put onto what is really there: a checkpoint directory or tracker becomes a wait for that complete
checkpoint, a converted model a wait for the converting stage.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_megatron.spec.dialects.oellm.fields import (
    ACTION_FIELDS,
    GOOD_STATES,
    LOG_EVENT_FIELDS,
    STATE_EVENT_FIELDS,
    STATES,
    FieldError,
    checked_state,
    condition_fields,
    placed,
    unread_fields,
)
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.documents.quantities import list_index
from airflow_megatron.spec.layout.run_layout import CHECKPOINTS, TRACKER_FILE, RunLayout
from airflow_megatron.spec.model.conditions import Condition, Event
from airflow_megatron.spec.trust.patterns import PatternError, line_pattern
from airflow_megatron.spec.trust.quoting import QuotingError, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from airflow_megatron.spec.model.conditions import EventAction

POLL_SECONDS = 60.0
"""Pause between two looks of oellm-autoexp's monitor; ``inactivity_polls`` counts them."""
_MOST_GROUPS: Final = 1000
"""Groups of a pattern; RE2 takes fewer."""
_CHECKPOINT = re.compile(rf"(?:/{CHECKPOINTS})?/iter_0*([1-9][0-9]*)(?:/.*)?\Z")
_TRACKER = re.compile(rf"(?:/{CHECKPOINTS})?/{re.escape(TRACKER_FILE)}\Z")
_CONVERTED = re.compile(r"/hf/(?:iter_)?0*([0-9]+)(?:/.*)?\Z")
_DONE_MARKER = re.compile(r"/[^/]*(?:done|finish|complete)[^/]*\Z", re.IGNORECASE)


_FIELDS_OF_KINDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "substring": {"pattern": ""},
    "regex": {"pattern": "", "extract_groups": {}},
    "inactivity": {"inactivity_polls": 1, "inactivity_timeout_s": 0},
    "progress": {"progress_polls": 1, "progress_timeout_s": 0},
}
"""Kind of pattern → the fields of an event that only some kinds read, with their defaults."""
_ATTEMPTS: Final = "MaxAttemptsCondition"
_COUNT_ATTEMPTS: Final = (_ATTEMPTS, "MaxAttempts")
_VARIABLE: Final = re.compile(r"(?<!\$)\{([^{}$:]+)\}")
_LATER_VARIABLES: Final = frozenset(
    {"attempts", "event_id", "job_id", "line", "match", "session_id", "workspace"}
)
"""Variables of oellm-autoexp's monitor that have no value before a job runs."""
_BEFORE_RUNNING: Final = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"}
)


class ConditionError(FieldError):
    """A condition or event that this package cannot express."""


@dataclass(frozen=True)
class Neighbour:
    """The parts of a sibling job that conditions use.

    :param stage: name of its stage instance
    :param kind: kind of the stage
    :param run_dir: its run directory
    :param stage_dir: directory of its attempts and verdict
    :param log: its log, ``{attempt}`` in it; a file that names the log of its first attempt means that of each
    :param job_name: the name that oellm-autoexp gives its job
    :param branch: stage whose checkpoints are in its run directory
    :param last_iteration: its ``train_iters``, where it trains
    """

    stage: str
    kind: str
    run_dir: str
    stage_dir: str
    log: str
    job_name: str
    branch: str | None
    last_iteration: int | None = None


@dataclass
class Translator:
    """Translates the conditions and events of one job.

    :param own: the job itself
    :param siblings: the other jobs of its family that are made before it
    :param iteration: checkpoint that the job starts from or works on, where that is known
    :param warnings: warnings about ignored keys
    :param variables: the values of ``{name}`` in paths, commands and messages
    :param absolute: makes a relative path absolute where that is possible; its second argument names it in messages
    :param attempts: each event that restarts the job, with its largest number of attempts; None for no limit
    :param quarantine: largest number of damaged checkpoints that are renamed; None if no event says so
    """

    own: Neighbour
    siblings: Sequence[Neighbour]
    iteration: int | None
    warnings: list[str]
    variables: Mapping[str, Any]
    absolute: Callable[[str, str], str]
    attempts: list[tuple[str, int | None]] = field(default_factory=list)
    quarantine: int | None = None

    def condition(self, data: Any) -> Condition | None:
        """Return a condition; None if it always holds.

        :param data: a mapping with a ``class_name``, a list of such (all must hold) or None
        :raises ConditionError: for a class that does not exist or cannot be expressed
        """
        if data is None or data == {} or data == []:
            return None
        if isinstance(data, list):
            return self._combined("all", data)
        if not isinstance(data, dict) or "class_name" not in data:
            raise ConditionError(f"a condition needs a class_name: {data!r}")
        name = str(data["class_name"])
        make = _CONDITIONS.get(name) or _CONDITIONS.get(f"{name}Condition")
        if make is None:
            known = did_you_mean(name, _CONDITIONS) or f"known: {', '.join(sorted(_CONDITIONS))}"
            raise ConditionError(f"there is no condition {name!r}; {known}")
        full = name if name in _CONDITIONS else f"{name}Condition"
        self._note_unread(full, data, condition_fields(full))
        return make(self, data)

    def start(self, data: Any) -> Condition | None:
        """Return a start condition; None if it always holds.

        That a line is not in the job's own log keeps oellm-autoexp from running a finished job again. Here a finished
        job does not run again, and one that runs for the first time has no log.
        """
        made = self.condition(data)
        return made and self._without_own_log(made)

    def _without_own_log(self, condition: Condition) -> Condition | None:
        if condition.kind == "not" and condition.parts[0].producer == self.own.stage_dir:
            return None
        if condition.kind not in ("all", "any"):
            return condition
        parts = [self._without_own_log(part) for part in condition.parts]
        if condition.kind == "any" and None in parts:
            return None
        kept = tuple(part for part in parts if part is not None)
        return msgspec.structs.replace(condition, parts=kept) if len(kept) > 1 else next(iter(kept), None)

    def _note_unread(self, what: str, data: Mapping[str, Any], known: tuple[str, ...]) -> None:
        fields = list(unread_fields(what, data, known))
        if fields:
            self.warnings.append(f"{what}: {', '.join(fields)}: nothing here reads it")

    def _combined(self, kind: str, parts: Any) -> Condition | None:
        if not isinstance(parts, list):
            raise ConditionError(f"conditions is {parts!r}, not a list of conditions")
        if kind not in ("all", "any"):
            raise ConditionError(f"mode is {kind!r}; write all or any")
        if kind == "any" and not parts:
            self.warnings.append("OrCondition without conditions never holds")
            return Condition("not", parts=(Condition("all"),))
        made = [self.condition(part) for part in parts]
        if kind == "any" and None in made:
            return None
        kept = tuple(part for part in made if part is not None)
        if len(kept) < 2:
            return kept[0] if kept else None
        return Condition("all" if kind == "all" else "any", parts=kept)

    def _negated(self, data: Mapping[str, Any]) -> Condition:
        part = self.condition(_needed(data, "condition"))
        return Condition("not", parts=(part or Condition("all"),))

    def _file(self, path: str) -> Condition:
        # a branch's directory may lie in that of its trunk
        for other in sorted(self.siblings, key=lambda item: -len(item.run_dir)):
            if not path.startswith(f"{other.run_dir}/"):
                continue
            rest = path.removeprefix(other.run_dir)
            trainer = self._trainer_of(other)
            if trainer and (match := _CHECKPOINT.match(rest)):
                return _checkpoint(trainer, int(match[1]))
            if trainer and _TRACKER.match(rest):
                iteration = self.iteration or trainer.last_iteration
                if iteration is not None:
                    return _checkpoint(trainer, iteration)
            if match := _CONVERTED.match(rest):
                converter = self._converter_of(other)
                if converter:
                    return Condition("finished", path=converter.stage_dir)
            if other.kind == "train" and _DONE_MARKER.search(rest):
                self.warnings.append(
                    f"FileExistsCondition: no training writes {rest.lstrip('/')}; "
                    f"it is taken as: {other.stage} has finished"
                )
                return Condition("finished", path=other.stage_dir)
            break
        return Condition("file", path=path)

    def _trainer_of(self, other: Neighbour) -> Neighbour | None:
        if other.kind == "train":
            return other
        return next((item for item in self.siblings if item.stage == other.branch), None)

    def _converter_of(self, other: Neighbour) -> Neighbour | None:
        return next(
            (item for item in self.siblings if item.kind == "convert" and item.branch == other.branch), None
        )

    def _glob(self, data: Mapping[str, Any]) -> Condition:
        pattern, least = self._path(data, "pattern"), _whole(data, "min_matches", 1)
        if least < 1:
            raise ConditionError(f"min_matches is {least}; write 1 or more")
        if least == 1:
            return self._file(pattern)
        return Condition("command", command=f'[ "$(compgen -G {_quoted(pattern)} | wc -l)" -ge {least} ]')

    def _line(self, path: str, pattern: str) -> Condition:
        """Return the condition for a line in a file, or in a job's log of any attempt."""
        jobs = (self.own, *self.siblings)
        writer = next((job for job in jobs if path in (job.log, job.log.replace("{attempt}", "1"))), None)
        if writer is None:
            return Condition("log", path=path, pattern=_compiled(pattern))
        return Condition("log", path=writer.log, pattern=_compiled(pattern), producer=writer.stage_dir)

    def _content(self, data: Mapping[str, Any]) -> Condition:
        pattern, mode = _text(data, "pattern", data["class_name"]), data.get("mode", "contains")
        if mode not in ("contains", "regex"):
            raise ConditionError(f"mode is {mode!r}; write contains or regex")
        return self._line(self._path(data, "path"), re.escape(pattern) if mode == "contains" else pattern)

    def _log(self, data: Mapping[str, Any]) -> Condition:
        path = self._path(data, "log_path") if data.get("log_path") else self.own.log
        return self._line(path, _text(data, "pattern", data["class_name"]))

    def _filled(self, text: str, what: str, variables: Mapping[str, Any] | None = None) -> str:
        """Return a text with the variables of oellm-autoexp's monitor that are known before a job runs.

        :param what: names the owner in messages
        :param variables: further ones
        """
        known = {**self.variables, **(variables or {})}
        unknown = dict.fromkeys(
            name for name in _VARIABLE.findall(text) if name in _LATER_VARIABLES - known.keys()
        )
        if unknown:
            named = ", ".join(f"{{{name}}}" for name in unknown)
            self.warnings.append(
                f"{what}: {named}: not replaced here, where a job has no such value before it runs"
            )
        return _VARIABLE.sub(lambda match: str(known.get(match[1], match[0])), text)

    def _path(self, data: Mapping[str, Any], key: str) -> str:
        path = self._filled(_text(data, key, data["class_name"]), data["class_name"])
        path = self.absolute(path, f"{data['class_name']}: {key}")
        if not path.startswith("/"):
            self.warnings.append(
                f"{data['class_name']}: {key} {path!r} is not absolute, and oellm-autoexp's own directory, where "
                "it would begin, is none here; set PROJECT_DIR, or write its whole path on the cluster"
            )
        return path

    def _slurm_state(self, data: Mapping[str, Any]) -> Condition:
        name = self._filled(_text(data, "job_name", data["class_name"]), data["class_name"])
        state = checked_state(data.get("state", "FAILED"), "SlurmStateCondition")
        other = next((item for item in self.siblings if item.job_name == name), None)
        if other is None:
            self.warnings.append(
                f"SlurmStateCondition: {name} is not a job of this point; its state is read with squeue"
            )
            pattern = _quoted(f"^{re.escape(state)}")
            query = f"squeue --noheader --states=all --format=%T --name={_quoted(name)}"
            return Condition("command", command=f"{query} | grep -q {pattern}")
        finished = Condition("finished", path=other.stage_dir)
        if state in GOOD_STATES:
            return finished
        return Condition(
            "all", parts=(Condition("ended", path=other.stage_dir), Condition("not", parts=(finished,)))
        )

    def _passed_over(self, data: Mapping[str, Any]) -> None:
        self.warnings.append(f"{data['class_name']} has no counterpart here and is taken as always true")

    def events(self, log_events: Any, state_events: Any) -> tuple[Event, ...]:
        """Return the events of a job; log events come first.

        oellm-autoexp counts the actions of each event by name and place, so of events of one name the later ones get a
        number.

        :raises ConditionError: for an event that is malformed
        """
        made: list[Event | None] = []
        for key, given, make in (
            ("job.log_events", log_events, self._log_event),
            ("job.state_events", state_events, self._state_event),
        ):
            with placed(key):
                items = _mappings(given)
            for index, data in enumerate(items):
                with placed(f"{key}.{index}"):
                    made.append(make(data))
        return tuple(_with_own_names([event for event in made if event is not None]))

    def _log_event(self, data: Mapping[str, Any]) -> Event | None:
        self._note_unread(f"event {data.get('name')!r}", data, LOG_EVENT_FIELDS)
        what = f"event {data.get('name')!r}"
        kind = str(data.get("pattern_type", "substring"))
        if kind not in _FIELDS_OF_KINDS:
            near = did_you_mean(kind, _FIELDS_OF_KINDS) or f"write {', '.join(_FIELDS_OF_KINDS)}"
            raise ConditionError(f"pattern_type is {kind!r}; {near}")
        passed_over = [
            field
            for other, fields in _FIELDS_OF_KINDS.items()
            for field, default in fields.items()
            if other != kind
            and field not in _FIELDS_OF_KINDS[kind]
            and data.get(field) not in (None, default)
        ]
        if passed_over:
            given = ", ".join(dict.fromkeys(passed_over))
            self.warnings.append(f"{what}: {given}: nothing here reads it where pattern_type is {kind}")
        limit = 1 if _flag(data, "match_once", True, what) else None
        if kind in ("inactivity", "progress"):
            silence = max(
                _number(data, f"{kind}_timeout_s", 0), _number(data, f"{kind}_polls", 1) * POLL_SECONDS
            )
            return self._event(data, "idle", after=silence, limit=limit)
        pattern = _text(data, "pattern", what)
        groups = data.get("extract_groups") or {}
        if kind == "regex":
            _check_groups(pattern, groups)
        pattern = re.escape(pattern) if kind == "substring" else _with_groups(pattern, groups)
        action = data.get("action")
        if isinstance(action, dict) and "path" in action:
            content = str(action.get("content", "{match}"))
            if "{match}" in content:
                pattern = f"(?P<match>{pattern})"
            known = {"match", *re.findall(r"\?P<(\w+)>", pattern)}
            if unknown := [name for name in re.findall(r"\{(\w+)\}", content) if name not in known]:
                raise ConditionError(
                    f"{what}: content has {{{unknown[0]}}}, and the pattern has no such group; "
                    f"write extract_groups: {{{unknown[0]}: 1}}"
                )
        return self._event(data, "log", pattern=_compiled(pattern), limit=limit)

    def _state_event(self, data: Mapping[str, Any]) -> Event | None:
        what = f"event {data.get('name')!r}"
        self._note_unread(what, data, STATE_EVENT_FIELDS)
        transition = data.get("transition")
        if not isinstance(transition, list) or len(transition) != 2:
            raise ConditionError(
                f"event {data.get('name')!r}: transition takes [old, new], for example [RUNNING, FAILED]"
            )
        old, new = (
            None if state is None else _slurm_word(checked_state(state, what)) for state in transition
        )
        if old is not None and old == new:
            raise ConditionError(
                f"{what}: a job in the state {old} does not change to {new}; write [null, {new}]"
            )
        if old is not None and new in _BEFORE_RUNNING:
            raise ConditionError(
                f"{what}: the state before, {old}, is not looked at, and each job is {new} before it runs"
            )
        if old not in (None, "RUNNING"):
            self.warnings.append(f"{what}: the state before, {old}, is not looked at")
        if old is None and new is None:
            self.warnings.append(f"{what}: any state counts, and the first one is PENDING")
        state = ".*" if new is None else re.escape(new)
        if old == "RUNNING" and new is None:
            left = sorted({_slurm_word(state) for state in STATES} - _BEFORE_RUNNING - {"RUNNING"})
            state = f"(?:{'|'.join(left)})"
        return self._event(data, "state", pattern=f"^{state}", limit=1)

    def _event(
        self,
        data: Mapping[str, Any],
        on: Any,
        *,
        limit: int | None,
        pattern: str = "",
        after: float | None = None,
    ) -> Event | None:
        action = data.get("action")
        if action is None:
            self.warnings.append(f"event {data.get('name')!r}: it has no action, so nothing comes of it")
            return None
        if not isinstance(action, dict) or not action.get("class_name"):
            raise ConditionError(
                f"event {data.get('name')!r}: action is {action!r}; write {{class_name: RestartAction}}"
            )
        name = re.sub(r"[^A-Za-z0-9_-]+", "_", str(data.get("name") or on)).strip("_-") or str(on)
        does = self._action(action, name)
        if does is None:
            return None
        do, command, message = does
        given = data.get("condition")
        counted = given if isinstance(given, dict) and given.get("class_name") in _COUNT_ATTEMPTS else None
        condition = None
        if do != "restart" or counted is None:
            condition = self.condition(given)
        else:
            self._note_unread(_ATTEMPTS, counted, condition_fields(_ATTEMPTS))
        if do == "restart":
            self.attempts.append((name, None if counted is None else _whole(counted, "max_attempts", 1)))
        return Event(name, on, do, pattern, after, condition, command, message, limit)

    def _action(self, action: Mapping[str, Any], event: str) -> tuple[EventAction, str, str] | None:
        name = str(action.get("class_name", "")).removesuffix("Action")
        if name in ACTION_FIELDS:
            self._note_unread(f"event {event}: {name}Action", action, ("class_name", *ACTION_FIELDS[name]))
        reason = str(action.get("reason") or "")
        match name:
            case "Finish":
                return "finish", "", reason
            case "Cancel":
                return "cancel", "", reason
            case "Restart":
                return "restart", "", reason
            case "Log":
                message = str(action.get("message") or f"event {event}")
                return "notify", "", self._filled(message, f"event {event}", {"event_name": event})
            case "AppendToFile":
                path = self._filled(str(_needed(action, "path")), f"event {event}", {"event_name": event})
                return "run", _append_command({**action, "path": path}), reason
            case "UpdateChainExcludes":
                self.warnings.append(
                    f"event {event}: UpdateChainExcludesAction is not needed: restart.exclude_failed_nodes "
                    "keeps further attempts off nodes that failed"
                )
                return None
            case "QuarantineCheckpoint":
                renamed = 0 if action.get("dry_run") else _whole(action, "max_rollbacks", 2)
                self.quarantine = renamed
                self.warnings.append(
                    f"event {event}: QuarantineCheckpointAction is not needed: before each attempt a damaged "
                    f"checkpoint of the job is renamed, at most {renamed} (restart.quarantine)"
                )
                return None
            case "NewJob" | "RunAutoexp":
                self.warnings.append(
                    f"event {event}: {name}Action starts jobs outside the sweep and only notifies here; "
                    "write a stage instead"
                )
                return "notify", "", f"{name}Action: {reason}".rstrip(": ")
            case _:
                known = [f"{one}Action" for one in ACTION_FIELDS]
                near = did_you_mean(str(action.get("class_name")), known) or f"known: {', '.join(known)}"
                raise ConditionError(
                    f"event {event}: there is no action {action.get('class_name')!r}; {near}"
                )


def _checkpoint(trainer: Neighbour, iteration: int) -> Condition:
    return Condition(
        "checkpoint",
        path=RunLayout(trainer.run_dir).checkpoint_dir,
        iteration=iteration,
        producer=trainer.stage_dir,
    )


_CONDITIONS: Mapping[str, Callable[[Translator, Mapping[str, Any]], Condition | None]] = {
    "AlwaysTrueCondition": lambda own, data: None,
    "AndCondition": lambda own, data: own._combined("all", data.get("conditions")),
    "BlockingFileExistsCondition": lambda own, data: own._file(own._path(data, "path")),
    "CommandCondition": lambda own, data: Condition(
        "command",
        command=" ".join(_quoted(own._filled(word, data["class_name"])) for word in _words(data)),
    ),
    "CompositeCondition": lambda own, data: own._combined(
        str(data.get("mode", "all")), data.get("conditions")
    ),
    "CooldownCondition": lambda own, data: own._passed_over(data),
    "FileContentCondition": lambda own, data: own._content(data),
    "FileExistsCondition": lambda own, data: own._file(own._path(data, "path")),
    "GlobExistsCondition": lambda own, data: own._glob(data),
    "LogPatternCondition": lambda own, data: own._log(data),
    "MaxActionFiresCondition": lambda own, data: own._passed_over(data),
    "MaxAttemptsCondition": lambda own, data: own._passed_over(data),
    "MetadataCondition": lambda own, data: own._passed_over(data),
    "NotCondition": lambda own, data: own._negated(data),
    "OrCondition": lambda own, data: own._combined("any", data.get("conditions")),
    "ShellCommandCondition": lambda own, data: Condition(
        "command",
        command=own._filled(_text(data, "command", data["class_name"]), data["class_name"]),
    ),
    "SlurmStateCondition": lambda own, data: own._slurm_state(data),
    "TimeoutCondition": lambda own, data: own._passed_over(data),
}


def _needed(data: Mapping[str, Any], key: str) -> Any:
    value = data.get(key)
    if value in (None, "", []):
        raise ConditionError(f"{data['class_name']} needs {key}")
    return value


def _number(data: Mapping[str, Any], key: str, default: float) -> float:
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise ConditionError(f"{key} is {value!r}, not a number")
    return float(value)


def _whole(data: Mapping[str, Any], key: str, default: int) -> int:
    number = _number(data, key, default)
    if number != int(number):
        raise ConditionError(f"{key} is {number!r}, not a whole number")
    return int(number)


def _text(data: Mapping[str, Any], key: str, what: str) -> str:
    """Return a text or a number as text.

    :param what: names the owner in messages
    :raises ConditionError: for nothing, and for any other value
    """
    value = data.get(key)
    if value in (None, "", []):
        raise ConditionError(f"{what} needs {key}")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConditionError(f"{what}: {key} is {value!r}, not a text")
    return str(value)


def _flag(data: Mapping[str, Any], key: str, default: bool, what: str) -> bool:
    value = data.get(key, default)
    if not isinstance(value, bool):
        raise ConditionError(f"{what}: {key} is {value!r}; write true or false")
    return value


def _slurm_word(state: str) -> str:
    """Return Slurm's word for oellm-autoexp's own."""
    return "COMPLETED" if state in GOOD_STATES else state


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ConditionError("log_events and state_events take lists of {name: …, action: …}")
    return value


def _compiled(pattern: str) -> str:
    try:
        line_pattern(pattern)
    except PatternError as error:
        hint = f" ({error.hint})" if error.hint else ""
        raise ConditionError(f"{error}{hint}") from error
    return pattern


def _words(data: Mapping[str, Any]) -> list[str]:
    """Return the words of a command; oellm-autoexp makes ``True`` of ``true``, and of ``yes``."""
    command = _needed(data, "command")
    words = command if isinstance(command, list) else [command]
    if not all(isinstance(word, str | int | float) for word in words):
        raise ConditionError(f"{data['class_name']}: command is {command!r}, not a list of words")
    return [str(word) for word in words]


def _quoted(value: str) -> str:
    try:
        return quote(value)
    except QuotingError as error:
        raise ConditionError(str(error)) from None


def _check_groups(pattern: str, groups: Any) -> None:
    """Refuse numbers that are no groups of the pattern."""
    for name, number in groups.items() if isinstance(groups, dict) else ():
        group = list_index(str(number), _MOST_GROUPS)
        if group is None or not 1 <= group <= _groups(pattern):
            raise ConditionError(
                f"extract_groups has {name}: {number}, and the pattern {pattern!r} has {_groups(pattern)} groups"
            )


def _with_groups(pattern: str, groups: Any) -> str:
    """Return the pattern with its numbered groups named by ``extract_groups``."""
    if not isinstance(groups, dict):
        raise ConditionError("extract_groups takes {name: number of the group}")
    numbers = {str(name): list_index(str(number), _MOST_GROUPS) for name, number in groups.items()}
    names = {number: name for name, number in numbers.items() if number is not None}
    if not names:
        return pattern
    pieces: list[str] = []
    number, in_set, at = 0, False, 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            pieces.append(pattern[at : at + 2])
            at += 2
            continue
        in_set = character == "[" if not in_set else character != "]"
        pieces.append(character)
        if character == "(" and not in_set and pattern[at + 1 : at + 2] != "?":
            number += 1
            name = re.sub(r"\W", "_", names.get(number, ""))
            if name:
                pieces.append(f"?P<{name}>")
        at += 1
    return "".join(pieces)


def _groups(pattern: str) -> int:
    """Return the number of groups of a pattern; a wrong one, which is refused later, has as many as can be."""
    try:
        groups: int = line_pattern(pattern).capturing.groups
    except PatternError:
        return _MOST_GROUPS
    return groups


def _append_command(action: Mapping[str, Any]) -> str:
    """Return the shell text that adds a line to a file, once; ``{node}`` is the group ``node`` of the match."""
    path = _quoted(str(_needed(action, "path")))
    pieces = re.split(r"\{(\w+)\}", str(action.get("content") or "{match}"))
    words = [
        f'"${{am_match_{piece}:-}}"' if index % 2 else _quoted(piece) if piece else ""
        for index, piece in enumerate(pieces)
    ]
    line = "".join(words) or "''"
    parents = f'mkdir -p "$(dirname {path})" && ' if action.get("create_parents", True) else ""
    add = f"printf '%s\\n' {line} >> {path}"
    if not action.get("dedup", True):
        return parents + add
    return f"{parents}{{ grep -qxF -e {line} {path} 2>/dev/null || {add}; }}"


def _with_own_names(events: Sequence[Event]) -> Iterator[Event]:
    """Yield the events, with ``-2``, ``-3``, … at the names that others before them have."""
    taken = {event.name for event in events}
    seen: set[str] = set()
    for event in events:
        name = event.name
        if name in seen:
            name = next(
                new for number in itertools.count(2) if (new := f"{event.name}-{number}") not in taken
            )
            taken.add(name)
        seen.add(name)
        yield msgspec.structs.replace(event, name=name)
