"""A store rebuilt from the run directories equals the store that was written while the jobs ran."""

from __future__ import annotations

import json
import uuid
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_tree import RunTree, take_snapshot

from airflow_megatron.megatron.logs.log_lines import LogParser
from airflow_megatron.results.readings.sweep_jobs import SweepJob, read_jobs, run_directories
from airflow_megatron.results.store.batches import Batch, Source
from airflow_megatron.results.store.chance_levels import chance_level
from airflow_megatron.results.store.job_rows import JobRows, source_of, source_values
from airflow_megatron.results.store.reading import load
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.snapshot_rows import batches_of_snapshot, write_batches
from airflow_megatron.results.store.writer import ResultWriter
from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.observation import Observation
from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from airflow_megatron.results.store.reading import Results

MEMORY = (
    b"[Rank 0] (after 10 iterations) memory (MB) | allocated: 1.5 | max allocated: 2.5 | reserved: 3.0 |\n"
)
VERDICT = Verdict(Outcome.FINISHED, "iteration 400 reached", exit_code=0, iteration=400, node_list="n1")


@pytest.fixture
def tree(tmp_path: Path) -> RunTree:
    """A point with a cooldown; its pretraining has failed once and went back to iteration 200."""
    tree = RunTree(tmp_path / "a folder")
    tree.add_point({"num_layers": 2, "hidden_size": 64}, 120_000, 1e-3, budgets={"1M": 250})
    for job in jobs_of(tree):
        run_dir = Path(job.run_dir)
        first = run_dir / "logs" / f"{job.stage}-1.out"
        if job.stage == "pretrain":
            lines = first.read_bytes().splitlines(keepends=True)
            (run_dir / "logs" / "pretrain-2.out").write_bytes(
                b"noise\n  successfully loaded checkpoint from /r [ t 1/1, p 1/1 ] at iteration 200\n"
                + b"".join(line for line in lines if b" iteration " not in line or b"/     400" in line)
            )
            tree.attempt(run_dir, job.stage, 2)
            lines.insert(2, MEMORY)
            first.write_bytes(b"".join(lines[:30]) + b"srun: error: it was killed\n")
        for number in (1, 2) if job.stage == "pretrain" else (1,):
            place = run_dir / ".jobs" / job.stage / str(number) / "verdict.json"
            tree.write(place, json.dumps({**VERDICT.to_json(), "attempt": number}))
    return tree


def jobs_of(tree: RunTree) -> tuple[SweepJob, ...]:
    return read_jobs(tree.jobs)


def rebuilt(tree: RunTree, root: str) -> Results:
    jobs = jobs_of(tree)
    snapshot = take_snapshot(run_directories(jobs), whole=True)
    write_batches(SegmentStore(root), batches_of_snapshot("s", snapshot, jobs, 2000.0))
    return load("s", root=root)


def live(tree: RunTree, root: str) -> Results:
    """Return the rows that triggers store when they read each log in chunks."""
    writer = ResultWriter(SegmentStore(root), flush_s=600)
    for job in jobs_of(tree):
        for number in (1, 2):
            log = Path(job.run_dir) / "logs" / f"{job.stage}-{number}.out"
            if not (log.parent.parent / ".jobs" / job.stage / str(number)).exists():
                continue
            source = source_of(
                source_values(job, "s", ""), attempt=number, job_id=str(100 + number), log=str(log)
            )
            assert isinstance(source, Source)
            rows, parser = JobRows(source, writer), LogParser()
            data = log.read_bytes() if log.exists() else b""
            for start in range(0, len(data), 777):
                rows.records(parser.feed_placed(data[start : start + 777]), 1000.0)
            rows.records(parser.finish_placed(), 1000.0)
            record = {"exit_code": 0, "started": 1000.0, "ended": 1060.5}
            rows.ended(VERDICT, Observation(time=1100.0, exit=ExitRecord.from_json(record)))
    assert writer.drain(20)
    writer.close()
    return load("s", root=root)


@pytest.mark.slow
def test_it_equals_what_was_stored_live(tree: RunTree, tmp_path: Path) -> None:
    here, there = live(tree, str(tmp_path / "live")), rebuilt(tree, str(tmp_path / "rebuilt"))
    for name in ("iterations", "validations", "checkpoints", "memory", "attempts"):
        one, other = getattr(here, name), getattr(there, name)
        order = ["point", "stage", "attempt", "offset"]
        assert one.height, name
        assert one.drop("time").sort(order).equals(other.drop("time").sort(order)), name
    assert here.iterations["superseded"].sum() > 0


@pytest.mark.slow
def test_rebuilding_what_is_there_changes_nothing(tree: RunTree) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    before = live(tree, root)
    seen = {name: getattr(before, name) for name in ("iterations", "validations", "attempts")}
    after = rebuilt(tree, root)
    for name, frame in seen.items():
        assert getattr(after, name).drop("time").equals(frame.drop("time")), name


@pytest.mark.slow
def test_a_rebuild_ends_the_gaps_before_it(tree: RunTree) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    job = jobs_of(tree)[0]
    log = f"{job.run_dir}/logs/{job.stage}-1.out"
    source = source_of(source_values(job, "s", ""), attempt=1, job_id="101", log=log)
    assert source
    gap = Batch("gaps", source, 1000.0, [("not read",)], [5])
    write_batches(SegmentStore(root), [gap])
    assert load("s", root=root).gaps.height == 1
    assert rebuilt(tree, root).gaps.height == 0
    write_batches(SegmentStore(root), [gap._replace(time=3000.0)])
    assert load("s", root=root).gaps.height == 1


@pytest.mark.slow
def test_points_and_evaluations_are_among_the_rows(tree: RunTree) -> None:
    results = rebuilt(tree, f"memory://{uuid.uuid4().hex}")
    assert results.points["stage"].to_list() == ["pretrain", "cooldown_1M"]
    assert json.loads(results.points["swept"][0])["lr"] == 1e-3
    figures = results.evaluations
    assert {*figures["task"]} == {"heldout", "next_line"}
    assert set(chain(figures["stage"])) == {"pretrain", "cooldown_1M"}


@pytest.mark.parametrize(
    ("task", "metric", "chance"),
    [
        ("hellaswag", "acc_norm", 0.25),
        ("mmlu_high_school_physics", "acc", 0.25),
        ("arc_easy", "acc", 0.25),
        ("boolq", "acc", 0.5),
        ("lambada_openai", "acc", None),
        ("hellaswag", "perplexity", None),
    ],
)
def test_chance_levels(task: str, metric: str, chance: float | None) -> None:
    assert chance_level(task, metric) == chance
