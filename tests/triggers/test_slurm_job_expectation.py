"""When a training job's last checkpoint counts as complete."""

from __future__ import annotations

import pytest

from airflow_megatron.slurm.observation import Observation, QueueRow
from airflow_megatron.slurm.states import JobState
from airflow_megatron.slurm.verdict import Outcome, judge
from airflow_megatron.triggers.slurm_job import SlurmJobTrigger

LEGACY = {"mp_rank_00/model_optim_rng.pt": 9}
TORCH_DCP = {"__0_0.distcp": 9, ".metadata": 9}
TORCH_DIST = {"__0_0.distcp": 9, ".metadata": 9, "common.pt": 9, "metadata.json": 9}


def outcome(files: dict[str, int], tracker: str) -> Outcome:
    trigger = SlurmJobTrigger(
        ssh_conn_id="ssh",
        commands={},
        job_id="7",
        job_name="s.p.pretrain.a1",
        attempt_dir="/r/.jobs/pretrain/1",
        log_file="/r/logs/pretrain-1.out",
        kind="train",
        train_iters=20,
        checkpoint_dir="/r/checkpoints",
    )
    row = QueueRow("7", "s.p.pretrain.a1", JobState.COMPLETED, ended=100.0)
    observation = Observation(
        time=1000.0,
        queue=row,
        queue_ok=True,
        accounting_ok=True,
        accounting_enabled=False,
        exit={"exit_code": 0, "started": 50, "ended": 100, "job_id": "7"},
        tracker=tracker,
        checkpoint_files={f"iter_{int(tracker):07d}": files},
    )
    return judge(observation, trigger._expectation()).outcome


@pytest.mark.parametrize("files", [LEGACY, TORCH_DCP, TORCH_DIST], ids=["torch", "torch_dcp", "torch_dist"])
def test_the_tracker_vouches_for_formats_without_a_last_file(files: dict[str, int]) -> None:
    assert outcome(files, "20") is Outcome.FINISHED
    assert outcome(files, "10") is Outcome.ROLLED_OVER


def test_what_is_missing_is_missed_all_the_same() -> None:
    assert outcome({"mp_rank_01/model_optim_rng.pt": 9}, "20") is Outcome.ROLLED_OVER
    assert outcome({"__0_0.distcp": 9}, "20") is Outcome.ROLLED_OVER
