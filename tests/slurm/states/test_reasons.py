from __future__ import annotations

import pytest

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import QueueRow
from airflow_megatron.slurm.states.reasons import help_needed, needs_a_person


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("AssocMaxWallDurationPerJobLimit", "more time than its account may"),
        ("QOSMaxCpuPerJobLimit", "more processors than its QOS gives"),
        ("QOSMaxGRESPerNode", "more GPUs than its QOS gives on a node"),
        ("AssocMaxCpuMinutesPerJobLimit", "more minutes of processors than its account may"),
        ("QOSMaxMemoryPerJob", "more memory than its QOS gives"),
        ("AssocMaxBillingPerJob", "more billing than its account may"),
        ("QOSMinGRES", "fewer GPUs than its QOS requires"),
        ("QOSMinCpuNotSatisfied", "fewer processors than its QOS requires"),
        ("PartitionConfig", "more than the partition allows"),
        ("(launch failed requeued held)", "scontrol release"),
        ("job_requeued_in_held_state", "scontrol release"),
        ("DependencyNeverSatisfied", "cancel it"),
    ],
)
def test_reasons_that_need_a_person(reason: str, hint: str) -> None:
    assert hint in (needs_a_person(reason) or "")


@pytest.mark.parametrize(
    "reason",
    [
        *(
            "",
            "None",
            "Resources",
            "Priority",
            "BeginTime",
            "Dependency",
            "JobArrayTaskLimit",
            "Prolog",
            "Cleaning",
        ),
        *(
            "QOSMaxJobsPerUserLimit",
            "QOSMaxSubmitJobPerUserLimit",
            "AssocMaxJobsLimit",
            "AssocMaxSubmitJobLimit",
        ),
        *(
            "AssocGrpGRES",
            "AssocGrpCPUMinutesLimit",
            "QOSGrpCpuLimit",
            "QOSGrpGRESRunMinutes",
            "MaxGRESPerAccount",
        ),
        *(
            "QOSMaxCpuPerUserLimit",
            "QOSMaxGRESPerUser",
            "Licenses",
            "Reservation",
            "PartitionDown",
            "NodeDown",
        ),
        "ReqNodeNotAvail, UnavailableNodes:n[1-4]",
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
    ],
)
def test_reasons_that_may_pass(reason: str) -> None:
    assert needs_a_person(reason) is None


@pytest.mark.parametrize(
    ("job_id", "state", "reason", "needed"),
    [
        ("7", JobState.PENDING, "Resources", ""),
        ("7", JobState.PENDING, "JobHeldUser", "it does not start by itself: release it: scontrol release"),
        ("7", JobState.SPECIAL_EXIT, "None", "it waits for 'scontrol release'"),
        pytest.param("7_1", JobState.RUNNING, "JobHeldAdmin", "", id="its array was held while it ran"),
        pytest.param("7_1", JobState.COMPLETING, "JobHeldAdmin", "", id="its array was held before its end"),
        pytest.param(
            "7_2",
            JobState.PENDING,
            "JobArrayTaskLimit,None,JobHeldAdmin",
            "a task of its array does not start by itself: an administrator holds it",
            id="squeue prints the pending tasks of an array in one row, with all their reasons",
        ),
        pytest.param(
            "7_2",
            JobState.PENDING,
            "JobHeldUser,JobArrayTaskLimit",
            "a task of its array does not start by itself: release it: scontrol release",
            id="another order",
        ),
        ("7_2", JobState.PENDING, "JobArrayTaskLimit,Resources", ""),
        ("7_2", JobState.PENDING, "ReqNodeNotAvail, UnavailableNodes:n[1,3]", ""),
    ],
)
def test_help_needed(job_id: str, state: JobState, reason: str, needed: str) -> None:
    assert help_needed(QueueRow(job_id, "x", state, reason)) == needed
