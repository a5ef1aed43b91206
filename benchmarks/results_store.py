"""Measure the store of results: rows stored per second, the triggerer's share, the page's picture of it.

Run as ``python benchmarks/results_store.py [ingest] [share] [view]``, with ``--runs`` and ``--points`` for the last.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
from typing import TYPE_CHECKING

from airflow_megatron.megatron.logs.log_lines import LogParser
from airflow_megatron.results.store.batches import Batch, Source
from airflow_megatron.results.store.job_rows import JobRows
from airflow_megatron.results.store.reading import load
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.snapshot_rows import write_batches
from airflow_megatron.results.store.writer import ResultWriter
from airflow_megatron.ui.live.stored import StoredSweep

if TYPE_CHECKING:
    from airflow_megatron.megatron.logs.log_lines import Record

LINE = (
    " [2026-11-22 10:%02d:%02d.000000] iteration %8d/   20000 | consumed samples: %12d |"
    " elapsed time per iteration (ms): %.1f | throughput per GPU (TFLOP/s/GPU): 401.5 | learning rate: 2.9%02dE-04 |"
    " global batch size:  1024 | lm loss: %.6E | loss scale: 1.0 | grad norm: 0.%03d |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def text(first: int, count: int) -> bytes:
    return "".join(
        LINE
        % (
            number // 60 % 60,
            number % 60,
            number,
            1024 * number,
            990 + number % 20,
            number % 97,
            2 + 900 / number,
            number % 999,
        )
        for number in range(first, first + count)
    ).encode()


def source(number: int) -> Source:
    point = f"lr{number}"
    return Source(
        "bench", "manual__1", point, "pretrain", 1, str(number), f"/r/{point}/logs/pretrain-1.out", 4096, 64
    )


def processor() -> float:
    used = os.times()
    return used.user + used.system


def ingest(rows: int = 500_000, batch: int = 1000) -> None:
    parser = LogParser()
    chunks: list[list[tuple[int, Record]]] = [
        parser.feed_placed(text(1 + batch * number, batch)) for number in range(rows // batch)
    ]
    with tempfile.TemporaryDirectory() as root:
        writer = ResultWriter(SegmentStore(root))
        writer.put(Batch("iterations", source(0), time.time(), [chunks[0][0][1]], [0]))
        writer.drain(60)
        began, used = time.perf_counter(), processor()
        for number, placed in enumerate(chunks):
            JobRows(source(number), writer).records(placed, time.time())
        assert writer.drain(600)
        took, used = time.perf_counter() - began, processor() - used
        size = sum(entry.stat().st_size for entry in os.scandir(f"{root}/bench/store"))
        writer.close()
    print(
        f"ingest: {rows / used:,.0f} rows per processor second, {rows / took:,.0f} rows/s, "
        f"{size / rows:.0f} bytes a row"
    )


def share(jobs: int = 1000, interval: float = 15.0, polls: int = 12) -> None:
    parsers = [LogParser() for _ in range(jobs)]
    plain = [LogParser() for _ in range(jobs)]
    chunks = [text(1 + int(interval) * poll, int(interval)) for poll in range(polls)]
    with tempfile.TemporaryDirectory() as root:
        writer = ResultWriter(SegmentStore(root))
        rows = [JobRows(source(number), writer) for number in range(jobs)]
        writer.put(Batch("gaps", source(0), time.time(), [("warm",)], [0]))
        writer.drain(60)
        parsing = stored = 0.0
        for chunk in chunks:
            used = processor()
            for parser in plain:
                parser.feed(chunk)
            parsing += processor() - used
            used = processor()
            for parser, job in zip(parsers, rows, strict=True):
                job.records(parser.feed_placed(chunk), time.time())
            assert writer.drain(600)
            stored += processor() - used
        writer.close()
    took = polls * interval
    print(
        f"share: {100 * (stored - parsing) / took:.2f} % of a core for {jobs} jobs with a line a second, "
        f"polled every {interval:.0f} s (parsing, done before, {100 * parsing / took:.2f} %)"
    )


def fill(store: SegmentStore, runs: int, points: int) -> None:
    """Store the iterations of trainings of the points ``lr0``, ``lr1``, … of the sweep ``bench``.

    :param runs: how many there are
    :param points: iterations of each
    """
    placed = LogParser().feed_placed(text(1, points))
    records, places = [record for _, record in placed], [at for at, _ in placed]
    for first in range(0, runs, 100):
        numbers = range(first, min(first + 100, runs))
        write_batches(
            store, [Batch("iterations", source(number), time.time(), records, places) for number in numbers]
        )


def view(runs: int, points: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        store = SegmentStore(root)
        fill(store, runs, points)
        began, used = time.perf_counter(), processor()
        os.environ["AIRFLOW__MEGATRON__RESULTS_STORE"] = root
        stored = StoredSweep("bench")
        took, used = time.perf_counter() - began, processor() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"view: {runs} runs of {points} points, first picture {took:.2f} s ({used:.2f} s of processor time), "
            f"peak memory {peak:,} MiB"
        )
        chosen = [f"lr{number}" for number in range(50)]
        times = []
        for _ in range(20):
            began = time.perf_counter()
            stored = StoredSweep("bench")
            stored.trainings()
            curves = stored.curves("loss", chosen, 300)
            times.append(1000 * (time.perf_counter() - began))
        size = len(json.dumps(curves, separators=(",", ":")))
        middle, most = statistics.median(times), max(times)
        print(f"  rows and 50 curves, warm: {middle:.0f} ms, at most {most:.0f} ms, {size:,} bytes")
        times = []
        for step in range(10):
            more = LogParser().feed_placed(text(points + 10 * step + 1, 10))
            base = len(text(1, points)) + 100_000 * step
            records, places = [record for _, record in more], [base + at for at, _ in more]
            write_batches(
                store,
                [Batch("iterations", source(number), time.time(), records, places) for number in range(runs)],
            )
            time.sleep(3)
            began = time.perf_counter()
            StoredSweep("bench").curves("loss", chosen, 300)
            times.append(1000 * (time.perf_counter() - began))
        middle, most = statistics.median(times), max(times)
        print(f"  the same after all runs have logged 10 lines: {middle:.0f} ms, at most {most:.0f} ms")
        began, used = time.perf_counter(), processor()
        height = load("bench", root=root).iterations.height
        print(f"  load().iterations: {height:,} rows in {time.perf_counter() - began:.2f} s")
    print(f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024:,} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["ingest", "share", "view", []])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=10_000)
    chosen = parser.parse_args()
    if "ingest" in chosen.parts or not chosen.parts:
        ingest()
    if "share" in chosen.parts or not chosen.parts:
        share()
    if "view" in chosen.parts or not chosen.parts:
        view(chosen.runs, chosen.points)


if __name__ == "__main__":
    main()
