"""Report on a job in the log of the task that waits for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pendulum

from airflow_megatron.megatron.logs.log_lines import ErrorRecord, IterationRecord, LogParser, MarkerRecord
from airflow_megatron.slurm.verdicts.unknown_state import UnknownState
from airflow_megatron.supervision.attempt_memory import LogMemory
from airflow_megatron.supervision.live_log import BYTES_PER_ATTEMPT, LiveLog, harmless

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.megatron.logs.log_lines import Record
    from airflow_megatron.results.store.job_rows import JobRows
    from airflow_megatron.slurm.states.observation import Observation
    from airflow_megatron.slurm.verdicts.verdict import Verdict
    from airflow_megatron.supervision.live_log import Excerpt

LOG_TAIL_BYTES = 64 * 1024
MOST_BEHIND_BYTES = 1024 * 1024
"""Maximum number of unread bytes; with more (after a restart of the triggerer), the report skips ahead."""
MAX_EMPTY_POLLS = 4
MOST_RECORDS_SHOWN = 20
"""Maximum number of errors and markers of one poll in the task's log; the last ones are written."""
PROGRESS_PAUSE_S = 300.0
UNKNOWN_ALARM_S = 900.0


class JobReport:
    """Writes the job's state and a limited part of its log to the task's log.

    ``position`` is the offset of the next byte of the log to read, ``new_bytes`` and ``records`` are from the last
    poll, ``progressed`` is whether they show progress, ``tail`` holds the last bytes read, ``error`` the last error in
    the log, ``began`` and ``reached`` its first and last iteration.

    :param log: the task's log
    :param log_file: path of the job's log on the cluster, for messages
    :param memory: result of :meth:`memory` of an earlier report on this attempt
    :param log_from: offset of this attempt's output in its log, in bytes
    :param rows: stores the records; None if they are not stored
    """

    def __init__(
        self,
        log: Any,
        log_file: str,
        memory: LogMemory | None = None,
        log_from: int = 0,
        rows: JobRows | None = None,
    ) -> None:
        known = memory or LogMemory()
        self._log = log
        self._log_file = log_file
        self._live = LiveLog(known.shown_bytes, known.left_out)
        self._rows = rows
        self._said = ""
        self._uncertainty = UnknownState()
        self._next_progress = 0.0
        self._iterations = False
        self._empty_polls = 0
        self._shown = max(known.offset, log_from)
        self._parser = LogParser(self._shown)
        # the shown part is read again to search it for the line that explains an end
        self.position = max(log_from, self._shown - LOG_TAIL_BYTES // 2)
        self._begin = self._shown
        self.new_bytes = b""
        self.records: Sequence[Record] = ()
        self.progressed = False
        self.tail = bytearray()
        self.error: str | None = None
        self.began: int | None = known.began
        self.reached: int | None = known.reached

    def memory(self) -> LogMemory:
        """Return the state with which a later report on this attempt continues; it reads an incomplete line again."""
        return LogMemory(
            offset=self._shown - self._live.pending_bytes,
            shown_bytes=self._live.shown_bytes,
            left_out=self._live.left_out,
            began=self.began,
            reached=self.reached,
        )

    def read(self, observation: Observation) -> None:
        """Read the new log bytes of an observation."""
        self.progressed, self.records, self.new_bytes = False, (), b""
        if not observation.log_chunk or observation.log_offset != self.position:
            return
        self.new_bytes = observation.log_chunk[max(0, self._shown - self.position) :]
        self.position += len(observation.log_chunk)
        self.tail += observation.log_chunk
        del self.tail[:-LOG_TAIL_BYTES]
        if self.new_bytes:
            self._shown = self.position
            placed = self._parser.feed_placed(self.new_bytes)
            self.records = [record for _, record in placed]
            if self._rows is not None:
                self._rows.records(placed, observation.time)
            counted = [record.iteration for record in self.records if isinstance(record, IterationRecord)]
            iterations = bool(counted)
            if counted:
                self.began = counted[0] if self.began is None else self.began
                self.reached = counted[-1]
            self._iterations = self._iterations or iterations
            self.progressed = iterations or not self._iterations
            self._show(self._live.take(self.new_bytes), self.records)

    def unread(self, observation: Observation) -> bool:
        """Return whether the log has unread bytes, which may include the line that explains the end."""
        if not observation.log_size or observation.log_size <= self.position:
            return False
        # a poll with many logs leaves some for the next poll; an unreadable log is never read
        self._empty_polls = 0 if observation.log_chunk else self._empty_polls + 1
        return self._empty_polls < MAX_EMPTY_POLLS

    def skip_ahead(self, observation: Observation, *, ended: bool) -> int | None:
        """Return the offset to which to skip if reading the complete log would take too long, else None.

        :param ended: whether the job has ended, so that only its last lines are needed
        """
        behind = (observation.log_size or 0) - self.position
        if behind <= (LOG_TAIL_BYTES if ended else MOST_BEHIND_BYTES):
            return None
        self._show(self._live.finish())
        if self._rows is not None:
            self._rows.gap(self._shown)
        self.position += behind - LOG_TAIL_BYTES
        self._shown = max(self._shown, self.position)
        self._parser = LogParser(self._shown)
        self._log.warning(
            "%d bytes of the job's log are left out; the whole log: %s",
            behind - LOG_TAIL_BYTES,
            self._log_file,
        )
        return self.position

    def state(self, verdict: Verdict, observation: Observation) -> None:
        """Log a state or problem when it changes."""
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
        """Write the rest of the log, and report the number of lines left out."""
        self._show(self._live.finish())
        if self._rows is not None:
            self._rows.records(self._parser.finish_placed(), time.time())
        if self._live.left_out:
            self._log.info(
                "%d lines of the job's log were left out here; the whole log: %s",
                self._live.left_out,
                self._log_file,
            )

    def last_lines(self, count: int = 50) -> list[str]:
        """Return the last lines that this report has written."""
        shown = bytes(self.tail)[-(self._shown - self._begin) :] if self._shown > self._begin else b""
        return [harmless(line) for line in shown.removesuffix(b"\n").split(b"\n")[-count:]] if shown else []

    def _show(self, excerpt: Excerpt, records: Sequence[Record] = ()) -> None:
        """Write lines, and the errors and markers of records whose lines are not among them."""
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
        self._log_progress([record for record in records if isinstance(record, IterationRecord)])

    def _log_progress(self, records: Sequence[IterationRecord]) -> None:
        now = time.monotonic()
        if records and (now >= self._next_progress or records[-1].iteration == records[-1].train_iters):
            self._next_progress = now + PROGRESS_PAUSE_S
            self._log.info("%s", progress_text(records[-1]))


def progress_text(record: IterationRecord) -> str:
    """Return the progress of a training as readable text; the remaining time includes only its iterations."""
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
