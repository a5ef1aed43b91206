"""Report about a job in the log of the task that waits for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pendulum

from airflow_megatron.megatron.logs.log_lines import ErrorRecord, IterationRecord, LogParser, MarkerRecord
from airflow_megatron.slurm.verdicts.unknown_state import UnknownState
from airflow_megatron.supervision.live_log import BYTES_PER_ATTEMPT, LiveLog, harmless

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.megatron.logs.log_lines import Record
    from airflow_megatron.slurm.states.observation import Observation
    from airflow_megatron.slurm.verdicts.verdict import Verdict
    from airflow_megatron.supervision.live_log import Excerpt

LOG_TAIL_BYTES = 64 * 1024
MOST_BEHIND_BYTES = 1024 * 1024
"""A poll brings 64 KiB of a log; further behind than this (a triggerer that starts again) the reading skips ahead."""
MAX_EMPTY_POLLS = 4
MOST_RECORDS_SHOWN = 20
"""Errors and markers of one look that are written into the task's log, the last ones."""
PROGRESS_PAUSE_S = 300.0
UNKNOWN_ALARM_S = 900.0


class JobReport:
    """Tells the task's log what happens to the job and what the job writes, without flooding it.

    ``position`` is the byte of the log to be read next, ``new_bytes`` and ``records`` are what the last look brought,
    ``progressed`` whether it showed progress, ``tail`` the last bytes read, ``error`` the last error in the log,
    ``began`` and ``reached`` its first and last iteration.

    :param log: the task's log
    :param log_file: the job's log on the cluster, for people
    :param memory: what :meth:`memory` of an earlier report on this attempt gave
    :param log_from: the byte at which the log begins to be this attempt's
    """

    def __init__(
        self, log: Any, log_file: str, memory: Mapping[str, Any] | None = None, log_from: int = 0
    ) -> None:
        known = dict(memory or {})
        self._log = log
        self._log_file = log_file
        self._live = LiveLog(known.get("shown_bytes", 0), known.get("left_out", 0))
        self._parser = LogParser()
        self._said = ""
        self._uncertainty = UnknownState()
        self._next_progress = 0.0
        self._iterations = False
        self._empty_polls = 0
        self._shown: int = max(known.get("offset", 0), log_from)
        # what was shown already is read again, to be searched for the line that explains an end
        self.position = max(log_from, self._shown - LOG_TAIL_BYTES // 2)
        self._begin = self._shown
        self.new_bytes = b""
        self.records: Sequence[Record] = ()
        self.progressed = False
        self.tail = bytearray()
        self.error: str | None = None
        self.began: int | None = known.get("began")
        self.reached: int | None = known.get("reached")

    def memory(self) -> dict[str, Any]:
        """Return what a later report on this attempt needs to go on; a line without an end is read again."""
        return {
            "offset": self._shown - self._live.pending_bytes,
            "shown_bytes": self._live.shown_bytes,
            "left_out": self._live.left_out,
            "began": self.began,
            "reached": self.reached,
        }

    def read(self, observation: Observation) -> None:
        """Take in new log bytes."""
        self.progressed, self.records, self.new_bytes = False, (), b""
        if not observation.log_chunk or observation.log_offset != self.position:
            return
        self.new_bytes = observation.log_chunk[max(0, self._shown - self.position) :]
        self.position += len(observation.log_chunk)
        self.tail += observation.log_chunk
        del self.tail[:-LOG_TAIL_BYTES]
        if self.new_bytes:
            self._shown = self.position
            self.records = self._parser.feed(self.new_bytes)
            counted = [record.iteration for record in self.records if isinstance(record, IterationRecord)]
            iterations = bool(counted)
            if counted:
                self.began = counted[0] if self.began is None else self.began
                self.reached = counted[-1]
            self._iterations = self._iterations or iterations
            self.progressed = iterations or not self._iterations
            self._show(self._live.take(self.new_bytes), self.records)

    def unread(self, observation: Observation) -> bool:
        """Return whether the log has bytes that were not read yet: the line that explains the end may be among them."""
        if not observation.log_size or observation.log_size <= self.position:
            return False
        # a poll that has many logs to bring leaves some for the next; a log that cannot be read never comes
        self._empty_polls = 0 if observation.log_chunk else self._empty_polls + 1
        return self._empty_polls < MAX_EMPTY_POLLS

    def skip_ahead(self, observation: Observation, *, ended: bool) -> int | None:
        """Return the offset to go on from where reading everything would take too long, else None.

        :param ended: the job has ended: its last lines alone are waited for
        """
        behind = (observation.log_size or 0) - self.position
        if behind <= (LOG_TAIL_BYTES if ended else MOST_BEHIND_BYTES):
            return None
        self._show(self._live.finish())
        self.position += behind - LOG_TAIL_BYTES
        self._shown = max(self._shown, self.position)
        self._parser = LogParser()
        self._log.warning(
            "%d bytes of the job's log are passed over; the whole log: %s",
            behind - LOG_TAIL_BYTES,
            self._log_file,
        )
        return self.position

    def state(self, verdict: Verdict, observation: Observation) -> None:
        """Log a state or problem once, when it changes."""
        if observation.unreachable is not None:
            minutes = (observation.time - observation.unreachable.since) / 60
            silence = pendulum.duration(minutes=max(round(minutes), 1)).in_words()
            text = f"the login node has not answered for {silence}: {observation.unreachable.reason}"
            level = self._log.error if minutes * 60 > UNKNOWN_ALARM_S else self._log.warning
        elif (alarm := self._uncertainty.alarm(verdict, observation)) is not None:
            text, level = alarm, self._log.error
        else:
            text, level = verdict.reason, self._log.info
        if text != self._said:
            level("%s", text)
            self._said = text

    def finish(self) -> None:
        """Show what is left of the log, and report what of it was not shown."""
        self._show(self._live.finish())
        if self._live.left_out:
            self._log.info(
                "%d lines of the job's log were left out here; the whole log: %s",
                self._live.left_out,
                self._log_file,
            )

    def last_lines(self, count: int = 50) -> list[str]:
        """Return the last lines of what this report has shown."""
        shown = bytes(self.tail)[-(self._shown - self._begin) :] if self._shown > self._begin else b""
        return [harmless(line) for line in shown.removesuffix(b"\n").split(b"\n")[-count:]] if shown else []

    def _show(self, excerpt: Excerpt, records: Sequence[Record] = ()) -> None:
        """Write lines, and what is worth knowing of records whose line is not among them."""
        if excerpt.left_out:
            self._log.info("| … %d lines left out; the whole log: %s", excerpt.left_out, self._log_file)
        errors = [record for record in records if isinstance(record, ErrorRecord)][-MOST_RECORDS_SHOWN:]
        markers = [record for record in records if isinstance(record, MarkerRecord)][-MOST_RECORDS_SHOWN:]
        for line in excerpt.lines:
            is_error = any(_error_text(error) in line for error in errors)
            (self._log.error if is_error else self._log.info)("| %s", line)
        if excerpt.is_last:
            self._log.warning(
                "%d MiB of the job's log are shown, and no more of it here; the whole log: %s",
                BYTES_PER_ATTEMPT // 2**20,
                self._log_file,
            )
        for error in errors:
            self.error = f"{error.exception or error.kind}: {error.message}"
            if not any(_error_text(error) in line for line in excerpt.lines):
                self._log.error("job log: %s", harmless(self.error.encode()))
        for marker in markers:
            if not any(marker.text in line for line in excerpt.lines):
                self._log.info("job log: %s", marker.kind)
        self._tell_progress([record for record in records if isinstance(record, IterationRecord)])

    def _tell_progress(self, records: Sequence[IterationRecord]) -> None:
        now = time.monotonic()
        if records and (now >= self._next_progress or records[-1].iteration == records[-1].train_iters):
            self._next_progress = now + PROGRESS_PAUSE_S
            self._log.info("%s", progress_text(records[-1]))


def progress_text(record: IterationRecord) -> str:
    """Return how far a training is, for people; the time to go is that of the iterations alone."""
    total = record.train_iters
    text = f"iteration {record.iteration} of {total}"
    if total:
        text += f" ({100 * record.iteration / total:.0f} %)"
    if record.loss is not None:
        text += f", loss {record.loss:.4f}"
    left = total - record.iteration
    if record.elapsed_ms and left > 0:
        text += f", {left * record.elapsed_ms / 60_000:.0f} min to go"
    return text


def _error_text(record: ErrorRecord) -> str:
    return record.exception or record.message[:200]
