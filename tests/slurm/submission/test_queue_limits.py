"""Limits on queued jobs with concurrent submissions."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import time
from pathlib import Path

import pytest

from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.submission.queue_limits import QueueLimit
from airflow_megatron.slurm.submission.single_job import submission_script


@pytest.fixture
def limited(request_for, tmp_path):
    """Return a function that creates requests of separate jobs with limits."""

    def make(point: str, *limits: QueueLimit, sweep: str = "sweep", **changes: object):
        attempt = Attempt(f"{sweep}.{point}.train.a1", str(tmp_path / "run" / point / ".jobs" / "train"), 1)
        return request_for(attempt=attempt, limits=limits, places_dir=str(tmp_path / "places"), **changes)

    return make


def places(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "places" / str(os.getuid())).iterdir())


def announce(tmp_path: Path, name: str, line: str) -> Path:
    folder = tmp_path / "places" / str(os.getuid())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name},x.1").write_text(line)
    return folder / f"{name},x.1"


@pytest.mark.slow
def test_a_full_queue_defers_and_the_next_free_place_is_taken(slurm, limited, tmp_path):
    limit = QueueLimit(2)
    assert [slurm.submit(limited(point, limit)).status for point in "ab"] == ["submitted"] * 2
    outcome = slurm.submit(limited("c", limit))
    assert (outcome.status, outcome.waits_for) == ("deferred", "room")
    assert outcome.message == "max_jobs is 2, and the queue holds 2; waiting for a job to end"
    assert slurm.jobs == ["1001", "1002"]
    assert places(tmp_path) == []
    (slurm.root / "jobs" / "1001").unlink()
    assert slurm.submit(limited("c", limit)).job_id == "1003"


def test_warnings_of_squeue_are_not_jobs(slurm, limited):
    slurm.behave(
        "squeue", "echo 'squeue: error: Ignoring obsolete FastSchedule=1 option' >&2; printf '\nmotd\n'"
    )
    assert slurm.submit(limited("a", QueueLimit(1))).status == "submitted"


@pytest.mark.slow
def test_jobs_of_others_count_for_the_cluster_and_not_for_the_sweep(slurm, limited):
    (slurm.root / "jobs" / "7").write_text("7|RUNNING|0|(null)|a shell script of mine\n")
    of_sweep = QueueLimit(1, "sweep.")
    assert slurm.submit(limited("a", QueueLimit(3), of_sweep)).status == "submitted"
    outcome = slurm.submit(limited("b", QueueLimit(3), of_sweep))
    assert outcome.message == "max_jobs is 1, and the queue holds 1 of sweep; waiting for a job to end"
    assert slurm.submit(limited("b", QueueLimit(3), QueueLimit(1, "other."), sweep="other")).job_id == "1002"
    outcome = slurm.submit(limited("c", QueueLimit(3), QueueLimit(9, "other."), sweep="other"))
    assert outcome.message.startswith("max_jobs is 3, and the queue holds 3")


@pytest.mark.slow
def test_an_attempt_with_a_job_needs_no_place(slurm, limited):
    limit = QueueLimit(1)
    slurm.submit(limited("a", limit))
    assert slurm.submit(limited("a", limit)).status == "recorded"
    slurm.behave("sbatch", 'accept "$@"; mv "$FAKE_SLURM/jobs/$id" "$FAKE_SLURM/late"; exit 141')
    assert slurm.submit(limited("b", QueueLimit(2))).status == "pending"
    (slurm.root / "late").rename(slurm.root / "jobs" / "1002")
    assert slurm.submit(limited("b", QueueLimit(1))).status == "adopted"


@pytest.mark.slow
def test_a_claim_that_waits_again_and_again_leaves_little_behind(slurm, limited):
    limit = QueueLimit(1)
    slurm.submit(limited("a", limit))
    waiting = limited("b", limit)
    for _ in range(4):
        assert slurm.submit(limited("b", limit)).status == "deferred"
    assert sorted(path.name for path in Path(waiting.attempt.directory).iterdir()) == ["claim.3", "claim.4"]


@pytest.mark.slow
def test_an_unknown_outcome_keeps_its_place_for_the_visibility_window(slurm, limited, tmp_path):
    limit = QueueLimit(1)
    slurm.behave("sbatch", "kill -9 $$")
    assert slurm.submit(limited("a", limit)).status == "pending"
    slurm.behave_normally("sbatch")
    outcome = slurm.submit(limited("b", limit))
    assert outcome.status == "deferred"
    (place,) = places(tmp_path)
    host, pid, start, since, *rest = place.read_text().split()
    place.write_text(" ".join([host, pid, start, str(int(since) - 301), *rest]) + "\n")
    assert slurm.submit(limited("b", limit)).status == "submitted"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("{host} 999999999 12345 {now} counting 1\n", "submitted"),
        ("{host} {pid} {start} {now} counting 1\n", "deferred"),
        ("{host} 999999999 12345 {now} submitting 1\n", "deferred"),
        ("{host} 999999999 12345 {old} submitting 1\n", "submitted"),
        ("elsewhere 5 1 {now} counting 1\n", "deferred"),
        ("elsewhere 5 1 {minute} counting 1\n", "submitted"),
        ("", "deferred"),
    ],
    ids=[
        "dead",
        "alive",
        "dead while submitting",
        "long dead",
        "elsewhere",
        "elsewhere long ago",
        "unsigned",
    ],
)
def test_which_other_callers_count(slurm, limited, tmp_path, line, status):
    now = int(time.time())
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    place = announce(
        tmp_path,
        "sweep.earlier.train.a1",
        line.format(
            host=os.uname().nodename,
            pid=os.getpid(),
            start=start,
            now=now - 2,
            old=now - 301,
            minute=now - 61,
        ),
    )
    if not line:
        os.utime(place, (now - 2, now - 2))
    assert slurm.submit(limited("a", QueueLimit(1))).status == status
    assert place.exists() == (status == "deferred")


@pytest.mark.slow
def test_the_tasks_of_an_array_count_each(slurm, limited, tmp_path):
    now = int(time.time())
    announce(tmp_path, "sweep.array.a1", f"elsewhere 5 1 {now - 2} submitting 4\n")
    assert slurm.submit(limited("a", QueueLimit(7), jobs=4)).status == "deferred"
    assert slurm.submit(limited("a", QueueLimit(8), jobs=4)).status == "submitted"
    with pytest.raises(ValueError, match="submits 4 jobs at once, and max_jobs is 3"):
        limited("b", QueueLimit(3), jobs=4)


def test_without_an_answer_of_squeue_there_is_no_room(slurm, limited):
    slurm.behave("squeue", 'echo "slurm_load_jobs error: Socket timed out" >&2; exit 1')
    outcome = slurm.submit(limited("a", QueueLimit(5)))
    assert (outcome.status, outcome.waits_for) == ("deferred", "recovery")
    assert "Socket timed out" in outcome.message
    assert slurm.calls("sbatch") == []


@pytest.mark.slow
def test_many_callers_at_once_stay_within_the_limit(slurm, limited):
    """Half of them are killed during the submission, and their remaining files block no other caller."""
    slurm.behave("sbatch", 'sleep 0.0$((($$ % 9) + 1)); accept "$@"; echo $id')
    requests = [
        limited(f"p{number}", QueueLimit(5), visibility_window_s=2, busy_wait_s=5) for number in range(24)
    ]

    def call(number: int) -> None:
        process = slurm.start(submission_script(requests[number]))
        if number % 2:
            time.sleep(0.02 * (number % 10))
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        list(pool.map(call, range(24)))
    assert len(slurm.jobs) <= 5
    time.sleep(2)
    for request in requests:
        slurm.submit(request)
    assert len(slurm.jobs) == 5


def test_a_limit_below_one_is_refused():
    with pytest.raises(ValueError, match="permits no job"):
        QueueLimit(0)


def test_free_places():
    queued = {"sweep.a.train.a1": 1, "sweep.b.train.a1": 3, "other": 1}
    assert QueueLimit(5).free(queued) == 0
    assert QueueLimit(5, "sweep.").free(queued) == 1
