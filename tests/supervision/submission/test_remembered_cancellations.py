"""Cancellations that wait for the login node: their records, and who may delete them."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.supervision.submission import remembered_cancellations
from airflow_megatron.supervision.submission.remembered_cancellations import (
    Cancellation,
    carry_out,
    claim_of,
    drop_cancellation,
    remember,
    remembered,
)

if TYPE_CHECKING:
    from pathlib import Path

STAGE = "/r/.jobs/pretrain"
DUE = Cancellation("site", {"slurm_bin": ""}, "7", "x.p.pretrain.a1", f"{STAGE}/1", behind=("/r/.jobs/c",))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    return tmp_path / "local" / "cancellations"


def test_it_is_written_down_for_this_user_alone(folder: Path) -> None:
    assert remember(DUE)
    assert remembered() == [DUE]
    (record,) = folder.iterdir()
    assert (record.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_job_that_is_taken_over_again_is_not_cancelled() -> None:
    remember(DUE)
    drop_cancellation("site", f"{STAGE}/", "x.point p")
    assert remembered() == []
    claim = claim_of("site", STAGE)
    assert (claim.taken, claim.taken_by) == (1, "x.point p")
    assert not remember(DUE, taken=0), "a trigger from before"
    assert remember(DUE, taken=1), "the trigger that follows it now"


def test_nothing_is_written_for_a_stage_without_a_cancellation(folder: Path) -> None:
    drop_cancellation("site", STAGE, "x.point p")
    assert not folder.exists()


def test_an_unreachable_stage_is_taken_over_before_its_old_trigger_ends() -> None:
    drop_cancellation("site", STAGE, "x.point p", unseen=True)
    assert not remember(DUE, taken=0)
    assert remembered() == []


@pytest.mark.parametrize("other", [("elsewhere", STAGE), ("site", "/r/.jobs/convert")])
def test_other_stages_are_not_concerned(other: tuple[str, str]) -> None:
    remember(DUE)
    drop_cancellation(*other, "x.point p")
    assert remembered() == [DUE]


@pytest.mark.parametrize(
    "text", ["", "{", '{"cancellation": {"job_id": 7}}', '{"cancellation": 5, "taken": "x", "taken_by": []}']
)
def test_a_damaged_record_counts_as_absent(folder: Path, text: str) -> None:
    remember(DUE)
    (record,) = folder.iterdir()
    record.write_text(text)
    assert remembered() == []
    assert remember(DUE)
    assert remembered() == [DUE]


@pytest.mark.parametrize(
    "wrong", [{"attempt_dir": "/r/x"}, {"behind": [5]}, {"commands": None}, {"job_id": ""}]
)
def test_a_record_with_wrong_values_counts_as_absent(folder: Path, wrong: dict[str, object]) -> None:
    remember(DUE)
    (record,) = folder.iterdir()
    data = json.loads(record.read_text())
    record.write_text(json.dumps({**data, "cancellation": {**data["cancellation"], **wrong}}))
    assert remembered() == []


def test_a_job_without_a_known_id_is_remembered() -> None:
    submitting = replace(DUE, job_id=None)
    remember(submitting)
    assert remembered() == [submitting]


def test_old_records_are_deleted(folder: Path) -> None:
    remember(DUE)
    (record,) = folder.iterdir()
    os.utime(record, (0, 0))
    assert remembered() == []
    assert [*folder.iterdir()] == []


class Away:
    """A login node that does not answer."""

    async def run(self, script: str, *, timeout: float) -> CommandResult:
        raise TransportError("away")

    async def close(self) -> None:
        return None


async def test_it_stays_until_the_login_node_answers() -> None:
    remember(DUE)
    with pytest.raises(TransportError):
        await carry_out(DUE, Away(), step_s=1)
    assert remembered() == [DUE]


async def test_a_dropped_cancellation_sends_no_command() -> None:
    remember(DUE)
    drop_cancellation("site", STAGE, "x.point p")
    assert not await carry_out(DUE, Away(), step_s=1)


@pytest.mark.slow
async def test_a_new_owner_waits_until_the_job_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    remember(DUE)
    begun = threading.Event()

    async def cancel(*given: object, step_s: float) -> bool:
        begun.set()
        await asyncio.sleep(0.3)
        assert claim_of("site", STAGE).taken == 0
        return True

    monkeypatch.setattr(remembered_cancellations, "cancel_attempt", cancel)

    def take_up() -> None:
        assert begun.wait(60)
        drop_cancellation("site", STAGE, "x.point p", unseen=True)

    cancelled, again, _ = await asyncio.gather(
        carry_out(DUE, Away(), step_s=1), carry_out(DUE, Away(), step_s=1), asyncio.to_thread(take_up)
    )
    assert (cancelled, again) == (True, False), "once"
    assert claim_of("site", STAGE).taken == 1
