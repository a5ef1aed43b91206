#!/usr/bin/env python3
"""Run a command once for every checkpoint that needs it, oldest first.

    each_checkpoint.py --source RUN/checkpoints --done RUN/converted_checkpoints/iter_{iteration}.done \
        [--from-iteration N] [--spacing N] [--last N] [--iteration N] [--required] [--runs PATTERN --list FILE] \
        -- COMMAND … {iteration} …

``--source`` is a Megatron checkpoint directory, or a path that contains ``{iteration}``; each match of it is one piece
of work. A piece of work is done when the path of ``--done`` exists; the command must create it. Several processes can
work on one source: each claims a piece with a file beside its ``--done``, and the claim ends with the process.
Checkpoints whose command fails are reported at the end (exit code 1), after the others. A checkpoint that is still
being written is left to the next call.

With ``--runs '/runs/*/checkpoints'`` the program processes each directory that the pattern matches. ``{directory}`` and
``{run}`` (the text that ``*`` matches) are replaced in the options; ``--list`` is written when everything is done.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from megatron_core_trainer.data.work_claims import claimed
from megatron_core_trainer.evaluation.matched_runs import MatchedRun, matched_runs

PAUSE_S = 2.0
TRACKER = "latest_checkpointed_iteration.txt"
_ITERATION = re.compile(r"iter_(\d{7,})\Z")


def available(source: str) -> list[int]:
    """Return the iterations that have a checkpoint, in ascending order."""
    if "{iteration}" in source:
        before, _, after = source.partition("{iteration}")
        folder = Path(before).parent
        names = [str(path) for path in folder.glob(f"{Path(before).name}*{after}")] if folder.is_dir() else []
        middles = [name.removeprefix(before).removesuffix(after) for name in names]
        return sorted(int(middle) for middle in middles if middle.isdigit())
    tracked = newest(source)
    found = []
    for path in Path(source).glob("iter_*"):
        match = _ITERATION.match(path.name)
        # Megatron writes the tracker last, so checkpoints older than the tracked one are also complete
        if match and path.is_dir() and int(match.group(1)) <= tracked:
            found.append(int(match.group(1)))
    return sorted(found)


def newest(source: str) -> int:
    """Return the iteration in the tracker file of a checkpoint directory; -1 without a valid one."""
    tracker = Path(source, TRACKER)
    text = tracker.read_text().strip() if tracker.exists() else ""
    return int(text) if text.isdigit() else -1


def why_none(source: str) -> str:
    """Return why a checkpoint directory has no complete checkpoint, as the end of a message; empty if unknown."""
    if "{iteration}" in source or not any(Path(source).glob("iter_*")) or newest(source) >= 0:
        return ""
    problem = "does not hold an iteration" if Path(source, TRACKER).exists() else "is missing"
    return f": {TRACKER}, which names the newest complete one, {problem}"


def wanted(there: list[int], *, first: int, spacing: int, last: int | None) -> list[int]:
    """Return the requested iterations: from ``first`` on, ``spacing`` apart, and the ``last`` ones."""
    chosen: list[int] = []
    for iteration in there:
        if iteration < first:
            continue
        if not chosen or iteration - chosen[-1] >= spacing or iteration == last:
            chosen.append(iteration)
    return chosen


def run(command: list[str], iteration: int) -> int:
    """Run the command for one checkpoint; stop it when this process ends."""
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
    sys.exit(128 + number)  # stops the command and releases the claim


class Work:
    """The pieces of work and their state.

    :param options: options of this program
    :param command: the command to run, as a list of arguments
    """

    def __init__(self, options: argparse.Namespace, command: list[str]) -> None:
        self.options = options
        self.command = command
        self.failed: list[int] = []
        self._said: set[str] = set()

    def marker(self, iteration: int) -> Path:
        """Return the path that marks the work on a checkpoint as done."""
        return Path(self.options.done.replace("{iteration}", str(iteration)))

    def asked(self) -> list[int]:
        """Return the requested iterations that have a checkpoint, in ascending order."""
        source, one = self.options.source, self.options.iteration
        if one is not None:
            path = Path(source.replace("{iteration}", str(one)))
            return [one] if (one in available(source) if path.is_dir() else path.exists()) else []
        return wanted(
            available(source),
            first=self.options.from_iteration,
            spacing=self.options.spacing,
            last=self.options.last,
        )

    def open(self) -> list[int]:
        """Return the requested iterations that are not done, in ascending order."""
        asked = self.asked()
        return [number for number in asked if number not in self.failed and not self.marker(number).exists()]

    def do(self, iteration: int) -> bool:
        """Process a checkpoint unless another process does so; return whether this process did it."""
        marker = self.marker(iteration)
        with claimed(marker) as owner:
            if owner is not None:
                self._say(f"each_checkpoint: iteration {iteration}: {owner} works on it")
                return False
            if marker.exists():  # its owner ended between the two checks
                return True
            code = run(self.command, iteration)
        if code != 0 and iteration not in available(self.options.source):
            print(f"each_checkpoint: iteration {iteration} was deleted meanwhile", flush=True)
        elif code != 0:
            self.failed.append(iteration)
        elif not marker.exists():
            print(f"each_checkpoint: the command succeeded, but did not create {marker}", file=sys.stderr)
            self.failed.append(iteration)
        return True

    def run_all(self) -> list[int]:
        """Process checkpoints until nothing is left to do; return the iterations whose command failed."""
        while todo := self.open():
            if not any(self.do(iteration) for iteration in todo):
                time.sleep(PAUSE_S)  # other processes work on all pieces: wait until they end
        return self.failed

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            print(text, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Process every checkpoint, including those that appear meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True)
    parser.add_argument("--done", required=True)
    parser.add_argument("--from-iteration", type=int, default=0)
    parser.add_argument("--spacing", type=int, default=1)
    parser.add_argument("--last", type=int)
    parser.add_argument("--iteration", type=int, help="process only this iteration")
    parser.add_argument(
        "--runs", metavar="PATTERN", help="pattern of the directories to process, one after the other"
    )
    parser.add_argument(
        "--list", metavar="FILE", help="with --runs: write the processed checkpoints to this file"
    )
    parser.add_argument("--required", action="store_true", help="fail if there is no checkpoint")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("a command is required after --")
    if "{iteration}" not in options.done:
        parser.error("--done needs {iteration}")
    signal.signal(signal.SIGTERM, _stop)
    if options.runs:
        return of_each_run(options, command)
    if options.required and not available(options.source):
        reason = why_none(options.source)
        print(
            f"each_checkpoint: there is no complete checkpoint in {options.source}{reason}", file=sys.stderr
        )
        return 1
    if failed := Work(options, command).run_all():
        print(f"each_checkpoint: failed for iterations {', '.join(map(str, failed))}", file=sys.stderr)
        return 1
    print("each_checkpoint: nothing is left to do", flush=True)
    return 0


def of_each_run(options: argparse.Namespace, command: list[str]) -> int:
    """Process the checkpoints of every directory that ``--runs`` matches; report directories without checkpoints."""
    if options.list:
        Path(options.list).unlink(missing_ok=True)
    runs, wrong = matched_runs(options.runs)
    if not runs and not wrong:
        print(f"each_checkpoint: no directory matches {options.runs}", file=sys.stderr)
        return 1
    done: dict[str, dict[str, object]] = {}
    for matched in runs:
        asked = _work_on(matched, options, command, wrong)
        if asked:
            done[matched.name] = {"directory": matched.directory, "iterations": asked}
    if not done and not wrong:
        wrong.append(f"no directory that {options.runs} matches has a complete checkpoint that is asked for")
    for text in wrong:
        print(f"each_checkpoint: {text}", file=sys.stderr)
    if wrong:
        return 1
    if options.list:
        new = Path(f"{options.list}.new")
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(done, indent=2) + "\n")
        new.replace(options.list)
    print(f"each_checkpoint: nothing is left to do in {len(done)} of {len(runs)} directories", flush=True)
    return 0


def _work_on(
    matched: MatchedRun, options: argparse.Namespace, command: list[str], wrong: list[str]
) -> list[int]:
    """Process one directory, add its errors to the list, and return the requested iterations."""
    own = argparse.Namespace(**vars(options))
    own.source, own.done = matched.filled(options.source), matched.filled(options.done)
    work = Work(own, [matched.filled(word) for word in command])
    asked = work.asked()
    if not asked and options.iteration is not None:
        wrong.append(f"{matched.directory} has no complete checkpoint of iteration {options.iteration}")
    elif not asked:
        print(f"each_checkpoint: {matched.directory} has no checkpoint that is asked for", flush=True)
    else:
        print(f"each_checkpoint: {matched.name}: {matched.directory}", flush=True)
        failed = work.run_all()
        if failed:
            wrong.append(f"failed for iterations {', '.join(map(str, failed))} of {matched.directory}")
        asked = work.asked()  # including checkpoints that appeared meanwhile
    return asked


if __name__ == "__main__":
    sys.exit(main())
