from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_megatron.slurm.remote.records import JobRecord
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import (
    RemoteWriteError,
    parse_stage_states,
    parse_written,
    stage_state_script,
    write_record_script,
    write_verdict_script,
)
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict

FAILED = RecordedVerdict.of(Verdict(Outcome.FAILED, "é it's\nso"), 2)


def states(slurm, *directories):
    return parse_stage_states(directories, slurm.run(stage_state_script(directories)))


def test_stage_that_never_ran(slurm, tmp_path):
    path = str(tmp_path / "absent")
    state = states(slurm, path)[path]
    assert (state.latest_attempt, state.latest, state.job_id, state.verdict) == (0, None, None, None)


def test_damaged_exit_record_is_read_from_its_copy(slurm, tmp_path):
    (tmp_path / "1" / "run").mkdir(parents=True)
    (tmp_path / "1" / "exit.json").write_text("")
    (tmp_path / "1" / "run" / "exit.7.0.json").write_text('{"exit_code": 3, "ended": 5, "job_id": "7"}\n')
    (attempt,) = states(slurm, str(tmp_path))[str(tmp_path)].attempts
    assert attempt.exit is not None
    assert attempt.exit.exit_code == 3


@pytest.mark.slow
def test_records_of_submission_and_job(slurm, request_for):
    slurm.submit(request_for(1))
    slurm.submit(request_for(10))
    slurm.behave("sbatch", "kill -9 $$")
    slurm.submit(request_for(11))
    stage_dir = request_for().attempt.stage_dir
    slurm.behave("sbatch", "echo AssocMaxSubmitJobLimit >&2; exit 1")
    slurm.submit(request_for(12))
    slurm.run(write_verdict_script(stage_dir, FAILED))
    record = {
        "exit_code": 1,
        "signal": "TERM",
        "started": 1,
        "ended": 9,
        "job_id": "1001",
        "restart_count": 2,
    }
    (Path(stage_dir) / "1" / "exit.json").write_text(json.dumps(record))
    (Path(stage_dir) / "10" / "exit.json").write_text('{"exit_code": ')
    other = str(Path(stage_dir).parent / "other")
    found = states(slurm, other, stage_dir)
    assert found[other].attempts == ()
    state = found[stage_dir]
    assert [(one.number, one.job_id, one.claimed) for one in state.attempts] == [
        (1, "1001", True),
        (10, "1002", True),
        (11, None, True),
        (12, None, False),
    ]
    assert state.latest_attempt == 12
    assert state.verdict == FAILED
    first = state.attempts[0].exit
    assert first is not None
    assert (first.exit_code, first.signal, first.ended, first.restart_count) == (1, "TERM", 9, 2)
    assert state.attempts[1].exit is None


@pytest.mark.slow
def test_verdicts_of_attempts_and_the_newest_record(slurm, request_for):
    for number in (1, 2, 10):
        slurm.submit(request_for(number, job_json={"attempt": number}))
    stage_dir = Path(request_for().attempt.stage_dir)
    slurm.run(write_record_script(str(stage_dir / "2" / "verdict.json"), FAILED.to_json()))
    (stage_dir / "10" / "verdict.json").write_text('{"outcome"')
    state = states(slurm, str(stage_dir))[str(stage_dir)]
    assert [attempt.verdict for attempt in state.attempts] == [None, FAILED, None]
    assert [attempt.judged for attempt in state.attempts] == [None, FAILED.verdict, None]
    assert state.submission == JobRecord.from_json({"attempt": 10})
    assert (state.verdict, state.tracker) == (None, None)
    checkpoints = stage_dir.parents[1] / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "latest_checkpointed_iteration.txt").write_text("120")
    assert states(slurm, str(stage_dir))[str(stage_dir)].tracker == "120"
    (stage_dir / "10" / "job.json").unlink()
    assert states(slurm, str(stage_dir))[str(stage_dir)].submission == JobRecord.from_json({"attempt": 2})


@pytest.mark.parametrize("linked", [False, True])
def test_a_folder_in_the_place_of_a_record_gets_no_file(slurm, tmp_path, linked):
    outside, record = tmp_path / "outside", tmp_path / "stage" / "verdict.json"
    outside.mkdir()
    record.parent.mkdir()
    if linked:
        record.symlink_to(outside)
    else:
        record.mkdir()
    answer = slurm.run(write_record_script(str(record), {"a": 1}))
    if linked:
        parse_written(answer)
        assert json.loads(record.read_text()) == {"a": 1}
        assert not record.is_symlink()
    else:
        with pytest.raises(RemoteWriteError, match="cannot overwrite directory"):
            parse_written(answer)
        assert list(record.iterdir()) == []
    assert list(outside.iterdir()) == []
    assert [path.name for path in record.parent.iterdir()] == ["verdict.json"]


def test_writing_is_atomic_and_reports_failure(slurm, tmp_path):
    path = tmp_path / "it's" / "verdict.json"
    parse_written(slurm.run(write_record_script(str(path), {"a": 1})))
    parse_written(slurm.run(write_record_script(str(path), {"a": 2})))
    assert json.loads(path.read_text()) == {"a": 2}
    assert [entry.name for entry in path.parent.iterdir()] == ["verdict.json"]
    (tmp_path / "file").write_text("")
    with pytest.raises(RemoteWriteError, match="cannot create directory"):
        parse_written(slurm.run(write_record_script(str(tmp_path / "file" / "x.json"), {})))
    with pytest.raises(TransportError):
        parse_written(CommandResult(-1, "", "killed"))


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\n\r"))))
def test_noise_is_refused_or_ignored(lines):
    out = "\n".join(
        [
            "=== airflow-megatron answer begins ===",
            "stage 0",
            *lines,
            "",
            "=== airflow-megatron answer ends ===",
        ]
    )
    try:
        found = parse_stage_states(["/a"], CommandResult(0, out, ""))
    except TransportError:
        return
    assert set(found) == {"/a"}
