"""Checkpoints in files of oellm-autoexp that no stage of the sweep creates."""

from __future__ import annotations

import pytest
from oellm_harness import text_of

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.checkpoint_sources import CheckpointSource
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.spec.trust.permitted_variables import SETTING

TRAIN = """\
job: {{name: "m_${{backend.megatron.seed}}"}}
backend:
  class_name: MegatronBackend
  megatron:
    num_layers: 2
    hidden_size: 64
    num_attention_heads: 2
    seq_length: 128
    max_position_embeddings: 128
    micro_batch_size: 1
    global_batch_size: 1
    lr: 1e-3
    train_iters: 9000
    save_interval: 50
    eval_interval: 50
    tokenizer_type: NullTokenizer
    vocab_size: 128
    mock_data: true
{arguments}
sweep:
  type: product
  groups:
    - params: {{backend.megatron.seed: [1, 2]}}
"""
CONVERT = """\
job: {{name: "convert_${{index}}"}}
backend: {{class_name: MegatronBridgeBackend, tokenizer: /tok, hf_path: /models/x, megatron_path: {path}}}
slurm: {{sbatch: {{nodes: 1, gpus_per_node: 1}}}}
sweep:
  type: list
  groups:
    - configs: [{{stage: convert}}]
"""


def train(arguments: str) -> str:
    return TRAIN.format(arguments="\n".join(f"    {item}" for item in arguments.split(", ")))


EVALUATE = """\
job: {{name: "evaluate_${{index}}"}}
backend: {{class_name: OELLMEvalBackend, tasks: [hellaswag], models: [{path}]}}
slurm: {{sbatch: {{nodes: 1, gpus_per_node: 1}}}}
sweep:
  type: product
  groups:
    - configs: [{{stage: evaluate}}]
"""


@pytest.fixture(scope="module")
def cluster() -> ClusterProfile:
    return load_cluster("local").model_copy(update={"run_root": "/runs"})


@pytest.mark.parametrize(
    ("arguments", "source", "iteration"),
    [
        ("load: /old/checkpoints", CheckpointSource("/old/checkpoints"), None),
        ("load: /old/checkpoints, ckpt_step: 5000", CheckpointSource("/old/checkpoints", 5000), 5000),
        ("load: /old/checkpoints/iter_0005000", CheckpointSource("/old/checkpoints", 5000), 5000),
        (
            "load: /old/checkpoints, ckpt_step: 5000, finetune: true",
            CheckpointSource("/old/checkpoints", 5000, "finetune"),
            None,
        ),
        ("load: /old/checkpoints, ckpt_step: 0", CheckpointSource("/old/checkpoints"), None),
    ],
)
def test_a_training_starts_from_it(
    arguments: str, source: CheckpointSource, iteration: int | None, cluster: ClusterProfile
) -> None:
    sweep = load_sweep_text(train(arguments), "study.yaml")
    for job in check_sweep(sweep, cluster).jobs:
        assert (job.source, job.iteration) == (source, iteration)
        assert "finetune" not in job.explicit_arguments
        assert "--load" in job.command


def test_a_trainings_own_directory_is_no_other() -> None:
    text = train('load: "${job.base_output_dir}/checkpoints"')
    sweep = load_sweep_text(text, "study.yaml")
    assert [job.source for job in sweep.jobs(sweep.points[0], load_cluster("local"))] == [None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            train("load: old/checkpoints"),
            "backend.megatron.load 'old/checkpoints' is not absolute",
        ),
        (
            train("load: /old/iter_0000100, ckpt_step: 200"),
            "backend.megatron.load names iteration 100",
        ),
        (CONVERT.format(path="/old/checkpoints"), "does not name the checkpoint to convert"),
        (CONVERT.format(path='""'), "no stage of the sweep makes"),
        (EVALUATE.format(path="Org/model"), "backend.models 'Org/model' is not absolute"),
        (EVALUATE.format(path="/a, /b"), "names 2 models"),
    ],
)
def test_mistakes(text: str, message: str, cluster: ClusterProfile) -> None:
    with pytest.raises(SpecError) as error:
        check_sweep(load_sweep_text(text, "study.yaml"), cluster)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (train("load: old/checkpoints"), "/project/old/checkpoints"),
        (train("load: ./old/../new"), "/project/new"),
        (CONVERT.format(path="old/checkpoints/iter_0000700"), "/project/old/checkpoints"),
        (EVALUATE.format(path="./hf"), "/project/hf"),
    ],
)
def test_a_relative_path_begins_where_upstream_is_started(
    text: str, place: str, cluster: ClusterProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROJECT_DIR", "/project")
    monkeypatch.setenv(SETTING, "PROJECT_DIR")
    sweep = load_sweep_text(text, "study.yaml")
    for job in check_sweep(sweep, cluster).jobs:
        assert job.source is not None
        assert job.source.path == place
    assert any("a relative path begins at PROJECT_DIR" in problem.message for problem in sweep.warnings())
    monkeypatch.setenv("PROJECT_DIR", ".")
    with pytest.raises(SpecError, match=r"is not absolute.*set PROJECT_DIR"):
        check_sweep(load_sweep_text(text, "study.yaml"), cluster)


def test_a_relative_path_of_a_condition_begins_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROJECT_DIR", "/project")
    monkeypatch.setenv(SETTING, "PROJECT_DIR")
    condition = "{class_name: FileExistsCondition, path: data/ready}"
    sweep = load_sweep_text(text_of(job=f"start_condition: {condition}"), "study.yaml")
    (job, *_) = sweep.jobs(sweep.points[0], load_cluster("local"))
    assert job.start == Condition("file", path="/project/data/ready")


def test_a_conversion_alone(cluster: ClusterProfile) -> None:
    sweep = load_sweep_text(CONVERT.format(path="/old/checkpoints/iter_0000700"), "study.yaml")
    (job,) = check_sweep(sweep, cluster).jobs
    assert (job.kind, job.iteration, job.source) == (
        "convert",
        700,
        CheckpointSource("/old/checkpoints", 700),
    )


def test_an_evaluation_alone(cluster: ClusterProfile) -> None:
    sweep = load_sweep_text(EVALUATE.format(path="/models/x/iter_0000700"), "study.yaml")
    (job,) = check_sweep(sweep, cluster).jobs
    assert (job.kind, job.iteration) == ("evaluate", 700)
    assert "/models/x/iter_0000700" in " ".join(job.command)
