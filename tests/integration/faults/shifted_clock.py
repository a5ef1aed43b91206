"""Processes with a shifted clock: libfaketime, package ``faketime``."""

from __future__ import annotations

from pathlib import Path


def library() -> str:
    """Return the path of libfaketime.

    :raises FileNotFoundError: if it is not installed.
    """
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        raise FileNotFoundError("libfaketime is not installed; run docker/install.sh")
    return str(found[0])


def shifted_script(script: str, seconds: int) -> str:
    """Return a shell script whose commands have a shifted clock."""
    return f"export LD_PRELOAD={library()} FAKETIME={seconds:+d} DONT_FAKE_MONOTONIC=1\n{script}"


class ShiftedClock:
    """The wall clock of processes that are started with :attr:`environment`; their monotonic clock is correct.

    :param file: file with the current shift.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.offset = 0
        self.jump(0)
        self.environment = {
            "LD_PRELOAD": library(),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def jump(self, seconds: int) -> None:
        """Set the clock; the processes use it within a second."""
        self.offset += seconds
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{self.offset:+d}\n")
        draft.replace(self._file)
