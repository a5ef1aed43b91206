"""Output of squeue and sacct for arrays, heterogeneous jobs, federations and requeues, by release of Slurm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processor_limits import processor_limit

from airflow_megatron.slurm.polling.poll import CONTROLLER_CALLS, parse_poll, poll_script
from airflow_megatron.slurm.states.controller_rows import parse_controller_row
from airflow_megatron.slurm.states.job_ids import job_ids
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Watch
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, judge

TRAIN = Expectation("train", train_iters=100, complete=lambda files: True)


def polled(slurm, job_ids: list[str], queue: str = "", accounting: str = "", status: int = 0):
    slurm.behave("squeue", f"cat <<'E'\n{queue}\nE")
    slurm.behave("sacct", f"cat <<'E'\n{accounting}\nE\nexit {status}")
    watches = [Watch(key=job_id, job_id=job_id) for job_id in job_ids]
    return parse_poll(watches, slurm.run(poll_script(watches)))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("7", ("7",)),
        ("7_3", ("7_3",)),
        ("7_[3]", ("7_3",)),
        ("7_[1-3,8-12:2%4]", ("7_1", "7_2", "7_3", "7_8", "7_10", "7_12")),
        ("7_[0,2,5-6]", ("7_0", "7_2", "7_5", "7_6")),
        ("7_[1,3,...]", ("7_1", "7_3")),
        ("7_[1,3,5-", ("7_1", "7_3")),
        ("7_[x]", ("7_[x]",)),
        ("7+0", ("7+0",)),
        ("7+1", ("7+1",)),
        ("7;alps", ("7",)),
    ],
)
def test_ids(text: str, ids: tuple[str, ...]) -> None:
    assert job_ids(text) == ids


@pytest.mark.slow
@given(st.text())
def test_any_text_gives_an_id(text: str) -> None:
    assert job_ids(text)


def test_huge_ranges_are_not_written_out() -> None:
    assert job_ids("7_[0-99999999999]") == ("7_[0-99999999999]",)


def test_array(slurm) -> None:
    seen = polled(
        slurm,
        ["7_1", "7_2", "7_5", "7_9"],
        "7_[5-9%2]|PENDING|1700000000|N/A|N/A|1||JobArrayTaskLimit|a\n"
        "7_2|RUNNING|1700000000|1700000100|1700003700|1|n1|None|a",
        "7_1|8|OUT_OF_MEMORY|0:125|1700000000|1700000100|1700000200|100|1|n1|None|a\n"
        "7_[5-9%2]|7|PENDING|0:0|1700000000|Unknown|Unknown|0|1|None assigned|JobArrayTaskLimit|a",
    )
    outcomes = {job_id: judge(one, TRAIN).outcome for job_id, one in seen.items()}
    assert outcomes == {
        "7_1": Outcome.OUT_OF_MEMORY,
        "7_2": Outcome.ACTIVE,
        "7_5": Outcome.ACTIVE,
        "7_9": Outcome.ACTIVE,
    }
    assert seen["7_9"].queue.job_id == "7_9"
    (call,) = slurm.calls("sacct")
    assert "7_2" not in call


def test_heterogeneous_job(slurm) -> None:
    rows = "7+{0}|{1}|1700000000|1700000100|1700003700|{2}|n{2}|None|a"
    seen = polled(slurm, ["7"], "\n".join((rows.format(0, "RUNNING", 1), rows.format(1, "RUNNING", 2))))
    assert judge(seen["7"], TRAIN).outcome is Outcome.ACTIVE
    ended = "7+{0}|{3}|{1}|0:0|1700000000|1700000100|1700000200|100|1|n{2}|None|a"
    seen = polled(
        slurm,
        ["7"],
        accounting="\n".join((ended.format(0, "TIMEOUT", 1, 7), ended.format(1, "TIMEOUT", 2, 8))),
    )
    verdict = judge(seen["7"], TRAIN)
    assert (verdict.outcome, verdict.job_id, verdict.node_list) == (Outcome.ROLLED_OVER, "7", "n1,n2")


@pytest.mark.parametrize(
    ("leader", "other", "state", "nodes"),
    [
        ("COMPLETED", "RUNNING", JobState.RUNNING, "n1,n2"),
        ("FAILED", "COMPLETED", JobState.FAILED, "n1,n2"),
        ("CANCELLED by 0", "NODE_FAIL", JobState.NODE_FAIL, "n2"),
        ("FAILED", "OUT_OF_MEMORY", JobState.OUT_OF_MEMORY, "n2"),
        ("NODE_FAIL", "CANCELLED by 0", JobState.NODE_FAIL, "n1"),
    ],
)
def test_components_of_a_heterogeneous_job_are_one_job(
    slurm, leader: str, other: str, state: JobState, nodes: str
) -> None:
    row = "7+{0}|{1}|{2}|{3}:0|1700000000|1700000100|1700000200|100|1|n{4}|None|a"
    text = "\n".join((row.format(0, 7, leader, 3, 1), row.format(1, 8, other, 0, 2)))
    whole = polled(slurm, ["7"], accounting=text)["7"].accounting
    assert (whole.job_id, whole.state, whole.exit_code, whole.node_list) == ("7", state, 3, nodes)


@pytest.mark.slow
def test_federation(slurm) -> None:
    record = "201326599|201326599|{0}|{1}:0|1700000000|1700000100|1700000200|100|1|n1|None|a"
    for rows in (("REVOKED", 0), ("FAILED", 1)), (("FAILED", 1), ("REVOKED", 0)):
        text = "\n".join(record.format(*row) for row in rows)
        assert polled(slurm, ["201326599"], accounting=text)["201326599"].accounting.state is JobState.FAILED
    header = "CLUSTER: alps\n201326599|RUNNING|1700000000|1700000100|1700003700|1|n1|None|a"
    assert judge(polled(slurm, ["201326599"], header)["201326599"], TRAIN).outcome is Outcome.ACTIVE


@pytest.mark.parametrize(
    "state", ["PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING", "COMPLETING"]
)
def test_requeued_job_under_the_same_id(slurm, state: str) -> None:
    seen = polled(
        slurm,
        ["7"],
        f"7|{state}|1700000000|N/A|N/A|1||BeginTime|a",
        "7|7|NODE_FAIL|0:0|1700000000|1700000100|1700000200|100|1|n1|None|a",
    )
    assert judge(seen["7"], TRAIN).outcome is Outcome.ACTIVE
    assert slurm.calls("sacct") == []


def test_purged_from_the_queue_and_not_yet_in_accounting(slurm) -> None:
    assert judge(polled(slurm, ["7"])["7"], TRAIN).outcome is Outcome.UNKNOWN
    lagging = "7|7|RUNNING|0:0|1700000000|1700000100|Unknown|100|1|n1|None|a"
    assert judge(polled(slurm, ["7"], accounting=lagging)["7"], TRAIN).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("text", "state", "code", "signal"),
    [
        ("FAILED|1:0", JobState.FAILED, 1, 0),
        ("FAILED|0:9", JobState.FAILED, 0, 9),
        ("CANCELLED by 1000|0:15", JobState.CANCELLED, 0, 15),
        ("CANCELLED|0:0", JobState.CANCELLED, 0, 0),
        ("OUT_OF_MEMORY|0:125", JobState.OUT_OF_MEMORY, 0, 125),
        ("TIMEOUT|0:0", JobState.TIMEOUT, 0, 0),
        ("PREEMPTED|0:0", JobState.PREEMPTED, 0, 0),
        ("DEADLINE|0:0", JobState.DEADLINE, 0, 0),
        ("BOOT_FAIL|0:0", JobState.BOOT_FAIL, 0, 0),
        ("NODE_FAIL|1:0", JobState.NODE_FAIL, 1, 0),
        ("OUT_OF_ME+|0:125", JobState.OUT_OF_MEMORY, 0, 125),
        ("CANCELLED+|0:0", JobState.CANCELLED, 0, 0),
    ],
)
@pytest.mark.parametrize(
    "times", ["1700000000|1700000100|1700000200", "1700000000|Unknown|Unknown", "None|None|None"]
)
def test_accounting_of_every_end(
    slurm, text: str, state: JobState, code: int, signal: int, times: str
) -> None:
    row = polled(slurm, ["7"], accounting=f"7|7|{text}|{times}|0|1|None assigned|None|a")["7"].accounting
    assert (row.state, row.exit_code, row.exit_signal, row.node_list) == (state, code, signal, "")


@pytest.mark.parametrize(
    ("output", "status", "enabled"),
    [
        ("Slurm accounting storage is disabled", 1, False),  # 20.02 to 23.02
        ("Slurm accounting storage is disabled", 0, False),
        ("sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection", 1, True),
        ("sacct: error: Problem talking to the database: Connection refused", 1, True),
        ("sh: 12: sacct: not found", 127, False),
    ],
)
def test_sacct_that_does_not_answer(slurm, output: str, status: int, enabled: bool) -> None:
    seen = polled(slurm, ["7"], accounting=output, status=status)["7"]
    assert not seen.accounting_ok
    assert seen.accounting_enabled is enabled
    assert judge(seen, TRAIN).outcome is Outcome.UNKNOWN


def test_without_sacct_the_exit_record_decides(slurm, tmp_path) -> None:
    slurm.behave("squeue", "true")
    record = '{"exit_code": 1, "started": 1, "ended": 9, "job_id": "7"}'
    (tmp_path / "exit.json").write_text(record)
    slurm.behave("sacct", "exit 127")
    watches = [Watch(key="x", job_id="7", attempt_dir=str(tmp_path))]
    seen = parse_poll(watches, slurm.run(poll_script(watches)))["x"]
    assert not seen.accounting_enabled
    verdict = judge(seen, TRAIN)
    assert verdict.outcome is Outcome.FAILED
    assert "[exit.json]" in verdict.reason


def test_the_controller_is_not_queried_for_thousands_of_jobs(slurm) -> None:
    """Each job is a separate request, and sites limit requests; the remaining jobs follow at the next poll."""
    slurm.behave("scontrol", 'cat >"$FAKE_SLURM/asked"')
    ids = [str(number) for number in range(1, 301)]
    queue = "\n".join(f"{number}|FAILED|1|1|1|1|n1|None|a" for number in ids)
    polled(slurm, ids, queue, status=127)
    queried = (slurm.root / "asked").read_text().splitlines()
    assert queried == [f"show job {number}" for number in ids[:CONTROLLER_CALLS]]
    assert len(slurm.calls("scontrol")) == 1


@pytest.mark.parametrize(
    "unit",
    [
        " UserId=x",
        " HetJobIdSet=x UserId=x",
        " UserId=x JobState=A Reason= Dependency= ",
        " StartTime=1",
        " NodeList=",
    ],
)
def test_no_row_holds_the_loop(unit: str) -> None:
    """Slurm quotes nothing, and a job chooses its name and its comment."""
    fields = "UserId=a JobState=FAILED Reason=None Dependency= Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=1:0 "
    for head in ("JobId=7 JobName=", f"JobId=7 JobName=x {fields}"):
        with processor_limit(0.02):  # a seventh of what the pattern takes without its bounds
            parse_controller_row(head + unit * (64_000 // len(unit)))
