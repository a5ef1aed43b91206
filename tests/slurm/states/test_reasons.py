from __future__ import annotations

import pytest

from airflow_megatron.slurm.states.reasons import needs_a_person


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
