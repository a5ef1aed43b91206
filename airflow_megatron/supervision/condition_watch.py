"""Evaluation of a condition: the watches that it needs, and its result from their observations."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.checkpoints.completeness import (
    checkpoint_verdict,
    has_marks,
    verdicts_by_iteration,
)
from airflow_megatron.slurm.remote.quoting import quote, quote_glob
from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.verdict import SETTLE_S, Outcome, Verdict
from airflow_megatron.spec.documents.checkpoint_directories import directory_name
from airflow_megatron.spec.layout.run_layout import StageDir
from airflow_megatron.spec.layout.tracker import tracked_iteration
from airflow_megatron.spec.model.conditions import Condition, Event
from airflow_megatron.spec.trust.json_records import real, whole
from airflow_megatron.spec.trust.patterns import line_pattern, log_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.slurm.states.observation import Observation

_CARRY_BYTES = 64 * 1024
_CATCH_UP_BYTES = 1024 * 1024
_MOST_WITHOUT_LOG = 15
"""Maximum number of consecutive attempts without a log (cancelled in the queue, failed nodes)."""
_NUMBER = re.compile(r"[0-9]{1,15}")


class ConditionResult(Enum):
    """The result of evaluating a condition."""

    YES = "holds"
    NO = "does not hold yet"
    NEVER = "cannot hold any more"


@dataclass(frozen=True)
class OwnAttempt:
    """The attempt whose conditions are evaluated.

    :param stage_dir: stage directory of its job
    :param number: number of the attempt
    :param log_from: offset of the attempt's output in its log, in bytes
    """

    stage_dir: str
    number: int
    log_from: int = 0


@dataclass(frozen=True)
class AttemptConditions:
    """The conditions and events that a trigger evaluates while it watches an attempt.

    :param cancel: condition that cancels the job
    :param cancel_text: that condition as text for messages
    :param finish: condition that finishes the job
    :param events: the events to detect
    :param check_interval: seconds between two runs of a command, 0 for every poll
    :param runs: stage directory → first attempt that counts for the conditions
    """

    cancel: Condition | None = None
    cancel_text: str = ""
    finish: Condition | None = None
    events: tuple[Event, ...] = ()
    check_interval: float = 0.0
    runs: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AttemptConditions:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored."""
        cancel, finish = value.get("cancel"), value.get("finish")
        return cls(
            cancel=Condition.from_json(cancel) if cancel else None,
            cancel_text=str(value.get("cancel_text") or ""),
            finish=Condition.from_json(finish) if finish else None,
            events=tuple(map(Event.from_json, value.get("events") or ())),
            check_interval=real(value.get("check_interval"), 0.0),
            runs={name: whole(first, 0) for name, first in (value.get("runs") or {}).items()},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the argument ``conditions`` of a trigger, without values that are not set."""
        value: dict[str, Any] = {}
        if self.cancel is not None:
            value |= {"cancel": self.cancel.to_json(), "cancel_text": self.cancel_text}
        if self.finish is not None:
            value["finish"] = self.finish.to_json()
        if self.events:
            value["events"] = [event.to_json() for event in self.events]
        if self.check_interval:
            value["check_interval"] = self.check_interval
        if self.runs:
            value["runs"] = dict(self.runs)
        return value


class ConditionWatch:
    """The state of a condition over several polls.

    :param condition: the condition
    :param attempts: stage directory → first attempt whose verdict, log and files count; those of older attempts belong
        to an earlier run of that stage
    :param check_interval: seconds between two runs of a command
    :param own: the attempt that has the condition; in the logs of its job, only the output of this attempt counts

    ``line`` is the last matching line, stripped.
    """

    def __init__(
        self,
        condition: Condition,
        attempts: Mapping[str, int] | None = None,
        check_interval: float = 0.0,
        own: OwnAttempt | None = None,
    ) -> None:
        self._condition = condition
        self._attempts = dict(attempts or {})
        self._own = own
        self._read_logs: dict[Condition, int] = {}
        self._check_interval = check_interval
        self.line = ""
        self.leaves: tuple[Condition, ...] = tuple(dict.fromkeys(condition.leaves()))
        self._results: dict[Condition, ConditionResult] = dict.fromkeys(self.leaves, ConditionResult.NO)
        self._carry: dict[Condition, bytes] = {}
        self._behind: dict[Condition, int] = {}

    def watches(self) -> list[Watch]:
        """Return one watch for each of :attr:`leaves`, in the same order."""
        return [self._watch(leaf) for leaf in self.leaves]

    def work(self, observations: Sequence[Observation]) -> int:
        """Return the bytes that :meth:`read` will search for patterns, and the work of judging checkpoints."""
        return sum(
            len(self._carry.get(leaf, b"")) + len(observation.log_chunk) + observation.listing_work
            for leaf, observation in zip(self.leaves, observations, strict=True)
        )

    def read(self, observations: Sequence[Observation]) -> ConditionResult:
        """Evaluate one observation for each watch and return the result.

        :param observations: in the order of :meth:`watches`
        """
        for leaf, observation in zip(self.leaves, observations, strict=True):
            if observation.unreachable is None:
                self._behind[leaf] = (
                    (observation.log_size or 0) - observation.log_offset - len(observation.log_chunk)
                )
                self._results[leaf] = self._judge(leaf, observation)
        return self.result

    @property
    def is_behind(self) -> bool:
        """Whether a log has unread lines that a few more polls can read."""
        missing = max(self._behind.values(), default=0)
        return 0 < missing <= _CATCH_UP_BYTES

    @property
    def result(self) -> ConditionResult:
        """The current result."""
        return self._combined(self._condition)

    def missing(self) -> str:
        """Return the parts that do not hold, as readable text."""
        parts = [
            f"{leaf} {result.value}"
            for leaf, result in self._results.items()
            if result is not ConditionResult.YES
        ]
        return "; ".join(parts) or "holds"

    def _watch(self, leaf: Condition) -> Watch:
        key = str(leaf)
        match leaf.kind:
            case "finished" | "ended":
                return Watch(key, read_files=(StageDir(leaf.path).verdict,))
            case "checkpoint":
                return Watch(
                    key,
                    checkpoint_dir=leaf.path,
                    checkpoint_from=leaf.iteration or 0,
                    read_files=_verdict_file(leaf),
                )
            case "new_checkpoint":
                done = (leaf.done.replace("{iteration}", "*"),)
                if "{iteration}" in leaf.path:
                    return Watch(key, globs=(leaf.path.replace("{iteration}", "*"), *done))
                return Watch(key, checkpoint_dir=leaf.path, checkpoint_from=leaf.iteration or 0, globs=done)
            case "log":
                begin = self._own.log_from if self._is_own(leaf) and self._own else 0
                return Watch(
                    key,
                    log_file=self._log(leaf),
                    log_offset=begin,
                    read_files=_verdict_file(leaf),
                    check_files=self._later_logs(leaf),
                )
            case "file":
                first = self._attempts.get(leaf.producer, 1)
                if first > 1:
                    return Watch(key, commands=(_newer_text(leaf, first),))
                if any(character in leaf.path for character in "*?["):
                    return Watch(key, globs=(leaf.path,))
                return Watch(key, check_files=(leaf.path,))
            case "command":
                return Watch(key, commands=(_shell_text(leaf),), command_interval=self._check_interval)
            case _:
                raise ValueError(f"{leaf.kind} is made of other conditions")

    def _log(self, leaf: Condition, after: int = 0) -> str:
        """Return the log that is being read, or the log of the attempt ``after`` attempts later."""
        if self._own is not None and self._is_own(leaf):
            return leaf.path.replace("{attempt}", str(self._own.number))
        attempt = self._attempts.get(leaf.producer, 1) + self._read_logs.get(leaf, 0) + after
        return leaf.path.replace("{attempt}", str(attempt))

    def _later_logs(self, leaf: Condition) -> tuple[str, ...]:
        """Return the possible logs of the next attempts; an attempt that never ran has no log."""
        if "{attempt}" not in leaf.path or self._is_own(leaf):
            return ()
        return tuple(self._log(leaf, after) for after in range(1, _MOST_WITHOUT_LOG + 2))

    def _is_own(self, leaf: Condition) -> bool:
        return self._own is not None and leaf.producer == self._own.stage_dir

    def _judge(self, leaf: Condition, observation: Observation) -> ConditionResult:
        match leaf.kind:
            case "finished" | "ended":
                end = self._end(leaf.path, observation)
                if end is None:
                    return ConditionResult.NO
                fits = leaf.kind == "ended" or end.outcome is Outcome.FINISHED
                return ConditionResult.YES if fits else ConditionResult.NEVER
            case "checkpoint":
                return self._unless_ended(leaf, observation, holds=self._is_complete(leaf, observation))
            case "new_checkpoint":
                return ConditionResult.YES if new_checkpoints(leaf, observation) else ConditionResult.NO
            case "log":
                if self._results[leaf] is ConditionResult.YES:
                    return ConditionResult.YES
                found = self._search(leaf, observation.log_chunk)
                later = [observation.existing.get(path, False) for path in self._later_logs(leaf)]
                if any(later) and not observation.log_chunk and not self._behind[leaf]:
                    # the attempt has ended, and a later one writes its log
                    self._read_logs[leaf] = self._read_logs.get(leaf, 0) + later.index(True) + 1
                    self._carry.pop(leaf, None)
                unread = bool(observation.log_chunk) or any(later)
                return self._unless_ended(leaf, observation, holds=found, unread=unread)
            case "file":
                if (first := self._attempts.get(leaf.producer, 1)) > 1:
                    answer = observation.answers.get(_newer_text(leaf, first))
                    if answer is None:
                        return self._results[leaf]
                    return ConditionResult.YES if answer.exit_code == 0 else ConditionResult.NO
                if leaf.path not in observation.matches and leaf.path not in observation.existing:
                    return self._results[leaf]  # this poll has no result of the command
                found = any(observation.matches.get(leaf.path, ())) or observation.existing.get(
                    leaf.path, False
                )
                return ConditionResult.YES if found else ConditionResult.NO
            case _:
                answer = observation.answers.get(_shell_text(leaf))
                if answer is None:
                    return self._results[leaf]
                if leaf.prints is None:
                    return ConditionResult.YES if answer.exit_code == 0 else ConditionResult.NO
                return ConditionResult.YES if answer.output.strip() == leaf.prints else ConditionResult.NO

    def _end(self, stage_dir: str, observation: Observation) -> RecordedVerdict | None:
        recorded = RecordedVerdict.read(observation.files.get(StageDir(stage_dir).verdict))
        if recorded is not None and (recorded.attempt or 0) >= self._attempts.get(stage_dir, 1):
            return recorded
        return None

    def _unless_ended(
        self, leaf: Condition, observation: Observation, *, holds: bool, unread: bool = False
    ) -> ConditionResult:
        """Return the result of a condition on a job's output: ``NEVER`` if the job has ended without the output."""
        if holds:
            return ConditionResult.YES
        ended = bool(leaf.producer) and self._end(leaf.producer, observation) is not None
        return ConditionResult.NEVER if ended and not unread else ConditionResult.NO

    @staticmethod
    def _is_complete(leaf: Condition, observation: Observation) -> bool:
        iteration = leaf.iteration or 0
        files = observation.checkpoint_files.get(directory_name(iteration, observation.checkpoint_files))
        tracked = tracked_iteration(observation.tracker)
        marked = has_marks(observation.checkpoint_files)
        return (
            bool(files)
            and checkpoint_verdict(
                files or {}, iteration=iteration, tracked=tracked, marked=marked
            ).is_complete
        )

    def _search(self, leaf: Condition, chunk: bytes) -> bool:
        *lines, rest = log_lines(self._carry.get(leaf, b"") + chunk)
        self._carry[leaf] = rest[-_CARRY_BYTES:]
        pattern = line_pattern(leaf.pattern)
        for line in dict.fromkeys((*lines, rest)):
            text = line.decode(errors="replace")
            if pattern.search(text) is not None:
                self.line = text.strip()
                return True
        return False

    def _combined(self, condition: Condition) -> ConditionResult:
        if condition.kind not in ("all", "any", "not"):
            return self._results[condition]
        parts = [self._combined(part) for part in condition.parts]
        if condition.kind == "not":
            return ConditionResult.NO if parts[0] is ConditionResult.YES else ConditionResult.YES
        decisive, other = (
            (ConditionResult.NEVER, ConditionResult.YES)
            if condition.kind == "all"
            else (ConditionResult.YES, ConditionResult.NEVER)
        )
        if decisive in parts:
            return decisive
        return other if all(part is other for part in parts) else ConditionResult.NO


def with_finish(
    verdict: Verdict, finished: ConditionResult | None, missing: str, ended_for: float
) -> Verdict:
    """Apply the finish condition of a stage to the verdict on an ended attempt.

    While the condition does not hold, the verdict is ``UNKNOWN`` for the first
    :data:`~airflow_megatron.slurm.verdicts.verdict.SETTLE_S` seconds, in which outputs of the job may become visible.

    :param verdict: verdict by the rule of the stage kind
    :param finished: result of the condition, None for a stage without one
    :param missing: the parts of the condition that do not hold
    :param ended_for: seconds since the end of the job was first observed
    """
    if finished is ConditionResult.YES:
        return replace(
            verdict, outcome=Outcome.FINISHED, reason=f"its finish condition holds; {verdict.reason}"
        )
    if finished is ConditionResult.NO and ended_for < SETTLE_S:
        reason = f"the job has ended; its finish condition may still come to hold: {missing}"
        return replace(verdict, outcome=Outcome.UNKNOWN, reason=reason)
    if finished is not None and verdict.outcome is Outcome.FINISHED:
        reason = f"{verdict.reason}, but its finish condition does not hold: {missing}"
        return replace(verdict, outcome=Outcome.ROLLED_OVER, reason=reason)
    return verdict


def new_checkpoints(leaf: Condition, observation: Observation) -> list[int]:
    """Return the iterations of complete checkpoints that are selected and not yet processed, ascending.

    Selected are iterations from ``iteration`` on that are at least ``spacing`` after the previous selected one.
    """
    worked_on = leaf.done.replace("{iteration}", "*")
    if worked_on and worked_on not in observation.matches:  # unknown at this poll
        return []
    done = _numbers(leaf.done, observation.matches.get(worked_on, ()))
    if "{iteration}" in leaf.path:
        there = sorted(
            _numbers(leaf.path, observation.matches.get(leaf.path.replace("{iteration}", "*"), ()))
        )
    else:
        verdicts = verdicts_by_iteration(observation.checkpoint_files, tracked_iteration(observation.tracker))
        there = sorted(iteration for iteration, verdict in verdicts.items() if verdict.is_complete)
    return [iteration for iteration in wanted_iterations(there, leaf) if iteration not in done]


def wanted_iterations(there: Sequence[int], leaf: Condition) -> list[int]:
    """Return the iterations that a ``new_checkpoint`` condition selects.

    :param there: existing iterations, ascending
    """
    wanted: list[int] = []
    for iteration in there:
        if iteration < (leaf.iteration or 0):
            continue
        spaced = not wanted or iteration - wanted[-1] >= leaf.spacing
        if spaced or iteration == leaf.last:
            wanted.append(iteration)
    return wanted


def _numbers(pattern: str, paths: Sequence[str]) -> set[int]:
    before, _, after = pattern.partition("{iteration}")
    numbers: set[int] = set()
    for path in paths:
        middle = path.removeprefix(before).removesuffix(after)
        if path.startswith(before) and path.endswith(after) and _NUMBER.fullmatch(middle):
            numbers.add(int(middle))
    return numbers


def _shell_text(leaf: Condition) -> str:
    """Return a command that runs in its directory, which may not exist before the first job."""
    return f"cd {quote(leaf.directory)} 2>/dev/null; {leaf.command}" if leaf.directory else leaf.command


def _newer_text(leaf: Condition, first: int) -> str:
    """Return a command that succeeds if a file was created or changed since the submission of an attempt."""
    submitted = quote(f"{leaf.producer}/{first}/created")
    return (
        f"for am_file in {quote_glob(leaf.path)}; do "
        f'[ -z "$(find "$am_file" -maxdepth 0 -cnewer {submitted} 2>/dev/null)" ] || exit 0; done; exit 1'
    )


def _verdict_file(leaf: Condition) -> tuple[str, ...]:
    return (StageDir(leaf.producer).verdict,) if leaf.producer else ()
