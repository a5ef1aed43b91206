#!/usr/bin/env python3
"""Run a command once for every checkpoint that needs it, oldest first.

    each_checkpoint.py --source RUN/checkpoints --done RUN/converted_checkpoints/iter_{iteration}.done \
        [--from-iteration N] [--spacing N] [--last N] -- COMMAND … {iteration} …

``--source`` is a Megatron checkpoint directory, or a path with ``{iteration}`` in it, of which every match is one piece
of work. A piece of work is done when the path of ``--done`` exists; the command has to make it. Checkpoints whose
command fails are told at the end (exit code 1), after the others have had their turn. A checkpoint that is still being
written is left for the next time.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

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
    """Run the command for one checkpoint."""
    words = [word.replace("{iteration}", str(iteration)) for word in command]
    print(f"each_checkpoint: iteration {iteration}: {shlex.join(words)}", flush=True)
    began = time.monotonic()
    code = subprocess.run(words, check=False).returncode
    print(
        f"each_checkpoint: iteration {iteration}: exit code {code}, {time.monotonic() - began:.1f} s",
        flush=True,
    )
    return code


def main(argv: list[str] | None = None) -> int:
    """Work on every checkpoint there is, those that appear meanwhile included."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", required=True)
    parser.add_argument("--done", required=True)
    parser.add_argument("--from-iteration", type=int, default=0)
    parser.add_argument("--spacing", type=int, default=1)
    parser.add_argument("--last", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("which command? write it after --")
    if "{iteration}" not in options.done:
        parser.error("--done needs {iteration}")
    failed: list[int] = []
    while True:
        asked = wanted(
            available(options.source),
            first=options.from_iteration,
            spacing=options.spacing,
            last=options.last,
        )
        open_work = [
            iteration
            for iteration in asked
            if iteration not in failed
            and not Path(options.done.replace("{iteration}", str(iteration))).exists()
        ]
        if not open_work:
            break
        iteration = open_work[0]
        marker = Path(options.done.replace("{iteration}", str(iteration)))
        if run(command, iteration) != 0:
            failed.append(iteration)
        elif not marker.exists():
            print(f"each_checkpoint: the command ended well but left no {marker}", file=sys.stderr)
            failed.append(iteration)
    if failed:
        print(f"each_checkpoint: failed for iterations {', '.join(map(str, failed))}", file=sys.stderr)
        return 1
    print("each_checkpoint: nothing is left to do", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
