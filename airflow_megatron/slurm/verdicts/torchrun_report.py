"""Parser of torchrun's table of failed ranks (``torch/distributed/elastic/multiprocessing/errors``).

After the failure of a rank, the other ranks lose their connections to it and print subsequent errors. The table names
the first failure: rank, node, exit code or signal, and the exception if the program is wrapped in ``@record``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# "[default0]:", "[node07:3]:", "[rank3]: ", "12: " (srun --label); one line may have several
_PREFIX: Final = re.compile(rb"(?:\[([A-Za-z][A-Za-z0-9._-]{0,80}?)(:?)(\d{1,6})\]:|(\d{1,6}):) ?")
_ROOT: Final = b"Root Cause (first observed failure):"
_TABLE: Final = b"Failures:"
_RULE: Final = re.compile(rb"(?:={20,}|-{20,})\s*")
_END: Final = re.compile(rb"={20,}\s*")
_FIELD: Final = re.compile(rb"\s{0,8}(time|host|rank|exitcode|traceback)\s{0,8}: (.*)", re.DOTALL)
_RANK: Final = re.compile(rb"(\d{1,9}) \(local_rank: (\d{1,6})\)")
_EXIT: Final = re.compile(rb"(-?\d{1,6}) \(pid: \d{1,9}\)\s{0,8}(?:\(([A-Z0-9]{1,16})\))?")
_EXCEPTION: Final = re.compile(rb"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Interrupt|Exit)(?::.*)?")
_NO_TRACEBACK: Final = b"To enable traceback see"
_MOST_PREFIXES: Final = 4
_SIGTERM: Final = -15


@dataclass(frozen=True)
class RootCause:
    """The failure that torchrun observed first.

    :param exit_code: exit code; negative for the number of a signal
    :param signal: name of the signal, empty without one
    :param last_line: last line of the traceback in the table, empty without one
    """

    rank: int
    local_rank: int
    host: str
    time: str
    exit_code: int
    signal: str
    last_line: bytes

    @property
    def text(self) -> str:
        """The failure as readable text."""
        by = f"was ended by {self.signal}" if self.signal else f"ended with exit code {self.exit_code}"
        return f"rank {self.rank} on {self.host} {by}"


@dataclass(frozen=True)
class Attribution:
    """The lines of a log, grouped by rank, in order.

    :param own: lines of the rank that failed first
    :param common: lines without a known rank
    """

    own: tuple[bytes, ...]
    common: tuple[bytes, ...]

    @property
    def exception(self) -> bytes:
        """The failed rank's last line that ends a traceback, empty without one."""
        return next((line for line in reversed(self.own) if _EXCEPTION.fullmatch(_plain(line))), b"")


def root_cause(lines: Sequence[bytes]) -> RootCause | None:
    """Return the first failure in the tables of a log; the torchrun of each node prints a table.

    :param lines: lines of the log in order
    """
    if not any(_ROOT in line for line in lines):
        return None
    found = list(_tables(lines))
    # a rank that torchrun stopped itself comes first only in the table of a node without a failure
    return min(found, key=lambda cause: (cause.exit_code == _SIGTERM, cause.time), default=None)


def attributed(lines: Sequence[bytes], cause: RootCause) -> Attribution:
    """Group the lines of a log by rank, without the lines of other ranks and of the tables."""
    own: list[bytes] = []
    common: list[bytes] = []
    in_table = False
    for line in lines:
        text = _plain(line)
        if in_table:
            in_table = _END.fullmatch(text) is None
            continue
        in_table = text.startswith((_TABLE, _ROOT))
        if in_table:
            continue
        whose = _is_own(line, cause)
        if whose is None:
            common.append(line)
        elif whose:
            own.append(line)
    if cause.last_line:
        own.append(cause.last_line)
    return Attribution(tuple(own), tuple(common))


def _tables(lines: Sequence[bytes]) -> Iterator[RootCause]:
    number = 0
    while number < len(lines):
        if _plain(lines[number]).startswith(_ROOT):
            end = number + 1
            while end < len(lines) and _RULE.fullmatch(_plain(lines[end])) is None:
                end += 1
            cause = _read([_plain(line) for line in lines[number + 1 : end]])
            if cause is not None:
                yield cause
            number = end
        number += 1


def _read(block: Sequence[bytes]) -> RootCause | None:
    fields: dict[bytes, bytes] = {}
    for line in block:
        field = _FIELD.fullmatch(line)
        if field is not None and b"traceback" not in fields:
            fields[field[1]] = field[2].strip()
    rank, ended = _RANK.match(fields.get(b"rank", b"")), _EXIT.match(fields.get(b"exitcode", b""))
    if rank is None or ended is None:
        return None
    traceback = fields.get(b"traceback", b"")
    last_line = (
        b""
        if traceback.startswith(_NO_TRACEBACK)
        else next(filter(None, map(bytes.strip, reversed(block))), b"")
    )
    if last_line.startswith(b"traceback"):
        last_line = traceback
    return RootCause(
        rank=int(rank[1]),
        local_rank=int(rank[2]),
        host=fields.get(b"host", b"?").decode("ascii", "replace")[:80],
        time=fields.get(b"time", b"").decode(errors="replace"),
        exit_code=int(ended[1]),
        signal=(ended[2] or b"").decode(),
        last_line=last_line,
    )


def _is_own(line: bytes, cause: RootCause) -> bool | None:
    """Return whether the failed rank wrote a line; None for a line without a rank."""
    whose, at = None, 0
    for _ in range(_MOST_PREFIXES):
        prefix = _PREFIX.match(line, at)
        if prefix is None:
            break
        at = prefix.end()
        word, colon, number, _ = prefix.groups()
        if word is None:
            continue
        if word == b"rank":
            return int(number) == cause.rank
        whose = int(number) == cause.local_rank
        if colon:
            node = word.decode().partition(".")[0]
            whose = whose and node == cause.host.partition(".")[0]
    return whose


def _plain(line: bytes) -> bytes:
    """Remove the prefix that launchers add to a line."""
    at = 0
    for _ in range(_MOST_PREFIXES):
        prefix = _PREFIX.match(line, at)
        if prefix is None:
            break
        at = prefix.end()
    return line[at:]
