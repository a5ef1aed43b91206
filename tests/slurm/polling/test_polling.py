from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processor_limits import processor_limit

from airflow_megatron.slurm.polling import poll as polling
from airflow_megatron.slurm.polling.pacing import left_out
from airflow_megatron.slurm.polling.poll import (
    LOG_BYTES_PER_JOB,
    parse_accounting_row,
    parse_poll,
    parse_queue_row,
    parse_whole_poll,
    poll_script,
)
from airflow_megatron.slurm.remote.quoting import QuotingError
from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Watch


def poll(slurm, *watches):
    return parse_poll(watches, slurm.run(poll_script(watches)))


def queue(slurm, *rows, status=0):
    text = "\n".join(rows)
    slurm.behave("squeue", f"cat <<'E'\n{text}\nE\nexit {status}")


def accounting(slurm, *rows, status=0):
    text = "\n".join(rows)
    slurm.behave("sacct", f"cat <<'E'\n{text}\nE\nexit {status}")


def test_queue_and_accounting_in_one_command(slurm):
    queue(
        slurm,
        "7|RUNNING|1700000000|1700000100|1700003700|2|n[1-2]|None|s.p.train.a1",
        "8|PENDING|1700000000|N/A|N/A|1||Resources|s.q.train.a1",
        "9|COMPLETED|1700000000|1700000100|1700000200|1|n1|None|s.r.train.a1",
        "99|RUNNING|1700000000|1700000100|N/A|1|n4|None|odd | name",
    )
    accounting(
        slurm,
        "9|9|COMPLETED|0:0|1700000000|1700000100|1700000200|100|1|n1|None|s.r.train.a1",
        "10|10|CANCELLED by 1000|0:15|1700000000|Unknown|1700000200|0|1|None assigned|None|s.t.train.a1",
    )
    watches = [Watch(key=i, job_id=i) for i in ("7", "8", "9", "10", "11")]
    seen = poll(slurm, *watches)
    assert seen["7"].queue.state is JobState.RUNNING
    assert (seen["7"].queue.node_list, seen["7"].queue.node_count) == ("n[1-2]", 2)
    assert seen["7"].queue.started == 1700000100
    assert (seen["8"].queue.reason, seen["8"].queue.started) == ("Resources", None)
    assert (seen["9"].queue.state, seen["9"].accounting.state) == (JobState.COMPLETED, JobState.COMPLETED)
    assert seen["9"].accounting.elapsed == 100
    assert seen["10"].queue is None
    assert (seen["10"].accounting.state, seen["10"].accounting.exit_signal) == (JobState.CANCELLED, 15)
    assert seen["10"].accounting.node_list == ""
    assert (seen["11"].queue, seen["11"].accounting) == (None, None)
    assert all(one.queue_ok and one.accounting_ok for one in seen.values())
    assert abs(seen["7"].time - time.time()) < 5
    assert len(slurm.calls("squeue")) == 1
    (call,) = slurm.calls("sacct")
    assert " -j 9,10,11 " in call


def queue_with_comments(slurm, *rows):
    """Print (row, comment) as squeue prints them in the poll's format, which ends with a mark and the comment."""
    lines = "\n".join(f"M|{row}|M|{comment}" for row, comment in rows)
    marks = "for f; do case $f in am*) m=${f%%|*} ;; esac; done"
    slurm.behave("squeue", f"{marks}\nsed \"s/M|/$m|/g\" <<'E'\n{lines}\nE")


@pytest.mark.parametrize("comment", ["{}", "plug-in: {}", "{} | (gpu=4)"])
def test_a_renamed_job_is_followed(slurm, comment):
    """Users rename jobs with ``scontrol update``; the comment of a job still has its first name."""
    queue_with_comments(
        slurm,
        ("7|RUNNING|1|2|N/A|1|n1|None|x", comment.format("airflow-megatron:abc:s.p.train.a1")),
        ("8|RUNNING|1|2|N/A|1|n1|None|y|z", comment.format("airflow-megatron:abc:s.p.train.a2")),
        ("9|FAILED|1|2|3|1|n1|NonZeroExitCode|z", comment.format("airflow-megatron:abc:s.p.train.a3")),
        ("10|RUNNING|1|2|N/A|1|n1|None|s.p.train.a4", comment.format("airflow-megatron:abc:s.p.train.a4")),
    )
    accounting(slurm, "9|9|FAILED|3:0|1|2|3|1|1|n1|None|z")
    names = {"7": "s.p.train.a1", "8": "s.p.train.a2", "9": "s.p.train.a3", "10": "s.p.train.a4"}
    seen = poll(slurm, *(Watch(key=i, job_id=i, job_name=name) for i, name in names.items()))
    assert {key: (one.queue.name, one.queue.renamed) for key, one in seen.items()} == {
        "7": ("s.p.train.a1", "x"),
        "8": ("s.p.train.a2", "y|z"),
        "9": ("s.p.train.a3", "z"),
        "10": ("s.p.train.a4", ""),
    }
    assert (seen["9"].queue.state, seen["9"].accounting.exit_code) == (JobState.FAILED, 3)


def test_jobs_in_hidden_partitions_are_listed(slurm):
    """An administrator may hide a partition, or close it to the user's group, while jobs wait or run in it."""
    row = "7|RUNNING|1|2|N/A|1|n1|None|s.p.train.a1"
    slurm.behave("squeue", f'[ -z "${{SQUEUE_ALL-}}" ] || echo "{row}"')
    slurm.behave("sacct", "exit 0")
    (seen,) = poll(slurm, Watch(key="x", job_id="7", job_name="s.p.train.a1")).values()
    assert seen.queue is not None
    assert seen.queue.state is JobState.RUNNING


def test_a_reused_id_is_not_a_renamed_job(slurm):
    queue_with_comments(
        slurm,
        ("7|RUNNING|1|2|N/A|1|n1|None|x", "airflow-megatron:abc:s.p.train.a10"),
        ("8|RUNNING|1|2|N/A|1|n1|None|x", "(null)"),
        ("9|RUNNING|1|2|N/A|1|n1|None|x", "my airflow-megatron:s.p.train.a1"),
    )
    accounting(slurm)
    watches = [Watch(key=i, job_id=i, job_name="s.p.train.a1") for i in ("7", "8", "9")]
    seen = poll(slurm, *watches).values()
    assert [one.queue for one in seen] == [None, None, None]
    assert [one.other_name for one in seen] == ["s.p.train.a10", "x", "x"]


def test_accounting_is_queried_in_chunks(slurm):
    queue(slurm)
    poll(slurm, *(Watch(key=str(i), job_id=str(i)) for i in range(1, 1202)))
    calls = slurm.calls("sacct")
    assert [len(call.split(" -j ")[1].split()[0].split(",")) for call in calls] == [500, 500, 201]


def test_a_failed_squeue_gives_no_state_and_starts_no_query(slurm):
    queue(slurm, "7|RUNNING|1|1|1|1|n1|None|a", "slurm_load_jobs error: Socket timed out", status=1)
    (seen,) = poll(slurm, Watch(key="x", job_id="7")).values()
    assert (seen.queue_ok, seen.queue, seen.accounting_ok) == (False, None, False)
    assert "squeue: slurm_load_jobs error: Socket timed out" in seen.errors
    assert slurm.calls("sacct") == []


def test_waiting_tasks_of_an_array_are_in_the_queue(slurm):
    row = "7_{}|PENDING|1700000000|N/A|N/A|1||None|s.work.array.t1"
    queue(slurm, row.format("[1-3,8-12:2%4]"), row.format("4").replace("PENDING", "RUNNING"))
    watches = [Watch(key=f"7_{task}", job_id=f"7_{task}") for task in (1, 3, 4, 5, 8, 9, 10)]
    seen = poll(slurm, *watches, Watch(key="8", job_id="8"))
    states = {key: one.queue.state if one.queue else None for key, one in seen.items()}
    assert states == {
        **dict.fromkeys(("7_1", "7_3", "7_8", "7_10"), JobState.PENDING),
        "7_4": JobState.RUNNING,
        **dict.fromkeys(("7_5", "7_9", "8")),
    }
    (call,) = slurm.calls("sacct")
    assert "-j 7_5,7_9,8 " in call
    assert {key for key, one in seen.items() if one.siblings_queued} == set(states) - {"8"}


def test_a_huge_array_of_another_job_takes_no_time(slurm):
    """A job may submit jobs of its own."""
    rows = ["77_[0-4000000]|PENDING|1|1|1|1||Priority|evil", "7_[1-3]|PENDING|1|1|1|1||Priority|mine"]
    queue(slurm, *rows)
    watches = [Watch(key="7_2", job_id="7_2"), Watch(key="5", job_id="5")]
    result = slurm.run(poll_script(watches))
    with processor_limit(0.5):
        seen = parse_poll(watches, result)
    assert seen["7_2"].queue.state is JobState.PENDING
    assert seen["5"].queue is None


def test_failed_sacct_leaves_the_queue_known(slurm):
    queue(slurm, "7|RUNNING|1|1|1|1|n1|None|a")
    accounting(slurm, "sacct: error: slurmdbd: Connection refused", status=1)
    seen = poll(slurm, Watch(key="x", job_id="7"), Watch(key="y", job_id="8"))
    assert seen["x"].queue.state is JobState.RUNNING
    assert seen["x"].accounting_ok
    assert not seen["y"].accounting_ok
    assert seen["y"].accounting_enabled


@pytest.mark.parametrize("status", [0, 1])
def test_site_without_accounting(slurm, status):
    queue(slurm)
    accounting(slurm, "Slurm accounting storage is disabled", status=status)
    (seen,) = poll(slurm, Watch(key="x", job_id="7")).values()
    assert not seen.accounting_enabled
    assert not seen.accounting_ok


def test_recycled_job_id_belongs_to_another_job(slurm):
    queue(slurm, "7|RUNNING|1|1|1|1|n1|None|other")
    seen = poll(slurm, Watch(key="x", job_id="7", job_name="mine"))["x"]
    assert seen.queue is None


def test_job_by_name_prefers_the_active_one(slurm):
    queue(
        slurm,
        "7|COMPLETED|1|1|1|1|n1|None|mine",
        "8|PENDING|1|1|1|1||Dependency|mine",
        "6|FAILED|1|1|1|1|n1|None|mine",
    )
    assert poll(slurm, Watch(key="x", job_name="mine"))["x"].queue.job_id == "8"


@pytest.mark.slow
def test_files(slurm, tmp_path):
    run = tmp_path / "it's; a $(run) é"
    attempt = run / ".jobs" / "train" / "1"
    (attempt / "run").mkdir(parents=True)
    (attempt / "run" / "job_id").write_text("7\n")
    (attempt / "exit.json").write_text(json.dumps({"exit_code": 0, "ended": 5}) + "\n")
    checkpoints = run / "checkpoints"
    (checkpoints / "iter_0000010" / "mp_rank_00").mkdir(parents=True)
    (checkpoints / "iter_0000010" / "mp_rank_00" / "model_optim_rng.pt").write_bytes(b"12345")
    (checkpoints / "iter_0000020").mkdir()
    (checkpoints / "iter_0000020" / ".metadata").write_bytes(b"1")
    (checkpoints / "iter_0000020" / "__0_0.distcp").write_bytes(b"123")
    (checkpoints / "iter_0000030").mkdir()
    (checkpoints / "elsewhere" / "iter_0000040").mkdir(parents=True)
    (checkpoints / "iter_0000050").symlink_to("iter_0000020")
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("20")
    log = run / "train.out"
    log.write_bytes(b"hello\xff\x00 world\n")
    done = run / "converted_checkpoints"
    done.mkdir()
    (done / "iter_10.done").touch()
    watch = Watch(
        key="k",
        attempt_dir=str(attempt),
        checkpoint_dir=str(checkpoints) + "/",
        log_file=str(log),
        log_offset=2,
        read_files=(str(log), str(run / "absent")),
        check_files=(str(log), str(run / "absent"), str(checkpoints)),
        globs=(f"{done}/iter_*.done", f"{done}/none_*"),
    )
    seen = poll(slurm, watch, Watch(key="same checkpoints", checkpoint_dir=str(checkpoints) + "/"))
    one = seen["k"]
    assert one.exit == ExitRecord.from_json({"exit_code": 0, "ended": 5})
    assert one.owner_job_id == "7"
    assert one.tracker == "20"
    assert one.checkpoint_files == {
        "iter_0000010": {"mp_rank_00/model_optim_rng.pt": 5},
        "iter_0000020": {".metadata": 1, "__0_0.distcp": 3},
        "iter_0000030": {},
        "iter_0000050": {".metadata": 1, "__0_0.distcp": 3},
    }
    assert (one.log_chunk, one.log_size, one.log_offset) == (b"llo\xff\x00 world\n", 14, 2)
    assert one.files == {str(log): "hello\ufffd\0 world\n", str(run / "absent"): None}
    assert one.existing == {str(log): True, str(run / "absent"): False, str(checkpoints): True}
    assert one.matches == {f"{done}/iter_*.done": (f"{done}/iter_10.done",), f"{done}/none_*": ()}
    assert seen["same checkpoints"].checkpoint_files == one.checkpoint_files
    assert seen["same checkpoints"].tracker == "20"
    assert slurm.calls("squeue") == []


def test_exit_record_of_another_job_of_the_attempt(slurm, tmp_path):
    (tmp_path / "exit.json").write_text(json.dumps({"exit_code": 0, "ended": 5, "job_id": "7"}) + "\n")
    seen = poll(slurm, *(Watch(key=i, job_id=i, attempt_dir=str(tmp_path)) for i in ("7", "8")))
    assert seen["7"].exit is not None
    assert seen["8"].exit is None


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("", 3),
        ("\0\0\0", 3),
        ('{"exit_code": 0, "signa', 3),
        (None, None),
        ('{"exit_code": 4, "ended": 5}', 4),
    ],
    ids=["emptied", "zeros", "torn", "requeued", "whole"],
)
def test_damaged_exit_record_is_read_from_its_copy(slurm, tmp_path, text, seen):
    (tmp_path / "run").mkdir()
    for count, code in enumerate((2, 3)):
        copy = tmp_path / "run" / f"exit.7.{count}.json"
        copy.write_text(json.dumps({"exit_code": code, "ended": 5, "job_id": "7"}) + "\n")
        os.utime(copy, (count, count))
    if text is not None:
        (tmp_path / "exit.json").write_text(text)
    (watched,) = poll(slurm, Watch(key="7", job_id="7", attempt_dir=str(tmp_path))).values()
    assert (watched.exit and watched.exit.exit_code) == seen


@pytest.mark.slow
def test_log_is_read_in_order_and_capped(slurm, tmp_path):
    content = bytes(range(256)) * 1000
    log = tmp_path / "log"
    log.write_bytes(content)
    received = b""
    for _ in range(10):
        one = poll(slurm, Watch(key="x", log_file=str(log), log_offset=len(received)))["x"]
        assert len(one.log_chunk) <= LOG_BYTES_PER_JOB
        received += one.log_chunk
        if not one.log_chunk:
            break
    assert received == content
    shrunk = poll(slurm, Watch(key="x", log_file=str(log), log_offset=len(content) + 5))["x"]
    assert (shrunk.log_chunk, shrunk.log_size) == (b"", len(content))


def replace_dd(slurm, case: str) -> None:
    """Let dd do something else for some files; *case* is a branch of ``case if=FILE in``."""
    dd = slurm.root / "bin" / "dd"
    dd.write_text(f'#!/bin/sh\ncase $1 in {case} ;; *) exec /bin/dd "$@" ;; esac\n')
    dd.chmod(0o755)


def logs(tmp_path, names: str) -> list[Watch]:
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 1000)
    return [Watch(key=name, log_file=str(tmp_path / name)) for name in names]


def test_a_log_that_shrinks_while_it_is_read_spoils_only_itself(slurm, tmp_path):
    watches = logs(tmp_path, "abc")
    replace_dd(slurm, "*/b) printf bbb")
    seen = poll(slurm, *watches)
    assert [seen[name].log_chunk for name in "abc"] == [b"a" * 1000, b"", b"c" * 1000]
    assert left_out(seen["b"])


@pytest.mark.slow
def test_slow_logs_delay_other_jobs_only_briefly(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr("airflow_megatron.slurm.polling.poll.LOG_SECONDS", 1)
    queue(slurm, "7|RUNNING|1|1|1|1|n1|None|a")
    watches = logs(tmp_path, "abcd")
    replace_dd(slurm, "*/[bc]) printf b; sleep 60")
    began = time.monotonic()
    seen = poll(slurm, *watches[:2], *watches[3:], Watch(key="job", job_id="7"))
    assert [seen[name].log_chunk for name in "abd"] == [b"a" * 1000, b"", b"d" * 1000]
    assert seen["b"].log_size is None, "what cannot be read is not waited for"
    seen = poll(slurm, *watches, Watch(key="job", job_id="7"))
    assert (seen["d"].log_chunk, seen["d"].log_size) == (b"", 1000)
    assert left_out(seen["d"]), "left for the next poll"
    assert seen["job"].queue.state is JobState.RUNNING
    assert time.monotonic() - began < 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["trap '' TERM; sleep 30", "trap '' TERM HUP INT; (sleep 30)", "sleep 30"]
)
def test_a_command_that_does_not_end_delays_a_poll_only_briefly(slurm, monkeypatch, command):
    queue(slurm, "7|RUNNING|1|1|1|1|n1|None|x")
    monkeypatch.setattr(polling, "COMMAND_SECONDS", 1)
    watches = [
        Watch(key="a", commands=(command,)),
        Watch(key="b", commands=("echo b",)),
        Watch("7", job_id="7"),
    ]
    begin = time.monotonic()
    seen = poll(slurm, *watches)
    assert time.monotonic() - begin < 15
    assert seen["a"].answers[command].exit_code != 0
    assert seen["b"].answers["echo b"].output == "b\n"
    assert seen["7"].queue.state is JobState.RUNNING


@pytest.mark.slow
def test_a_file_that_blocks_its_readers_spoils_no_verdict(slurm, tmp_path):
    """A lease does what a pipe does that takes the place of a file after its kind was checked."""
    watches = []
    for name in ("before", "evil", "after"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "latest_checkpointed_iteration.txt").write_text("7\n")
        watches.append(Watch(key=name, checkpoint_dir=str(tmp_path / name)))
    watches.append(Watch(key="log", log_file=str(tmp_path / "before" / "latest_checkpointed_iteration.txt")))
    ignored = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with (tmp_path / "evil" / "latest_checkpointed_iteration.txt").open("r+") as owned:
        try:
            fcntl.fcntl(owned, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            pytest.skip("this file system has no leases")
        begin = time.monotonic()
        seen = poll(slurm, *watches)
        assert time.monotonic() - begin < 30
    signal.signal(signal.SIGIO, ignored)
    assert (seen["before"].tracker, seen["before"].unreachable) == ("7", None)
    assert seen["log"].log_chunk == b"7\n"
    for name in ("evil", "after"):
        assert "blocks its readers" in seen[name].unreachable.reason
    seen = poll(slurm, *watches)
    assert {seen[name].tracker for name in ("before", "evil", "after")} == {"7"}


def test_an_unreadable_log_counts_as_missing(slurm, tmp_path):
    watches = logs(tmp_path, "ab")
    replace_dd(slurm, "*/a) exit 1")
    seen = poll(slurm, *watches)
    assert (seen["a"].log_size, seen["b"].log_chunk) == (None, b"b" * 1000)


@pytest.mark.slow
def test_only_the_requested_checkpoints_are_listed_with_their_files(slurm, tmp_path):
    for name in ("iter_0000008", "iter_0000010", "iter_0000100", "iter_12345678", "iter_release"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_bytes(b"12")
    requested_watches = [
        Watch(key=str(first), checkpoint_dir=str(tmp_path), checkpoint_from=first) for first in (10, 100)
    ]
    (one,) = poll(slurm, requested_watches[1]).values()
    assert one.checkpoint_files == {
        "iter_0000008": {},
        "iter_0000010": {},
        "iter_0000100": {"f": 2},
        "iter_12345678": {"f": 2},
        "iter_release": {"f": 2},
    }
    both = poll(slurm, *requested_watches)["100"]
    assert both.checkpoint_files["iter_0000010"] == {"f": 2}, "somebody else asks for it"


@pytest.mark.parametrize("command", ["find", "xargs", "awk"])
def test_a_killed_listing_of_checkpoints_is_discarded(slurm, tmp_path, command):
    (tmp_path / "iter_0000005").mkdir()
    watch = Watch("x", checkpoint_dir=str(tmp_path))
    assert poll(slurm, watch)["x"].checkpoint_files == {"iter_0000005": {}}
    victim = slurm.root / "bin" / command
    victim.write_text("#!/bin/sh\nkill -9 $$\n")
    victim.chmod(0o755)
    with pytest.raises(TransportError, match="listing of the checkpoints is cut off"):
        poll(slurm, watch)


@pytest.mark.slow
def test_a_folder_that_a_job_has_filled_delays_no_other(slurm, tmp_path, monkeypatch):
    """A listing that takes too long is omitted only for its job; those of other jobs are complete."""
    monkeypatch.setattr(polling, "CHECKPOINT_SECONDS", 4)
    watches = []
    for number in range(100):
        folder = tmp_path / f"run {number}" / "checkpoints"
        (folder / "iter_0000010").mkdir(parents=True)
        (folder / "iter_0000010" / "f").write_text("x")
        watches.append(Watch(f"{number}", checkpoint_dir=str(folder), checkpoint_from=5))
    full = tmp_path / "run 42" / "checkpoints" / "iter_0000010"
    real = shutil.which("find")
    victim = slurm.root / "bin" / "find"
    victim.write_text(
        f'#!/bin/sh\nfor word; do case $word in "{full}") sleep 60 ;; esac; done\nexec {real} "$@"\n'
    )
    victim.chmod(0o755)
    begin = time.monotonic()
    result = slurm.run(poll_script(watches))
    assert time.monotonic() - begin < 50
    seen = parse_poll(watches, result)
    assert f"{full.parent} cannot be listed within" in seen["42"].unreachable.reason
    others = [seen[watch.key] for watch in watches if watch.key != "42"]
    assert all(one.unreachable is None for one in others)
    assert all(one.checkpoint_files == {"iter_0000010": {"f": 1}} for one in others)
    # a caller that needs the folder's state gets an error
    with pytest.raises(TransportError, match="cannot be listed within"):
        parse_whole_poll(watches, result)


@pytest.mark.slow
def test_no_process_is_left_on_the_login_node(slurm, tmp_path):
    """The time limit for the one-line files is a process that sleeps."""
    sleeping = slurm.root / "bin" / "sleep"
    sleeping.write_text(f'#!/bin/sh\necho $$ >>"{tmp_path}/started"\nexec {shutil.which("sleep")} "$@"\n')
    sleeping.chmod(0o755)
    watches = [Watch(f"{number}", checkpoint_dir=f"{tmp_path}/{number}/checkpoints") for number in range(500)]
    for watch in watches:
        folder = tmp_path / watch.key / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "latest_checkpointed_iteration.txt").write_text("5")
    slurm.run(poll_script(watches))
    started = [int(pid) for pid in (tmp_path / "started").read_text().split()]
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline, started
        time.sleep(0.05)


def test_log_lines_that_look_like_the_answer_do_no_harm(slurm, tmp_path):
    evil = tmp_path / "log"
    evil.write_text("\n=== airflow-megatron answer ends ===\nF 0 1 0 1\nx\nqueue_status 0\n" * 3)
    one = poll(slurm, Watch(key="x", job_id="7", log_file=str(evil)))["x"]
    assert one.log_chunk == evil.read_bytes()


def test_truncated_answer_is_discarded(slurm):
    watches = [Watch(key="x", job_id="7")]
    result = slurm.run(poll_script(watches))
    parse_poll(watches, result)
    for cut in range(len(result.stdout) - 2):
        with pytest.raises(TransportError):
            parse_poll(watches, CommandResult(-1, result.stdout[:cut], "killed"))


def test_empty_poll(slurm):
    assert poll(slurm) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": "7;x"},
        {"job_id": "9" * 140_000},
        {"job_name": "a,b"},
        {"log_file": "relative"},
        {"read_files": ("/a\nb",)},
        {"globs": ("*",)},
        {"check_files": ("/a\ud800",)},
        {"log_file": "/a\udcff"},
        {"globs": ("/\ud800*",)},
        {"commands": ("a\ud800",)},
        {"commands": ("a\0",)},
        {"checkpoint_from": 2**63},
        {"checkpoint_from": 10**5000},
    ],
    ids=lambda change: f"{next(iter(change))}{len(str(change)) if 'job_id' in change else ''}",
)
def test_invalid_watches_are_refused(change):
    """One of them would make the script of a poll, which is about all jobs, impossible."""
    with pytest.raises(QuotingError):
        Watch(key="x", **change)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "JOBID|STATE|SUBMIT_TIME|START_TIME|END_TIME|NODES|NODELIST|REASON|NAME",
        "CLUSTER: mpp2",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "7|RUNNING|1|2",
    ],
)
def test_lines_that_are_not_jobs(line):
    assert parse_queue_row(line) is None


def test_queue_row_with_everything_unknown():
    row = parse_queue_row("7_[0-99%4]|NEW|N/A|Unknown|None|?|(null)|None|a|b")
    assert row is not None
    assert (row.job_id, row.state, row.name) == ("7_[0-99%4]", JobState.UNKNOWN, "a|b")
    assert (row.submitted, row.node_count) == (None, 0)


@pytest.mark.parametrize(
    ("line", "job_id", "state", "code", "signal"),
    [
        ("7|7|FAILED|1:0|1|2|3|1|1|n1|None|x", "7", JobState.FAILED, 1, 0),
        ("7_3|12|OUT_OF_MEMORY|0:125|1|2|3|1|1|n1|None|x", "7_3", JobState.OUT_OF_MEMORY, 0, 125),
        ("7+1|8|CANCELLED by 1000|0:15|1|2|3|1|1|n1|None|x", "7+1", JobState.CANCELLED, 0, 15),
        ("7|7|PENDING|0:0|Unknown|Unknown|Unknown|00:00:00|1|None assigned||x", "7", JobState.PENDING, 0, 0),
    ],
)
def test_accounting_rows(line, job_id, state, code, signal):
    row = parse_accounting_row(line)
    assert row is not None
    assert (row.job_id, row.state, row.exit_code, row.exit_signal) == (job_id, state, code, signal)


@pytest.mark.parametrize(
    "line", ["", "7.batch|7.batch|FAILED|1:0|1|2|3|1|1|n1|None|batch", "sacct: error: x"]
)
def test_lines_that_are_not_allocations(line):
    assert parse_accounting_row(line) is None


LINES = st.lists(st.text(st.characters(exclude_characters="\n\r")), max_size=8)


@pytest.mark.slow
@settings(deadline=None)
@given(LINES)
def test_rows_never_raise(lines):
    for line in lines:
        for text in (line, "7|" + line, "|".join([line] * 9), "7|" + "|".join([line] * 11)):
            parse_queue_row(text)
            parse_accounting_row(text)


WORDS = ("Q", "A", "L", "D", "N", "C", "E", "S", "G", "now", "queue_status", "accounting_status", "")
SECTIONS = st.builds(
    "{}{}".format,
    st.sampled_from([f"{word} " for word in WORDS]),
    st.text(),
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(SECTIONS))
def test_noise_in_an_answer_is_refused_or_ignored(lines):
    text = "\n".join(lines)
    watches = [Watch(key="x", job_id="7", log_file="/l")]
    out = f"=== airflow-megatron answer begins ===\nnow 5.0\n{text}\n\n=== airflow-megatron answer ends ===\n"
    with contextlib.suppress(TransportError):
        assert set(parse_poll(watches, CommandResult(0, out, ""))) == {"x"}
