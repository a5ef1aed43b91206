"""One reader for each record on a cluster and in Airflow's database reads the formats of all versions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_megatron.slurm.remote.records import JobRecord, TaskOrigin
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import AttemptState, StageRecord
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.supervision.job_reference import JobHandle

FAILED = Verdict(Outcome.FAILED, "exit code 1", exit_code=1, failed_nodes=("n1",), job_id="7")
BY_7332A23 = {
    **FAILED.to_json(),
    "attempt": 2,
    "job": "s.p.train",
    "digest": "ab",
    "given_up": "it would fail again",
    "written_by": "a later version",
}


class TestVerdicts:
    def test_what_is_written_is_read(self) -> None:
        record = RecordedVerdict.of(FAILED, 2, job="j", digest="d", given_up="why", withdrawn=True)
        assert RecordedVerdict.from_json(record.to_json()) == record

    def test_of_an_earlier_version(self) -> None:
        record = RecordedVerdict.from_json(BY_7332A23)
        assert record is not None
        assert record == RecordedVerdict.of(
            FAILED, 2, job="s.p.train", digest="ab", given_up="it would fail again"
        )

    def test_marks_are_written_only_where_they_are_set(self) -> None:
        written = RecordedVerdict.of(FAILED, 1, job="j", digest="d").to_json()
        assert {"given_up", "intended", "withdrawn"}.isdisjoint(written)
        assert RecordedVerdict.of(FAILED, 1, intended=True).to_json()["intended"] is True

    @pytest.mark.parametrize(
        ("value", "outcome", "attempt"),
        [
            ({}, None, None),
            ({"outcome": "finished"}, Outcome.FINISHED, None),
            ({"outcome": "from the future", "reason": "x", "attempt": "3"}, None, 3),
            ({"outcome": 7, "reason": [], "attempt": [1], "digest": 5}, None, None),
        ],
    )
    def test_a_damaged_record_is_read_as_far_as_possible(
        self, value: dict[str, Any], outcome: Outcome | None, attempt: int | None
    ) -> None:
        record = RecordedVerdict.from_json(value)
        assert record is not None
        assert (record.outcome, record.attempt, record.verdict) == (outcome, attempt, None)

    def test_of_no_object(self) -> None:
        assert [RecordedVerdict.read(text) for text in (None, "", "[1]", '{"outcome"')] == [None] * 4


class TestJudged:
    """Whether the newest attempt is judged is worked out in one place."""

    @staticmethod
    def state(attempts: int, verdict: dict[str, Any] | None) -> StageRecord:
        found = (AttemptState(number, "1", "1", True, None) for number in range(1, attempts + 1))
        return StageRecord(tuple(found), RecordedVerdict.from_json(verdict))

    @pytest.mark.parametrize(
        ("attempts", "verdict", "judged"),
        [
            (1, None, False),
            (1, {}, False),
            (1, {"attempt": 1, "outcome": "failed"}, True),
            (2, {"attempt": 1, "outcome": "failed"}, False),
            (0, {"outcome": "finished"}, False),
            (0, {"attempt": 0, "outcome": "finished"}, True),  # its finish condition held before it ran
        ],
    )
    def test_the_newest(self, attempts: int, verdict: dict[str, Any] | None, judged: bool) -> None:
        state = self.state(attempts, verdict)
        assert (state.verdict_on_newest is not None) == judged
        assert (state.verdict is None) == (verdict is None)


class TestJobRecords:
    def test_what_is_written_is_read(self) -> None:
        record = JobRecord(
            "j", 2, "s.j.a2", "d", ("python", "x.py"), "/l", {"lr": 1.0}, ("--load", "/c"), first=1, nodes=3
        )
        assert JobRecord.from_json(record.to_json()) == record
        assert record.to_json()["origin"] == {}
        submitted = replace(record, origin=TaskOrigin("s", "manual__1", "manual__0", "job.submit", 2))
        value = submitted.to_json()
        assert JobRecord.from_json(json.loads(json.dumps(value))) == submitted
        assert value["origin"] == {
            "dag_id": "s",
            "run_id": "manual__1",
            "run": "manual__0",
            "task_id": "job.submit",
            "try_number": 2,
        }

    def test_of_an_array_of_an_earlier_version(self) -> None:
        value = {"job": "j", "attempt": 1, "job_name": "n", "digest": "d", "command": ["x"], "log_file": "/l"}
        record = JobRecord.from_json({**value, "params": {}, "origin": {"dag_id": "s"}, "unknown": 1})
        assert record == JobRecord("j", 1, "n", "d", ("x",), "/l", {}, origin=TaskOrigin(dag_id="s"))

    def test_of_a_damaged_one(self) -> None:
        record = JobRecord.from_json(
            {"attempt": "two", "command": "x", "params": 3, "first": None, "loads": "x"}
        )
        assert record == JobRecord("", 0, "", "", (), "", {})
        assert JobRecord.from_json(None) is None


class TestReferences:
    def test_of_another_version(self) -> None:
        known = {"job": "j", "attempt": 3, "job_id": "7", "finished": False}
        assert JobHandle.from_json(known) == JobHandle("j", 3, "7")
        assert JobHandle.from_json({**known, "paths": {"stage_dir": "/r"}}) == JobHandle("j", 3, "7")

    def test_what_is_written_is_read(self) -> None:
        handle = JobHandle("j", 3, "7_1", resumes_from=20, job_name="a", first=2, log_from=9)
        assert JobHandle.from_json(handle.to_json()) == handle

    def test_without_an_attempt(self) -> None:
        with pytest.raises(ValueError, match="has no number of an attempt"):
            JobHandle.from_json({"job": "j"})
