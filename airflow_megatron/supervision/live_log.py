"""The new lines of a job's log as a task's log shows them while the job runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_megatron.spec.trust.plain_text import LONGEST_LINE
from airflow_megatron.spec.trust.plain_text import harmless as harmless

LINES_PER_LOOK = 100
BYTES_PER_LOOK = 16 * 1024
BYTES_PER_ATTEMPT = 2 * 1024 * 1024
"""Of an attempt's log: Airflow's page loads a task's log whole."""
_LONGEST_PENDING = 64 * 1024


@dataclass(frozen=True)
class Excerpt:
    """What is shown of one look's new lines: the last ones.

    :param lines: harmless text, in order
    :param left_out: how many lines before them are not shown
    :param is_last: the attempt's share is used up: nothing is shown from now on
    """

    lines: tuple[str, ...] = ()
    left_out: int = 0
    is_last: bool = False


@dataclass
class LiveLog:
    """How much of an attempt's log was shown, and the line that is still being written.

    :param shown_bytes: of the log, so far
    :param left_out: lines that were not shown, so far
    """

    shown_bytes: int = 0
    left_out: int = 0
    _pending: bytes = field(default=b"", init=False, repr=False)

    @property
    def pending_bytes(self) -> int:
        """Bytes of a line without an end that were taken in and not shown."""
        return len(self._pending)

    def take(self, chunk: bytes) -> Excerpt:
        """Return what to show of the lines that are complete now.

        :param chunk: the bytes that follow what was taken before
        """
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if len(self._pending) > _LONGEST_PENDING:  # a progress bar
            self._pending = self._pending[-LONGEST_LINE:]
        return self._excerpt(lines)

    def finish(self) -> Excerpt:
        """Return what to show of a last line without an end."""
        last, self._pending = self._pending, b""
        return self._excerpt([last] if last else [])

    def _excerpt(self, lines: list[bytes]) -> Excerpt:
        before = BYTES_PER_ATTEMPT - self.shown_bytes
        if before <= 0:
            self.left_out += len(lines)
            return Excerpt()
        room, first = min(before, BYTES_PER_LOOK), len(lines)
        while first > max(0, len(lines) - LINES_PER_LOOK) and room > 0:
            first -= 1
            room -= min(len(lines[first]) + 1, LONGEST_LINE)
        kept = lines[first:]
        self.shown_bytes += sum(min(len(line) + 1, LONGEST_LINE) for line in kept)
        self.left_out += first
        return Excerpt(
            tuple(harmless(line) for line in kept), first, is_last=self.shown_bytes >= BYTES_PER_ATTEMPT
        )
