"""Megabytes of log a second: this package's parser beside a plain loop of one regular expression over the lines.

Run as ``python benchmarks/log_parsing.py [MB]``. Processor time of one core, both in one run on the same bytes:
recorded logs repeated, and the worst case of nothing but iteration lines.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_megatron.megatron.logs.log_lines import IterationRecord, LogParser

if TYPE_CHECKING:
    from collections.abc import Callable

LOGS = Path(__file__).parents[1] / "tests" / "fixtures" / "logs"
CHUNK = 1 << 17
ROUNDS = 3
FIELDS = ("elapsed time per iteration (ms)", "learning rate", "global batch size", "lm loss", "grad norm")
PLAIN = re.compile(
    rb"iteration\s+(\d+)/\s*(\d+) \| consumed samples:\s+(\d+) \|"
    + b"".join(rb".*?%s:\s*([-+.\dEe]+) \|" % re.escape(name.encode()) for name in FIELDS)
)
ITERATION = (
    b" [2026-02-26 10:00:00.123456] iteration %8d/  100000 | consumed samples: %12d | elapsed time per iteration (ms):"
    b" 92.4 | throughput per GPU (TFLOP/s/GPU): 123.4 | learning rate: 1.000000E-03 | global batch size:     4 |"
    b" lm loss: 5.199335E+00 | loss scale: 1.0 | grad norm: 0.908 | number of skipped iterations:   0 |"
    b" number of nan iterations:   0 |\n"
)


def plain_loop(data: bytes) -> int:
    """Read iteration, loss and three more numbers of each line, as a script would."""
    found = []
    for line in data.split(b"\n"):
        match = PLAIN.search(line)
        if match:
            found.append(
                [int(text) for text in match.groups()[:3]] + [float(text) for text in match.groups()[3:]]
            )
    return len(found)


def parser(data: bytes) -> int:
    """Read every record of every kind, in chunks as they come from a file."""
    streaming, found = LogParser(), 0
    for start in range(0, len(data), CHUNK):
        found += sum(isinstance(one, IterationRecord) for one in streaming.feed(data[start : start + CHUNK]))
    return found + sum(isinstance(one, IterationRecord) for one in streaming.finish())


def megabytes_per_second(read: Callable[[bytes], int], data: bytes) -> tuple[float, int]:
    best, found = float("inf"), 0
    for _ in range(ROUNDS):
        start = time.process_time()
        found = read(data)
        best = min(best, time.process_time() - start)
    return len(data) / 1e6 / best, found


def main() -> None:
    size = int(sys.argv[1]) * 1_000_000 if len(sys.argv) > 1 else 20_000_000
    cases = {path.stem: path.read_bytes() for path in sorted(LOGS.glob("core_*.log"))}
    cases["iteration lines only"] = b"".join(ITERATION % (number, 4 * number) for number in range(1, 2000))
    print("| log | MB | parser MB/s | plain loop MB/s | iterations |\n| --- | --- | --- | --- | --- |")
    for name, part in cases.items():
        data = part * (size // len(part) + 1)
        ours, found = megabytes_per_second(parser, data)
        plain, expected = megabytes_per_second(plain_loop, data)
        if found != expected:
            sys.exit(f"{name}: the parser found {found} iterations, the plain loop {expected}")
        print(f"| {name} | {len(data) / 1e6:.0f} | {ours:.0f} | {plain:.0f} | {found} |")


if __name__ == "__main__":
    main()
