"""sbatch's errors in Slurm 22.05 and 23.11 lead to hints with the key to change."""

from __future__ import annotations

import pytest

from airflow_megatron.slurm.submission.refusals import described_refusal, refusal_hint

FAILED = "sbatch: error: Batch job submission failed: "
POLICY = f"{FAILED}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"{FAILED}Invalid account or account/partition combination specified", "slurm.account"),
        (
            f"sbatch: error: invalid partition specified: gpuu\n{FAILED}Invalid partition name specified",
            "partition",
        ),
        (f"{FAILED}Invalid qos specification", "slurm.qos"),
        (f"sbatch: error: QOSMaxNodePerUserLimit\n{POLICY}", "nodes"),
        (f"sbatch: error: AssocMaxWallDurationPerJobLimit\n{POLICY}", "time"),
        (f"sbatch: error: QOSMaxGRESPerUser\n{POLICY}", "gpus_per_node"),
        (f"sbatch: error: QOSMinGRES\n{POLICY}", "request more"),
        (f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)", "slurm.time"),
        (f"{FAILED}Requested node configuration is not available", "gpus_per_node"),
        (f"{FAILED}Node count specification invalid", "nodes"),
        (f"{FAILED}Invalid generic resource (gres) specification", "gpu_option"),
        (f"{FAILED}Invalid feature specification", "slurm.constraint"),
        (f"{FAILED}Requested reservation is invalid", "slurm.reservation"),
        (f"{FAILED}Invalid node name specified", "slurm.exclude"),
        ("sbatch: unrecognized option '--bogus'", "slurm.options"),
    ],
)
def test_the_hint_names_the_key(text: str, key: str) -> None:
    assert key in refusal_hint(text)


def test_an_unknown_reason_has_none() -> None:
    assert refusal_hint("sbatch: error: lua: not on a Friday") == ""


WITHOUT_SBATCH = "sbatch (exit status 127): /bin/sh: 35: exec: /opt/slurm/bin/sbatch: not found"
UNWRITABLE = "cannot write to /runs/s/p/.jobs/work/1 on login1: mkdir: Read-only file system; free space"


@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        (f"sbatch (exit status 1): {FAILED}Invalid qos", "Slurm refuses the job: ", "; check slurm.qos; "),
        (
            WITHOUT_SBATCH,
            "sbatch cannot be run on the login node: ",
            "; correct slurm_bin of the cluster profile",
        ),
        (UNWRITABLE, "the job was not submitted: ", ""),
    ],
)
def test_description(text: str, before: str, after: str) -> None:
    """A refusal that is not Slurm's does not blame Slurm."""
    assert described_refusal(text).startswith(before + text + after)
