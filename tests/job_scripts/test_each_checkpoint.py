"""Work on each checkpoint: several workers, dying workers, checkpoints that appear late or are deleted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "Megatron-LM" / "each_checkpoint.py"


class Run:
    """A run directory with checkpoints, and workers on it."""

    def __init__(self, place: Path) -> None:
        self.checkpoints = place / "checkpoints"
        self.done = place / "converted"
        self.log = place / "log"
        self.checkpoints.mkdir()
        self.log.touch()

    def save(self, *iterations: int) -> None:
        for iteration in iterations:
            (self.checkpoints / f"iter_{iteration:07d}").mkdir()
            (self.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(iteration))

    def start(self, shell: str = "", *options: str) -> subprocess.Popen[str]:
        """Start a worker; its command writes to the log, runs *shell*, and creates the marker."""
        text = f"echo $1 >>{self.log}; {shell or 'true'} && touch {self.done}/iter_$1.done"
        words = [
            "--source",
            str(self.checkpoints),
            "--done",
            f"{self.done}/iter_{{iteration}}.done",
            *options,
        ]
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), *words, "--", "sh", "-c", text, "sh", "{iteration}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def work(self, shell: str = "", *options: str) -> tuple[int, str]:
        process = self.start(shell, *options)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    @property
    def worked_on(self) -> list[int]:
        return [int(line) for line in self.log.read_text().split()]

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.done.iterdir())

    def claim(self, iteration: int, number: int = 1, **owner: object) -> Path:
        """Write a claim of a worker elsewhere."""
        self.done.mkdir(exist_ok=True)
        path = self.done / f"iter_{iteration}.done.claim.{number}"
        here = {"host": "n9", "machine": "another", "pid": 1, "started": 1, "job_id": "7"}
        path.write_text(json.dumps({**here, **owner}))
        return path

    def wait_for_work(self) -> None:
        deadline = time.monotonic() + 60
        while not self.worked_on:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.slow
def test_workers_at_once_share_the_work(run: Run) -> None:
    run.save(10, 20, 30, 40)
    workers = [run.start("sleep 0.3") for _ in range(3)]
    for worker in workers:
        output, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0, output
    assert sorted(run.worked_on) == [10, 20, 30, 40]
    assert run.left == [f"iter_{number}.done" for number in (10, 20, 30, 40)]


@pytest.mark.slow
def test_killed_worker_leaves_its_work_to_the_next(run: Run) -> None:
    run.save(10)
    worker = run.start("exec sleep 600")
    run.wait_for_work()
    worker.kill()
    worker.communicate(timeout=60)  # the command, which also has the pipe open, died with it
    began = time.monotonic()
    status, output = run.work()
    assert status == 0, output
    assert time.monotonic() - began < 60
    assert run.worked_on == [10, 10]
    assert run.left == ["iter_10.done"]


@pytest.mark.slow
def test_a_worker_that_is_stopped_releases_its_claim(run: Run) -> None:
    run.save(10)
    worker = run.start("exec sleep 600")
    run.wait_for_work()
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)
    assert worker.returncode == 128 + signal.SIGTERM
    assert run.left == []


@pytest.mark.slow
def test_claim_of_a_living_worker_elsewhere_is_waited_for(run: Run) -> None:
    run.save(10)
    claim = run.claim(10)
    worker = run.start()
    assert worker.stdout is not None
    assert "iteration 10: job 7, process 1 on n9 works on it" in worker.stdout.readline()
    assert run.worked_on == []
    os.utime(claim, (0, 0))  # its heartbeat has stopped
    worker.communicate(timeout=60)
    assert run.worked_on == [10]
    assert run.left == ["iter_10.done"]


@pytest.mark.slow
def test_work_that_another_finishes_is_not_done_twice(run: Run) -> None:
    run.save(10)
    run.claim(10)
    worker = run.start()
    assert worker.stdout is not None
    worker.stdout.readline()
    (run.done / "iter_10.done").touch()
    worker.communicate(timeout=60)
    assert (worker.returncode, run.worked_on) == (0, [])


@pytest.mark.slow
def test_process_with_the_pid_of_a_dead_owner_is_not_the_owner(run: Run) -> None:
    """The pid of a claim lives again, as another process."""
    run.save(10)
    worker = run.start("exec sleep 600")
    run.wait_for_work()
    (claim,) = run.done.glob("*.claim.1")
    claimed = json.loads(claim.read_text())
    worker.kill()
    worker.communicate(timeout=60)
    claim.write_text(json.dumps({**claimed, "pid": os.getpid()}))
    assert run.work()[0] == 0
    assert run.left == ["iter_10.done"]


@pytest.mark.slow
def test_checkpoint_saved_meanwhile_is_worked_on_too(run: Run) -> None:
    """Megatron saves the last one after the log line about the end of the training."""
    run.save(10)
    last = run.checkpoints / "iter_0000012"
    tracker = run.checkpoints / "latest_checkpointed_iteration.txt"
    status, _ = run.work(
        f"{{ [ $1 = 12 ] || {{ mkdir {last} && printf 12 >{tracker}; }}; }}",
        "--spacing",
        "10",
        "--last",
        "12",
    )
    assert (status, run.worked_on) == (0, [10, 12])


@pytest.mark.slow
def test_checkpoint_not_yet_whole_is_left_for_later(run: Run) -> None:
    run.save(10)
    (run.checkpoints / "iter_0000020").mkdir()
    assert run.work()[0] == 0
    assert run.worked_on == [10]


@pytest.mark.slow
def test_checkpoint_deleted_meanwhile_is_not_a_failure(run: Run) -> None:
    run.save(10, 20)
    status, output = run.work(f"{{ [ $1 = 20 ] || {{ rmdir {run.checkpoints}/iter_0000010; false; }}; }}")
    assert status == 0, output
    assert "iteration 10 was deleted meanwhile" in output
    assert run.left == ["iter_20.done"]


@pytest.mark.slow
def test_failures_are_listed_at_the_end(run: Run) -> None:
    run.save(10, 20)
    status, output = run.work("[ $1 = 20 ]")
    assert status == 1
    assert "failed for iterations 10" in output
    assert run.left == ["iter_20.done"]


@pytest.mark.parametrize(
    ("tracker", "reason"),
    [
        (None, "latest_checkpointed_iteration.txt, which names the newest complete one, is missing"),
        (
            "four",
            "latest_checkpointed_iteration.txt, which names the newest complete one, does not hold an iteration",
        ),
    ],
)
def test_checkpoints_without_the_name_of_the_newest(run: Run, tracker: str | None, reason: str) -> None:
    run.save(4, 8)
    place = run.checkpoints / "latest_checkpointed_iteration.txt"
    place.unlink()
    if tracker is not None:
        place.write_text(tracker)
    code, output = run.work("", "--required")
    assert code == 1
    assert output == f"each_checkpoint: there is no complete checkpoint in {run.checkpoints}: {reason}\n"


def test_a_directory_without_checkpoints(run: Run) -> None:
    code, output = run.work("", "--required")
    assert code == 1
    assert output == f"each_checkpoint: there is no complete checkpoint in {run.checkpoints}\n"
