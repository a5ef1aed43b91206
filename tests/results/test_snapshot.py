from __future__ import annotations

import itertools
import math
import shutil
import subprocess
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_tree import iteration_line, take_snapshot

from airflow_megatron.megatron.logs.log_lines import (
    ErrorRecord,
    IterationRecord,
    LogParser,
    ValidationRecord,
    parse_log,
)
from airflow_megatron.results.readings import snapshot as snapshot_module
from airflow_megatron.results.readings.snapshot import SnapshotError, parse_snapshot, snapshot_script
from airflow_megatron.slurm.remote.framing import BEGIN, END
from airflow_megatron.slurm.remote.quoting import QuotingError

if TYPE_CHECKING:
    from run_tree import RunTree

    from airflow_megatron.results.readings.snapshot import SweepSnapshot

LOG = Path(__file__).parents[1] / "fixtures" / "logs" / "core_v0.16.1-cpu-tp2.log"
NOW = datetime(2026, 11, 21, 9, 0)


def long_log(iterations: int) -> str:
    return "".join(iteration_line(number, iterations, 3.0, 1e-3, NOW) for number in range(1, iterations + 1))


@pytest.mark.slow
def test_a_finished_run(sweep: tuple[RunTree, SweepSnapshot]) -> None:
    tree, snapshot = sweep
    assert len(snapshot.runs) == 2 * (2 * 3 + 1)
    run = snapshot.run(str(tree.root / "toy" / "h64_lr0.001"))
    assert run.exists
    assert run.unreadable == []
    assert run.tracked == 400
    assert run.checkpoints == run.converted == [400]
    assert run.evaluations[400]["results"]["next_line"]["acc_stderr,none"] == 0.02
    assert sorted(run.attempts) == ["pretrain", "pretrain.convert", "pretrain.evaluate"]
    (attempt,) = run.attempts["pretrain"]
    assert (attempt.number, attempt.job_id, attempt.started) == (1, "101", True)
    assert attempt.job is not None
    assert (attempt.job.job, attempt.job.attempt) == ("pretrain", 1)
    assert attempt.exit is not None
    assert attempt.exit.ended - attempt.exit.started == 60.5
    assert run.verdicts["pretrain"].outcome == "finished"
    log = (tree.root / "toy" / "h64_lr0.001" / "logs" / "pretrain-1.out").read_bytes()
    assert run.records("pretrain") == parse_log(log)


def test_a_task_of_an_array(tree: RunTree) -> None:
    path = tree.root / "p"
    tree.write(path / ".jobs" / "work" / "1" / "jobid", "40_3;;s.work.array.t1\n")
    (attempt,) = take_snapshot([str(path)]).run(str(path)).attempts["work"]
    assert attempt.job_id == "40_3"


def test_directories_that_do_not_exist(tree: RunTree) -> None:
    path = str(tree.root / "none")
    snapshot = take_snapshot([path])
    assert not snapshot.run(path).exists
    assert not snapshot.run("/never/asked").exists
    assert take_snapshot([]).runs == {}


def test_paths_with_odd_names(tree: RunTree) -> None:
    for name in ("with space", "it's", '$(touch x) "q"', "*", "a=b", "ü"):
        tree.write(tree.root / name / "logs" / "pretrain-1.out", long_log(3))
        tree.verdict(tree.root / name, "pre train=1", "failed", "@end of\n @run /x\n")
    paths = [str(path) for path in sorted(tree.root.iterdir())]
    snapshot = take_snapshot(paths)
    assert list(snapshot.runs) == paths
    for path in paths:
        run = snapshot.run(path)
        assert len(run.records("pretrain")) == 3
        assert run.verdicts["pre train=1"].reason == "@end of\n @run /x\n"
    assert sorted(path.name for path in tree.root.iterdir()) == sorted(Path(path).name for path in paths)


def test_relative_paths_and_newlines_are_refused() -> None:
    for path in ("runs/a", "/runs/a\nb"):
        with pytest.raises(QuotingError):
            snapshot_script([path])


def test_attempts_come_in_numeric_order(tree: RunTree) -> None:
    run_dir = tree.root / "p"
    for number in (1, 2, 10):
        tree.attempt(run_dir, "pretrain", number, exit_code=0 if number < 10 else None)
        tree.write(run_dir / "logs" / f"pretrain-{number}.out", iteration_line(number, 10, 3.0, 1e-3, NOW))
    run = take_snapshot([str(run_dir)]).run(str(run_dir))
    assert [attempt.number for attempt in run.attempts["pretrain"]] == [1, 2, 10]
    assert [attempt.exit is None for attempt in run.attempts["pretrain"]] == [False, False, True]
    assert [record.iteration for record in run.records("pretrain")] == [1, 2, 10]


def test_a_log_with_every_byte_survives(tree: RunTree) -> None:
    run_dir = tree.root / "p"
    tree.write(run_dir / "logs" / "pretrain-1.out", "")
    noise = bytes(range(256)) * 20
    path = run_dir / "logs" / "pretrain-1.out"
    path.write_bytes(
        LOG.read_bytes()
        + noise
        + b"\n"
        + b"KeyError: caf\xe9 \xff\n@end\n@run /x\n"
        + b"no newline at the end"
    )
    run = take_snapshot([str(run_dir)]).run(str(run_dir))
    *rest, error = run.records("pretrain")
    assert rest == parse_log(LOG.read_bytes())
    assert isinstance(error, ErrorRecord)
    assert error.exception == "KeyError"


def test_unreadable_files_are_reported(tree: RunTree) -> None:
    run_dir = tree.root / "p"
    tree.write(run_dir / ".jobs" / "pretrain" / "verdict.json", '{"outcome": "fin')
    tree.write(run_dir / "eval_results" / "iter_5" / "results.json", "[]")
    run = take_snapshot([str(run_dir)]).run(str(run_dir))
    assert run.unreadable == [".jobs/pretrain/verdict.json", "eval_results/iter_5/results.json"]
    assert run.verdicts == run.evaluations == {}


@pytest.mark.slow
def test_long_logs_are_thinned_evenly(tree: RunTree) -> None:
    run_dir = tree.root / "p"
    text = "".join(f"RuntimeError: {number}\n" for number in range(2000))
    tree.write(run_dir / "logs" / "pretrain-1.out", long_log(30_000) + text)
    run = take_snapshot([str(run_dir)], iteration_lines=500).run(str(run_dir))
    records = run.records("pretrain")
    iterations = [record.iteration for record in records if isinstance(record, IterationRecord)]
    assert 250 <= len(iterations) <= 700
    assert iterations == sorted(set(iterations))
    assert iterations[-100:] == list(range(29_901, 30_001))
    gaps = {after - before for before, after in itertools.pairwise(iterations)}
    assert len(gaps - {1}) <= 2
    assert iterations[0] <= 128
    errors = [int(record.message) for record in records if isinstance(record, ErrorRecord)]
    assert errors[:400] == list(range(400))
    assert errors[400:] == list(range(1600, 2000))


@pytest.mark.slow
def test_validations_are_kept_among_many_other_lines(tree: RunTree) -> None:
    """Figures compare a branch with the validation of its trunk at the iteration where it begins."""
    run_dir = tree.root / "p"
    line = " validation loss at iteration {} on {} set | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | \n"
    saved = "  successfully saved checkpoint from iteration {} to /c [ t 1/1, p 1/1 ]\n"
    for name, count in (("short", 1500), ("long", 9000)):
        text = "".join(
            line.format(number, "validation") + line.format(number, "test") + saved.format(number)
            for number in range(1, count + 1)
        )
        tree.write(run_dir / "logs" / f"{name}-1.out", text)
    run = take_snapshot([str(run_dir)]).run(str(run_dir))
    for name, count in (("short", 1500), ("long", 9000)):
        found: dict[int, set[str]] = {}
        for record in run.records(name):
            if isinstance(record, ValidationRecord):
                found.setdefault(record.iteration, set()).add(record.split)
        assert set(map(len, found.values())) == {2}
        assert list(found)[-200:] == list(range(count - 199, count + 1))
        gaps = {after - before for before, after in itertools.pairwise(sorted(found))}
        assert max(gaps) == (1 if count <= 2000 else 8)


def test_tail_of_a_log(tree: RunTree) -> None:
    run_dir = tree.root / "p"
    tree.write(run_dir / "logs" / "pretrain-1.out", long_log(2000))
    run = take_snapshot([str(run_dir)], log_tail_bytes=10_000).run(str(run_dir))
    iterations = [record.iteration for record in run.records("pretrain")]
    assert iterations[-1] == 2000
    assert len(iterations) < 60


def test_every_cut_is_noticed(tree: RunTree) -> None:
    tree.write(tree.root / "p" / "logs" / "pretrain-1.out", long_log(50))
    script = snapshot_script([str(tree.root / "p")])
    whole = subprocess.run(["sh", "-s"], input=script, capture_output=True, text=True, check=True).stdout
    parse_snapshot(whole)
    for cut in range(0, len(whole) - 2, 7):
        with pytest.raises(SnapshotError, match="cut off"):
            parse_snapshot(whole[:cut])
    lines = whole.splitlines(keepends=True)
    for missing in range(lines.index(f"{BEGIN}\n") + 1, lines.index(f"{END}\n") - 1):
        with pytest.raises(SnapshotError, match="damaged"):
            parse_snapshot("".join(lines[:missing] + lines[missing + 1 :]))


def test_a_command_that_dies_inside_is_noticed(tree: RunTree) -> None:
    script = snapshot_script([str(tree.root)]).replace("printf '@end\\n'", "true")
    done = subprocess.run(["sh", "-s"], input=script, capture_output=True, text=True, check=True)
    with pytest.raises(SnapshotError, match="last section"):
        parse_snapshot(done.stdout)


@pytest.mark.parametrize("shell", [name for name in ("dash", "bash", "busybox") if shutil.which(name)])
def test_other_shells(tree: RunTree, shell: str) -> None:
    tree.write(tree.root / "p" / "logs" / "pretrain-1.out", long_log(20))
    command = ["busybox", "sh", "-s"] if shell == "busybox" else [shell, "-s"]
    done = subprocess.run(
        command, input=snapshot_script([str(tree.root / "p")]), capture_output=True, text=True, check=True
    )
    assert len(parse_snapshot(done.stdout).run(str(tree.root / "p")).records("pretrain")) == 20


def test_a_tracker_of_any_size_does_not_hold_the_other_runs(tmp_path: Path) -> None:
    trackers = [tmp_path / run / "checkpoints" / "latest_checkpointed_iteration.txt" for run in ("a", "b")]
    for tracker in trackers:
        tracker.parent.mkdir(parents=True)
    with trackers[0].open("wb") as hostile:
        hostile.truncate(1 << 40)
    trackers[1].write_text("20")
    script = snapshot_script(str(tmp_path / run) for run in ("a", "b"))
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=20, check=True)
    found = parse_snapshot(shell.stdout)
    assert [found.run(str(tmp_path / run)).tracked for run in ("a", "b")] == [None, 20]


@pytest.mark.slow
def test_large_results_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may write sparse files, which cost it nothing, and little when they are compressed."""
    monkeypatch.setattr(snapshot_module, "MOST_OF_FILES", 1 << 20)
    for run in ("evil", "good"):
        for iteration in range(5 if run == "evil" else 1):
            file = tmp_path / run / "eval_results" / f"iter_{iteration:07d}" / "results.json"
            file.parent.mkdir(parents=True)
            with file.open("wb") as stream:
                stream.write(b'{"results": {}}')
                if run == "evil":
                    stream.truncate(500_000)
    paths = [str(tmp_path / run) for run in ("evil", "good")]
    answer = subprocess.run(["sh"], input=snapshot_script(paths), capture_output=True, text=True, check=True)
    snapshot = parse_snapshot(answer.stdout)
    assert snapshot.run(paths[1]).evaluations == {0: {"results": {}}}
    assert snapshot.run(paths[1]).unreadable == []
    assert "eval_results" in snapshot.run(paths[0]).unreadable


@pytest.mark.slow
@pytest.mark.parametrize("file", ["logs/pretrain-1.out", ".jobs/pretrain/1/gpus/n1.csv"])
def test_a_file_that_is_one_long_line_takes_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr(snapshot_module, "MOST_MEMORY_KB", 100_000)
    paths = [tmp_path / run for run in ("evil", "good")]
    for path in paths:
        (path / "logs").mkdir(parents=True)
        (path / "logs" / "pretrain-2.out").write_text(long_log(20))
    hostile = paths[0] / file
    hostile.parent.mkdir(parents=True, exist_ok=True)
    with hostile.open("wb") as stream:
        stream.truncate(400 << 20)
    answer = subprocess.run(
        ["sh"], input=snapshot_script(map(str, paths)), capture_output=True, text=True, check=True
    )
    assert "memory" in answer.stderr
    snapshot = parse_snapshot(answer.stdout)
    for path in paths:
        assert len(snapshot.run(str(path)).records("pretrain")) == 20
    assert snapshot.run(str(paths[0])).unreadable == ([file] if file.startswith("logs") else [])


@pytest.mark.slow
@pytest.mark.parametrize("tail", [None, 65536])
def test_any_number_of_logs_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: int | None
) -> None:
    monkeypatch.setattr(snapshot_module, "MOST_OF_LOGS", 1 << 20)
    paths = [tmp_path / run for run in ("evil", "good")]
    for path in paths:
        (path / "logs").mkdir(parents=True)
        (path / "logs" / "pretrain-1.out").write_text(long_log(200))
    for number in range(2, 200):  # a link costs its job nothing
        (paths[0] / "logs" / f"pretrain-{number}.out").symlink_to("pretrain-1.out")
    script = snapshot_script(map(str, paths), log_tail_bytes=tail)
    answer = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True)
    evil, good = (parse_snapshot(answer.stdout).run(str(path)) for path in paths)
    assert sum(len(log.data) for log in evil.logs) <= 1 << 20
    assert evil.unreadable == ["logs"]
    assert len(good.records("pretrain")) == 200
    assert good.unreadable == []


@pytest.mark.parametrize("value", ["9" * 400, "9" * 30, "inf", "nan", "1e999", ""])
def test_forged_gpu_samples_are_ignored(tree: RunTree, value: str) -> None:
    samples = tree.root / "p" / ".jobs" / "pretrain" / "1" / "gpus" / "n1.csv"
    tree.write(
        samples, f"{value}, 100, 50, 300\n0, {value}, 50, 300\n1, 100, {value}, 300\n2, 100, 50, 300\n"
    )
    tree.write(samples.parents[1] / "jobid", "7\n")
    (attempt,) = take_snapshot([str(tree.root / "p")]).run(str(tree.root / "p")).attempts["pretrain"]
    assert [use.index for use in attempt.gpus][-1:] == [2]
    for use in attempt.gpus:
        assert use.index < 3
        assert all(math.isfinite(item) for item in (use.memory_mib, use.utilisation, use.power_w))


def test_iteration_lines_has_a_lower_bound() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        snapshot_script(["/x"], iteration_lines=1)


def test_a_log_is_parsed_once_for_all_who_ask(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write(tree.root / "p" / "logs" / "pretrain-1.out", long_log(20))
    run = take_snapshot([str(tree.root / "p")]).run(str(tree.root / "p"))
    parsed: list[int] = []
    feed = LogParser.feed
    monkeypatch.setattr(LogParser, "feed", lambda self, data: parsed.append(len(data)) or feed(self, data))
    first, last = run.records("pretrain"), run.training("pretrain").last
    assert (run.records("pretrain"), run.training("pretrain").last) == (first, last)
    assert last is not None
    assert last.iteration == 20
    assert len(parsed) == 1
