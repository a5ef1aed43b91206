"""Completeness of the last checkpoint of a training job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted_poller import ScriptedPoller

from airflow_megatron.slurm.remote.records import ExitRecord
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, QueueRow
from airflow_megatron.slurm.verdicts.verdict import Outcome, judge
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

LEGACY = {"mp_rank_00/model_optim_rng.pt": 9}
TORCH_DCP = {"__0_0.distcp": 9, ".metadata": 9}
TORCH_DIST = {"__0_0.distcp": 9, ".metadata": 9, "common.pt": 9, "metadata.json": 9}


def trigger(*, final_evaluation: bool = False) -> SlurmJobTrigger:
    return SlurmJobTrigger(
        ssh_conn_id="ssh",
        commands={},
        job_id="7",
        job_name="s.p.pretrain.a1",
        attempt_dir="/r/.jobs/pretrain/1",
        log_file="/r/logs/pretrain-1.out",
        kind="train",
        train_iters=20,
        final_evaluation=final_evaluation,
        checkpoint_dir="/r/checkpoints",
        carry={"handle": {}},
    )


def ended(files: dict[str, int], tracker: str, log_size: int | None = None) -> Observation:
    return Observation(
        time=1000.0,
        queue=QueueRow("7", "s.p.pretrain.a1", JobState.COMPLETED, ended=100.0),
        queue_ok=True,
        accounting_ok=True,
        accounting_enabled=False,
        exit=ExitRecord.from_json({"exit_code": 0, "started": 50, "ended": 100, "job_id": "7"}),
        tracker=tracker,
        checkpoint_files={f"iter_{int(tracker):07d}": files},
        log_size=log_size,
    )


def outcome(files: dict[str, int], tracker: str) -> Outcome:
    return judge(ended(files, tracker), trigger()._expectation()).outcome


@pytest.mark.parametrize("files", [LEGACY, TORCH_DCP, TORCH_DIST], ids=["torch", "torch_dcp", "torch_dist"])
def test_the_tracker_vouches_for_formats_without_a_last_file(files: dict[str, int]) -> None:
    assert outcome(files, "20") is Outcome.FINISHED
    assert outcome(files, "10") is Outcome.ROLLED_OVER


def test_what_is_missing_is_missed_all_the_same() -> None:
    assert outcome({"mp_rank_01/model_optim_rng.pt": 9}, "20") is Outcome.ROLLED_OVER
    assert outcome({"__0_0.distcp": 9}, "20") is Outcome.ROLLED_OVER


DONE = b"[after training is done] datetime: 2026-11-22 10:00:00 \n"
TEST_LOSS = (
    b" validation loss at iteration 20 on test set | lm loss value: 5.1E+00 | lm loss PPL: 1.6E+02 | \n"
)


@pytest.mark.parametrize(
    ("log", "evaluates", "warns"),
    [(DONE, True, True), (DONE, False, False), (DONE + TEST_LOSS, True, False), (b"", True, False)],
)
async def test_a_training_without_its_last_evaluation_is_finished_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, log: bytes, evaluates: bool, warns: bool
) -> None:
    monkeypatch.setattr("airflow_megatron.supervision.attempt_follower.SETTLE_S", 0.0)
    look = ended(TORCH_DIST, "20", len(log))
    monkeypatch.setattr(ClusterTrigger, "poller", ScriptedPoller([look, look, look], log))
    event = await anext(aiter(trigger(final_evaluation=evaluates).wait()))
    assert event.payload["verdict"]["outcome"] == "finished"
    assert bool(event.payload["verdict"]["warning"]) == warns


async def test_the_last_lines_of_a_log_may_show_late(monkeypatch: pytest.MonkeyPatch) -> None:
    log = DONE + TEST_LOSS
    early = ended(TORCH_DIST, "20", len(DONE))
    late = replace(early, log_size=len(log))
    monkeypatch.setattr(ClusterTrigger, "poller", ScriptedPoller([early, early, late, late], log))
    event = await anext(aiter(trigger(final_evaluation=True).wait()))
    assert event.payload["verdict"]["warning"] is None
