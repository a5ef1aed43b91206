#!/usr/bin/env python3
"""Run a command once for every checkpoint that needs it, oldest first.

    each_checkpoint.py --source RUN/checkpoints --done RUN/converted_checkpoints/iter_{iteration}.done \
        [--from-iteration N] [--spacing N] [--last N] [--required] -- COMMAND … {iteration} …

``--source`` is a Megatron checkpoint directory, or a path with ``{iteration}`` in it, of which every match is one piece
of work. A piece of work is done when the path of ``--done`` exists; the command has to make it. Several of these may
work on one source: each piece is claimed beside its ``--done``, and the claim ends with its owner. Checkpoints whose
command fails are told at the end (exit code 1), after the others have had their turn. A checkpoint that is still being
written is left for the next time.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from megatron_core_trainer.work_claims import claimed

PAUSE_S = 2.0
_ITERATION = re.compile(r"iter_(\d{7,})\Z")


def available(source: str) -> list[int]:
    """Return the iterations there is work for, ascending."""
    if "{iteration}" in source:
        before, _, after = source.partition("{iteration}")
        folder = Path(before).parent
        names = [str(path) for path in folder.glob(f"{Path(before).name}*{after}")] if folder.is_dir() else []
        middles = [name.removeprefix(before).removesuffix(after) for name in names]
        return sorted(int(middle) for middle in middles if middle.isdigit())
    tracker = Path(source, "latest_checkpointed_iteration.txt")
    text = tracker.read_text().strip() if tracker.exists() else ""
    tracked = int(text) if text.isdigit() else -1
    found = []
    for path in Path(source).glob("iter_*"):
        match = _ITERATION.match(path.name)
        # Megatron writes the tracker last; an older checkpoint than the tracked one is complete as well
        if match and path.is_dir() and int(match.group(1)) <= tracked:
            found.append(int(match.group(1)))
    return sorted(found)


def wanted(there: list[int], *, first: int, spacing: int, last: int | None) -> list[int]:
    """Return those of the iterations that are asked for: from ``first`` on, ``spacing`` apart, and ``last``."""
    chosen: list[int] = []
    for iteration in there:
        if iteration < first:
            continue
        if not chosen or iteration - chosen[-1] >= spacing or iteration == last:
            chosen.append(iteration)
    return chosen


def run(command: list[str], iteration: int) -> int:
    """Run the command for one checkpoint; it does not outlive this process."""
    words = [word.replace("{iteration}", str(iteration)) for word in command]
    print(f"each_checkpoint: iteration {iteration}: {shlex.join(words)}", flush=True)
    began = time.monotonic()
    code = subprocess.run(words, check=False, preexec_fn=_die_with_parent).returncode
    print(
        f"each_checkpoint: iteration {iteration}: exit code {code}, {time.monotonic() - began:.1f} s",
        flush=True,
    )
    return code


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _stop(number: int, frame: object) -> None:
    sys.exit(128 + number)  # ends the command, and gives the claim back


class Work:
    """The pieces of work, and how far they are.

    :param options: of the command line
    :param command: its words
    """

    def __init__(self, options: argparse.Namespace, command: list[str]) -> None:
        self.options = options
        self.command = command
        self.failed: list[int] = []
        self._said: set[str] = set()

    def marker(self, iteration: int) -> Path:
        """Return what the work on a checkpoint leaves."""
        return Path(self.options.done.replace("{iteration}", str(iteration)))

    def open(self) -> list[int]:
        """Return the iterations that are wanted and not done, ascending."""
        asked = wanted(
            available(self.options.source),
            first=self.options.from_iteration,
            spacing=self.options.spacing,
            last=self.options.last,
        )
        return [number for number in asked if number not in self.failed and not self.marker(number).exists()]

    def do(self, iteration: int) -> bool:
        """Work on a checkpoint, unless another process does; tell whether this one did."""
        marker = self.marker(iteration)
        with claimed(marker) as owner:
            if owner is not None:
                self._say(f"each_checkpoint: iteration {iteration}: {owner} works on it")
                return False
            if marker.exists():  # its owner ended between the two looks
                return True
            code = run(self.command, iteration)
        if code != 0 and iteration not in available(self.options.source):
            print(f"each_checkpoint: iteration {iteration} was deleted meanwhile", flush=True)
        elif code != 0:
            self.failed.append(iteration)
        elif not marker.exists():
            print(f"each_checkpoint: the command ended well but left no {marker}", file=sys.stderr)
            self.failed.append(iteration)
        return True

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            print(text, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Work on every checkpoint there is, those that appear meanwhile included."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True)
    parser.add_argument("--done", required=True)
    parser.add_argument("--from-iteration", type=int, default=0)
    parser.add_argument("--spacing", type=int, default=1)
    parser.add_argument("--last", type=int)
    parser.add_argument("--required", action="store_true", help="fail when there is no checkpoint at all")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("which command? write it after --")
    if "{iteration}" not in options.done:
        parser.error("--done needs {iteration}")
    signal.signal(signal.SIGTERM, _stop)
    if options.required and not available(options.source):
        print(f"each_checkpoint: there is no complete checkpoint in {options.source}", file=sys.stderr)
        return 1
    work = Work(options, command)
    while todo := work.open():
        if not any(work.do(iteration) for iteration in todo):
            time.sleep(PAUSE_S)  # all of it is others': until they have done it, or are gone
    if work.failed:
        print(f"each_checkpoint: failed for iterations {', '.join(map(str, work.failed))}", file=sys.stderr)
        return 1
    print("each_checkpoint: nothing is left to do", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
