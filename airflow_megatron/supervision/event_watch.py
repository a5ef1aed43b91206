"""Detection of a job's events in the observations of its cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.spec.trust.json_records import real, whole, word
from airflow_megatron.spec.trust.patterns import line_pattern, log_lines
from airflow_megatron.spec.trust.plain_text import LONGEST_LINE, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.slurm.states.observation import Observation
    from airflow_megatron.slurm.verdicts.verdict import Verdict
    from airflow_megatron.spec.model.conditions import Event

_CARRY_BYTES = 64 * 1024


@dataclass(frozen=True)
class Seen:
    """A detected event.

    :param event: the event
    :param what: the log line, the state, or the duration without output
    :param groups: named groups of the match
    """

    event: Event
    what: str
    groups: Mapping[str, str]

    @property
    def occurrence(self) -> Occurrence:
        """The occurrence on which a worker acts."""
        return Occurrence(
            self.event.do, self.reason, on=self.event.on, command=self.event.command, groups=self.groups
        )

    @property
    def reason(self) -> str:
        """One sentence for a verdict."""
        message = f": {self.event.message}" if self.event.message else ""
        return f"event {self.event.name!r} ({self.event.on}: {shown(self.what[:LONGEST_LINE])}){message}"


@dataclass(frozen=True)
class EventMemory:
    """The state of an :class:`EventWatch`, with which a later watch of the attempt continues.

    :param acted: name of an event → how often its action was requested
    :param state: the last state of the job in the queue, empty if unknown
    :param progress: time of the last progress on the cluster's clock, None if unknown; moved forward by the times in
        which the state of the job was unknown
    :param idle: name of an idle event → when it was last seen since then, on the same clock
    """

    acted: Mapping[str, int] = field(default_factory=dict)
    state: str = ""
    progress: float | None = None
    idle: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EventMemory:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored."""
        acted, idle = value.get("acted"), value.get("idle")
        times = {str(name): real(time) for name, time in idle.items()} if isinstance(idle, dict) else {}
        return cls(
            acted={str(name): whole(count, 0) for name, count in acted.items()}
            if isinstance(acted, dict)
            else {},
            state=word(value.get("state")) or "",
            progress=real(value.get("progress")),
            idle={name: time for name, time in times.items() if time is not None},
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "acted": dict(self.acted),
            "state": self.state,
            "progress": self.progress,
            "idle": dict(self.idle),
        }


class EventWatch:
    """The events of one attempt.

    :param events: the events to detect
    :param memory: result of :meth:`memory` of an earlier watch of this attempt
    """

    def __init__(self, events: Sequence[Event], memory: EventMemory | None = None) -> None:
        known = memory or EventMemory()
        self._events = tuple(events)
        self._carry = b""
        self._state = known.state
        self._progress: float | None = known.progress
        self._idle: dict[str, float] = dict(known.idle)
        self._answered: float | None = None
        self._unanswered = False
        self._acted: dict[str, int] = dict(known.acted)

    def memory(self) -> EventMemory:
        """Return the state with which a later watch of this attempt continues without repeating events."""
        progress = None if self._unanswered else self._progress
        return EventMemory(
            dict(self._acted), self._state, progress, dict(self._idle) if progress is not None else {}
        )

    def work(self, observation: Observation) -> int:
        """Return the bytes that :meth:`read` will search, once for each pattern."""
        patterns = sum(event.on == "log" for event in self._events)
        return (len(self._carry) + len(observation.log_chunk)) * patterns

    def read(self, observation: Observation, *, progressed: bool, end: Verdict | None = None) -> list[Seen]:
        """Return the events in this observation, in the order of their definition.

        :param progressed: whether there is a new iteration, or a new line of a job without iterations
        :param end: the end of the job, after the complete log was read; then an incomplete last line and states between
            two polls count too
        """
        if observation.unreachable is not None:
            self._unanswered = True
            return []
        lines = self._lines(observation.log_chunk)
        state = observation.queue.state.value if observation.queue else ""
        states = [state] if state and state != self._state else []
        if end is not None:
            lines += [self._carry.decode(errors="replace")] if self._carry else []
            states = self._states_until(end)
        quiet = self._quiet(observation, progressed=progressed, running=state == "RUNNING" and end is None)
        seen: list[Seen] = []
        for event in self._events:
            if event.limit is not None and self._acted.get(event.name, 0) >= event.limit:
                continue
            match event.on:
                case "log":
                    seen += self._matches(event, lines)
                case "state":
                    seen += self._matches(event, states)
                case "idle":
                    since = observation.time - self._idle.get(event.name, -math.inf)
                    if event.after is not None and min(quiet, since) >= event.after:
                        seen.append(Seen(event, f"nothing new for {quiet:.0f} s", {}))
                        self._idle[event.name] = observation.time
        self._state = states[-1] if states else self._state
        return seen

    def count(self, event: Event) -> None:
        """Count an action of an event."""
        self._acted[event.name] = self._acted.get(event.name, 0) + 1

    def _quiet(self, observation: Observation, *, progressed: bool, running: bool) -> float:
        """Return the seconds for which the job has run without progress, without those without an answer of Slurm."""
        if not observation.queue_ok:  # the log was read, but whether the job runs is unknown
            self._unanswered = True
            if progressed:
                self._progress = None
            return 0.0
        if self._unanswered and self._answered is not None and self._progress is not None:
            skipped = observation.time - self._answered
            self._progress += skipped
            self._idle = {name: time + skipped for name, time in self._idle.items()}
        elif self._unanswered:
            self._progress = None
        self._answered, self._unanswered = observation.time, False
        if progressed or not running or self._progress is None:
            self._progress = observation.time
            self._idle.clear()
        return observation.time - self._progress

    def _states_until(self, end: Verdict) -> list[str]:
        """Return the states since the last observed one; a short job may start and end between two polls."""
        last = end.state.value if end.state else ""
        ran = end.elapsed is None or end.elapsed > 0 or end.exit_code is not None
        passed = [JobState.RUNNING.value] if ran and self._state not in ("RUNNING", last) else []
        return [state for state in (*passed, last) if state and state != self._state]

    def _lines(self, chunk: bytes) -> list[str]:
        *lines, self._carry = log_lines(self._carry + chunk)
        self._carry = self._carry[-_CARRY_BYTES:]
        # only the first matching line counts, because a job may repeat a line tens of thousands of times
        return [line.decode(errors="replace") for line in dict.fromkeys(lines)]

    @staticmethod
    def _matches(event: Event, lines: Sequence[str]) -> list[Seen]:
        pattern = line_pattern(event.pattern)
        for line in lines:
            groups = pattern.search(line)
            if groups is not None:
                return [Seen(event, line.strip(), groups)]
        return []
