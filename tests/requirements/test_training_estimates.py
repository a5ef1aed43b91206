"""Estimates of the requirements of a plan's trainings, and their warnings."""

from __future__ import annotations

from typing import Any

import pytest
from checked_chain import alps, changed, checked

from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.schema import TrainerSection
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.expected_outcomes import as_expected

SPEC = """\
name: large
point: "b{{ micro_batch_size }}"
trainer: megatron_lm
slurm: {nodes: 1, gpus_per_node: 1, time: 1h}
megatron:
  {num_layers: 36, hidden_size: 1280, num_attention_heads: 20, seq_length: 1024, max_position_embeddings: 1024,
   fp16: true, mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 50257, lr: 1e-4}
benchmark: {iterations: 100, expect: "{{ fate }}"}
sweep: {configs: [{micro_batch_size: 32, fate: ""}]}
"""


def planned(text: str = SPEC, **profile: Any) -> Plan:
    cluster = alps().model_copy(
        update={"trainers": {"megatron_lm": TrainerSection(checkout="/opt/megatron")}, **profile}
    )
    return check_sweep(load_sweep_text(text, "s.yaml"), cluster)


def test_what_a_job_will_need() -> None:
    plan = planned(gpu="h200", mfu=0.4)
    (row,) = plan.to_json()["jobs"]
    found = row["estimate"]
    assert found["parameters"] // 10**6 == 774
    # a published run of this size: 80,161 MiB on an H200
    assert found["memory_gb"] == pytest.approx(80161 * 1048576 / 1e9, rel=0.07)
    step = found["operations_per_iteration"] / (0.4 * 989.4e12)
    assert found["gpu_hours"] == pytest.approx(100 * step / 3600)
    assert found["mfu"] is None
    assert plan.warnings == ()


def test_utilisation_at_a_step_time_that_is_known() -> None:
    """The study's own figure: 438.3 ms an iteration on an H200."""
    known = SPEC.replace("iterations: 100,", "iterations: 100, reported: {step_ms: 438.3},")
    (row,) = planned(known, gpu="h200").to_json()["jobs"]
    found = row["estimate"]
    assert found["mfu"] == pytest.approx(found["operations_per_iteration"] / (0.4383 * 989.4e12))
    assert 0.3 < found["mfu"] < 0.4


def test_nothing_without_a_gpu() -> None:
    assert planned().estimates.jobs == {}
    with pytest.raises(SpecError, match=r"no GPU 'h20' \(did you mean 'h200'"):
        planned(gpu="h20")


def test_why_there_is_no_estimate() -> None:
    unknown = SPEC.replace(
        "NullTokenizer, vocab_size: 50257", "HuggingFaceTokenizer, tokenizer_model: org/model"
    )
    plan = planned(unknown, gpu="h200")
    (row,) = plan.to_json()["jobs"]
    assert row["no_estimate"] == "how many tokens org/model has is not known here; give vocab_size"
    assert "estimate" not in row
    assert "does not name its GPUs" in planned().to_json()["no_estimates"]


def test_the_memory_of_each_pipeline_stage() -> None:
    """The stage with the logits needs more; both values are reported, not only the highest."""
    two = SPEC.replace("gpus_per_node: 1", "gpus_per_node: 2")
    two = two.replace("fp16: true", "fp16: true, pipeline_model_parallel_size: 2")
    (row,) = planned(two, gpu="h200").to_json()["jobs"]
    first, last = row["estimate"]["stages_gb"]
    assert row["estimate"]["memory_gb"] == last > first > 0


def test_parameters_as_papers_count_them() -> None:
    (row,) = planned(gpu="h200").to_json()["jobs"]
    assert row["estimate"]["parameters_without_padding"] == 774_030_080 < row["estimate"]["parameters"]


@pytest.mark.slow
def test_branches_are_priced_from_where_they_start() -> None:
    """A cooldown from 240 to 300 trains 60 iterations, a finetuning from the same checkpoint all 300."""
    text = changed(
        ("name: trunk\n", "name: trunk\ntrainer: megatron_lm\n"), ("vocab_size: 100", "vocab_size: 128")
    )

    def hours(text: str) -> dict[str, float]:
        profile = {"gpu": "h200", "mfu": 0.4}
        trainers = {"megatron_lm": TrainerSection(checkout="/opt/megatron")}
        plan = checked(text, alps().model_copy(update={"trainers": trainers, **profile}))
        return {
            job.stage: plan.estimates.jobs[job.name].gpu_hours or 0.0
            for job in plan.jobs
            if job.kind == "train"
        }

    continued = hours(text)
    assert continued["cooldown"] == pytest.approx(continued["pretrain"] * 60 / 300)
    tuned = hours(text.replace("override_opt_param_scheduler: true", "finetune: true"))
    assert tuned["cooldown"] == pytest.approx(tuned["pretrain"])


def test_too_large_for_the_gpu() -> None:
    (warning,) = planned(gpu="a100-40gb").warnings
    assert "GB of the 43 GB of one a100-40gb, so it will probably run out of memory" in warning.message
    assert planned(SPEC.replace('fate: ""', "fate: oom"), gpu="a100-40gb").warnings == ()


def test_expected_to_be_too_large_but_is_not() -> None:
    (warning,) = planned(SPEC.replace('fate: ""', "fate: oom"), gpu="h200").warnings
    assert "is expected to run out of memory, but is estimated to need" in warning.message


def test_verdicts_that_are_expected() -> None:
    (job,) = planned(SPEC.replace('fate: ""', "fate: oom")).jobs
    full = Verdict(Outcome.OUT_OF_MEMORY, "CUDA out of memory")
    judged = as_expected(job, full)
    assert (judged.outcome, judged.expected) == (Outcome.FINISHED, "oom")
    assert "as expected: CUDA out of memory" in judged.reason
    assert Verdict.from_json(judged.to_json()) == judged
    failed = Verdict(Outcome.FAILED, "exit code 1")
    assert as_expected(job, failed) is failed
    (other,) = planned().jobs
    assert as_expected(other, full) is full


@pytest.mark.parametrize("value", ["0", '"-0"', "-1"])
@pytest.mark.parametrize(
    "name",
    [
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
        *("expert_model_parallel_size", "expert_tensor_parallel_size"),
        *("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage"),
    ],
)
def test_parallel_sizes_of_none(name: str, value: str) -> None:
    """The rules of the release name the argument; the estimate is only missing."""
    text = SPEC.replace("gpus_per_node: 1", "gpus_per_node: 2")
    stages = "" if name.startswith("pipeline") else ", pipeline_model_parallel_size: 2"
    text = text.replace("fp16: true", f"fp16: true, num_experts: 4,\n   {name}: {value}{stages}")
    with pytest.raises(SpecError) as refused:
        planned(text, gpu="h200")
    assert {problem.line for problem in refused.value.problems} == {8}
    assert f"{name}: {value}" in text.splitlines()[7]
