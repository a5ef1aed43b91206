"""Launch commands of published studies as specs: lint accepts all of them and predicts which run out of memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from shipped import launch_specs

from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path

#: Commands that ran out of memory for their authors, or were within a few GB of it.
OUT_OF_MEMORY = {
    "notes_gpt2_scaling": {"301_cp1_gpt2xl_gbs4_len4096_oom"},
    "notes_context_lengths": {"314_gpt2xl_gbs8_len8192_cp4_oom"},
    "tutorials_gpt2": {
        "121_gpt2xl_dp1_gbs16_oom",
        "129_gpt2xl_dp8_gbs168_zero2",
        "228_weak_scale_tp8_gpt2_8_3B_gbs20",
        "281_gpt_22B_tp8_gbs4_len2048_oom",
        "301_cp1_gpt2_1_2B_gbs8_len4096_oom",
    },
    "tutorials_experts": {"505_olmoe_4xE_dp8_zero2"},
    # written for B200
    "notes_llama3_8b": {"01_train_llama3_8b_b200_fp8", "02_train_llama3_8b_b200_mxfp8"},
}


def plan_of(path: Path) -> Plan:
    return check_sweep(load_sweep(path))


@pytest.mark.slow
def test_all_of_them_are_there() -> None:
    points = {path.stem: len(plan_of(path).points) for path in launch_specs()}
    assert sum(n for name, n in points.items() if name.startswith("notes")) == 40
    assert sum(n for name, n in points.items() if name.startswith("tutorials")) == 64


@pytest.mark.parametrize("path", launch_specs(), ids=lambda path: path.stem)
def test_lint_accepts_them(path: Path) -> None:
    plan = plan_of(path)
    assert plan.estimates is not None
    assert plan.estimates.missing == {}
    full = {job.point for job in plan.jobs if plan.estimates.jobs[job.name].runs_out_of_memory}
    assert full == OUT_OF_MEMORY.get(path.stem, set())
    # the schedules of some end early or late, because their authors stopped after a few iterations
    others = [str(warning) for warning in plan.warnings if "run out of memory" not in str(warning)]
    early = [text for text in others if "inside the warm-up of 3906252 samples" in text]
    assert bool(early) == (path.stem == "notes_llama3_8b")
    assert [
        text for text in others if text not in early and not re.search(r"lr_decay_\w+: \d+\)$", text)
    ] == []
