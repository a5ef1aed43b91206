"""Looking for the events of a job in what the polls of its cluster show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.spec.trust.patterns import line_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.slurm.states.observation import Observation
    from airflow_megatron.slurm.verdicts.verdict import Verdict
    from airflow_megatron.spec.model.conditions import Event

_CARRY_BYTES = 64 * 1024


@dataclass(frozen=True)
class Seen:
    """An event that was seen.

    :param event: which
    :param what: the log line, the state, or for how long nothing came
    :param groups: named groups of the match
    """

    event: Event
    what: str
    groups: Mapping[str, str]

    @property
    def occurrence(self) -> Occurrence:
        """What a worker needs to act on it."""
        return Occurrence(
            self.event.do, self.reason, on=self.event.on, command=self.event.command, groups=self.groups
        )

    @property
    def reason(self) -> str:
        """One sentence for a verdict."""
        message = f": {self.event.message}" if self.event.message else ""
        return f"event {self.event.name!r} ({self.event.on}: {self.what}){message}"


class EventWatch:
    """The events of one attempt.

    :param events: what to look for
    :param memory: what :meth:`memory` of an earlier watch of this attempt gave
    """

    def __init__(self, events: Sequence[Event], memory: Mapping[str, Any] | None = None) -> None:
        known = dict(memory or {})
        self._events = tuple(events)
        self._carry = b""
        self._state: str = known.get("state", "")
        self._progress: float | None = known.get("progress")
        self._acted: dict[str, int] = dict(known.get("acted", {}))

    def memory(self) -> dict[str, Any]:
        """Return what a later watch of this attempt needs to go on: else what was seen would be seen again."""
        return {"acted": self._acted, "state": self._state, "progress": self._progress}

    def read(self, observation: Observation, *, progressed: bool, end: Verdict | None = None) -> list[Seen]:
        """Return what this observation shows, in the order of the events.

        :param progressed: a new iteration, or a new line of a job without iterations, has come
        :param end: how the job has ended, once the whole log is read: what showed since the last look counts, a line
            without an end and states that nobody saw among it
        """
        if observation.unreachable is not None:
            self._progress = None  # nothing is known of the time without answers
            return []
        lines = self._lines(observation.log_chunk)
        state = observation.queue.state.value if observation.queue else ""
        states = [state] if state and state != self._state else []
        if end is not None:
            lines += [self._carry.decode(errors="replace")] if self._carry else []
            states = self._states_until(end)
        running = state == "RUNNING" and end is None
        if progressed or not running or self._progress is None:
            self._progress = observation.time
        quiet = observation.time - self._progress
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
                    if event.after is not None and quiet >= event.after:
                        seen.append(Seen(event, f"nothing new for {quiet:.0f} s", {}))
                        self._progress = observation.time
        self._state = states[-1] if states else self._state
        return seen

    def count(self, event: Event) -> None:
        """Note that an event has acted."""
        self._acted[event.name] = self._acted.get(event.name, 0) + 1

    def _states_until(self, end: Verdict) -> list[str]:
        """Return the states since the last one that was seen: a short job has run and ended between two looks."""
        last = end.state.value if end.state else ""
        ran = end.elapsed is None or end.elapsed > 0 or end.exit_code is not None
        passed = [JobState.RUNNING.value] if ran and self._state not in ("RUNNING", last) else []
        return [state for state in (*passed, last) if state and state != self._state]

    def _lines(self, chunk: bytes) -> list[str]:
        *lines, self._carry = (self._carry + chunk).split(b"\n")
        self._carry = self._carry[-_CARRY_BYTES:]
        return [line.decode(errors="replace") for line in lines]

    @staticmethod
    def _matches(event: Event, lines: Sequence[str]) -> list[Seen]:
        pattern = line_pattern(event.pattern)
        for line in lines:
            groups = pattern.search(line)
            if groups is not None:
                return [Seen(event, line.strip(), groups)]
        return []
