"""The part of a job's log that the task's log shows while the job runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_megatron.spec.trust.plain_text import LONGEST_LINE
from airflow_megatron.spec.trust.plain_text import harmless as harmless

LINES_PER_LOOK = 100
BYTES_PER_LOOK = 16 * 1024
BYTES_PER_ATTEMPT = 2 * 1024 * 1024
"""Maximum number of bytes shown per attempt; Airflow's page loads the complete log of a task."""
_LONGEST_PENDING = 64 * 1024


@dataclass(frozen=True)
class Excerpt:
    """The shown part of one poll's new lines: the last lines.

    :param lines: text without control characters, in order
    :param left_out: number of preceding lines that are not shown
    :param is_last: whether the maximum of the attempt is reached, so that no further lines are shown
    """

    lines: tuple[str, ...] = ()
    left_out: int = 0
    is_last: bool = False


@dataclass
class LiveLog:
    """The number of shown bytes of an attempt's log, and its incomplete last line.

    :param shown_bytes: number of bytes shown so far
    :param left_out: number of lines left out so far
    """

    shown_bytes: int = 0
    left_out: int = 0
    _pending: bytes = field(default=b"", init=False, repr=False)

    @property
    def pending_bytes(self) -> int:
        """Size of the incomplete last line, in bytes."""
        return len(self._pending)

    def take(self, chunk: bytes) -> Excerpt:
        """Return the excerpt of the lines that are complete now.

        :param chunk: the bytes that follow the previous chunk
        """
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        if len(self._pending) > _LONGEST_PENDING:  # a progress bar
            self._pending = self._pending[-LONGEST_LINE:]
        return self._excerpt(lines)

    def finish(self) -> Excerpt:
        """Return the excerpt of an incomplete last line."""
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
