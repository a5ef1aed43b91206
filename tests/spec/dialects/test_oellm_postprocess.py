"""Other parts of oellm-autoexp files: later steps, containers, arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.dialects.oellm.dialect import OellmSweep
from airflow_megatron.spec.dialects.oellm.native import native_spec
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.native.sweep import NativeSweep
from airflow_megatron.spec.spec_files import load_sweep, load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.model.jobs import Job

TEXT = r"""
job:
  name: "m_${backend.megatron.lr}"
  base_output_dir: "out/${.name}"
JOB
backend:
  class_name: MegatronBackend
  megatron:
    num_layers: 2
    hidden_size: 64
    num_attention_heads: 4
    seq_length: 64
    max_position_embeddings: 64
    micro_batch_size: 1
    global_batch_size: 16
    eval_interval: 100
    lr: 1e-3
    train_iters: 100
    save_interval: 50
    ckpt_step: ${.train_iters}
    tokenizer_type: NullTokenizer
    vocab_size: 100
    mock_data: true
slurm:
  sbatch: {nodes: 2, gpus_per_node: 4, cpus_per_task: 12, time: "01:00:00"}
SLURM
TOP
sweep:
  type: product
  groups:
    - params:
        backend.megatron.lr: [1e-3, 2e-3]
"""
ITERATION = "${oc.pad_iter:${backend.megatron.ckpt_step}}"
TO_TORCH = '  dist_to_torch: {class_name: MegatronDistToTorchStep, cmd: "${backend.full_cmd}"}'
TO_HF = f"""\
  convert_hf:
    class_name: MegatronToHFStep
    architecture: qwen3
    torch_ckpt_dir: ${{job.base_output_dir}}/torch/{ITERATION}
    hf_output_dir: ${{job.base_output_dir}}/hf/{ITERATION}
    tokenizer_name: /models/Qwen3"""
EVERY = """\
  convert_hf:
    class_name: MegatronToHFStep
    torch_ckpt_base_dir: ${job.base_output_dir}/torch
    hf_output_base_dir: ${job.base_output_dir}/hf
    ckpt_step: 100
    save_interval: 40
    train_iters: 100"""
EVALUATION = f"""\
  eval:
    class_name: OELLMEvalStep
    model_path: ${{job.base_output_dir}}/hf/{ITERATION}
    task_groups: [dclm-core-22]"""


@pytest.fixture(scope="module")
def cluster() -> ClusterProfile:
    return load_cluster("example-slurm").model_copy(update={"run_root": "/runs"})


def text_of(*steps: str, job: str = "", slurm: str = "", top: str = "") -> str:
    top += "\npostprocess:\n" + "\n".join(steps) if steps else ""
    return TEXT.replace("\nJOB", f"\n{job}").replace("\nSLURM", f"\n{slurm}").replace("\nTOP", f"\n{top}")


def first_point(text: str, cluster: ClusterProfile) -> dict[str, Job]:
    sweep = load_sweep_text(text, "study.yaml")
    return {job.stage: job for job in sweep.jobs(sweep.points[0], cluster)}


class TestStepsAfterATraining:
    def test_each_is_a_stage_of_its_own(self, cluster: ClusterProfile) -> None:
        text = text_of(TO_TORCH, TO_HF, EVALUATION)
        jobs = first_point(text, cluster)
        assert {stage: job.kind for stage, job in jobs.items()} == {
            "train": "train",
            "train_convert_hf": "convert",
            "train_eval": "evaluate",
        }
        train, convert, evaluate = jobs.values()
        assert (convert.depends_on[0].job, evaluate.depends_on[0].job) == (train.name, convert.name)
        assert {job.run_dir for job in jobs.values()} == {"/runs/study/m_0.001"}
        assert (convert.iteration, evaluate.iteration) == (100, 100)
        assert convert.params["tokenizer"] == "/models/Qwen3"
        assert convert.params["hf_architecture"] == "qwen3"
        assert evaluate.params["tasks"] == ["dclm-core-22"]
        assert (convert.slurm.nodes, convert.slurm.gpus_per_node, convert.slurm.cpus_per_task) == (1, 4, 12)
        messages = [problem.message for problem in load_sweep_text(text, "study.yaml").warnings()]
        assert not any("postprocess" in message or "ckpt_step" in message for message in messages)

    def test_what_watches_the_training_does_not_watch_them(self, cluster: ClusterProfile) -> None:
        job = """\
  inactivity_threshold_seconds: 600
  chain_repeat: 3
  cancel_condition: {class_name: LogPatternCondition, pattern: diverged}
  log_events: [{name: nan, pattern: NaN, action: {class_name: RestartAction}}]"""
        train, *steps = first_point(text_of(TO_HF, EVALUATION, job=job), cluster).values()
        assert train.cancel is not None
        assert len(train.events) == 2
        assert train.restart.chain == 3
        for step in steps:
            assert (step.cancel, step.events) == (None, ())
            assert step.restart.chain != 3

    def test_a_checkpoint_that_a_path_names(self, cluster: ClusterProfile) -> None:
        step = TO_HF.replace(ITERATION, "iter_0000050", 1)
        assert first_point(text_of(step), cluster)["train_convert_hf"].iteration == 50

    def test_every_checkpoint_is_converted(self, cluster: ClusterProfile) -> None:
        """``save_interval`` and ``train_iters`` of a step: upstream's branch ``harsh/ckpt_conversion_backend``."""
        to_torch = TO_TORCH.replace("cmd:", 'load_dir: "${job.base_output_dir}/checkpoints", cmd:')
        text = text_of(to_torch, EVERY, EVALUATION)
        train, convert, evaluate = first_point(text, cluster).values()
        assert convert.start
        (fresh, *_) = convert.start.leaves()
        assert (fresh.kind, fresh.path) == ("new_checkpoint", train.checkpoint_dir)
        assert (fresh.iteration, fresh.spacing, fresh.last) == (40, 40, 100)
        assert convert.finish
        assert (evaluate.iteration, evaluate.depends_on[0].job) == (100, convert.name)
        sweep = load_sweep_text(text, "study.yaml")
        assert isinstance(sweep, OellmSweep)
        native = load_sweep_text(yaml.safe_dump(native_spec(sweep), sort_keys=False), "study.yaml")
        other = native.jobs(native.points[0], cluster)[1]
        assert (other.start, other.finish) == (convert.start, convert.finish)
        assert (other.start_every_attempt, other.depends_on[0].until) == (
            convert.start_every_attempt,
            convert.depends_on[0].until,
        )

    def test_one_checkpoint_below_the_base_directories(self, cluster: ClusterProfile) -> None:
        step = EVERY.replace("    save_interval: 40\n", "").replace("ckpt_step: 100", "ckpt_step: 40")
        jobs = first_point(text_of(step, EVALUATION.replace(ITERATION, "iter_0000040")), cluster)
        assert [job.iteration for job in jobs.values()] == [None, 40, 40]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({ITERATION: "iter_0000050"}, "evaluates .*/hf/iter_0000050, and .* writes .*/hf/iter_0000040"),
            ({"100\n  eval:": "90\n  eval:"}, "train_iters is 90, and the training ends at 100"),
            ({"save_interval: 40": "save_interval: x"}, "save_interval is 'x', not a whole number from 1 on"),
            ({"base_dir: ${job.base_output_dir}/torch": "base_dir: /else"}, "the training does not write"),
        ],
    )
    def test_wrong_steps_of_every_checkpoint(
        self, changes: dict[str, str], message: str, cluster: ClusterProfile
    ) -> None:
        text = text_of(EVERY, EVALUATION)
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        with pytest.raises(SpecError, match=message):
            first_point(text, cluster)

    def test_a_stage_that_evaluates_waits_for_the_conversion(self, cluster: ClusterProfile) -> None:
        sweep = r"""
sweep:
  type: list
  groups:
    - type: list
      configs:
        - stage: train
        - stage: eval
          backend.class_name: OELLMEvalBackend
          backend.models: ["\\${sibling.train.job.base_output_dir}/hf/iter_0000100"]
          backend.tasks: [hellaswag]
          postprocess.convert_hf: null
          job.start_condition:
            class_name: FileExistsCondition
            path: "\\${sibling.train.job.base_output_dir}/hf/iter_0000100/model.safetensors"
"""
        text = text_of(TO_HF).partition("\nsweep:")[0] + sweep
        jobs = first_point(f'stage: ""\n{text}', cluster)
        assert list(jobs) == ["train", "train_convert_hf", "eval"]
        assert [item.stage for item in jobs["eval"].depends_on] == ["train_convert_hf"]

    @pytest.mark.parametrize(
        ("steps", "message"),
        [
            (
                (TO_HF, EVALUATION.replace("/hf/", "/other/")),
                "postprocess.eval evaluates .*/other/iter_0000100",
            ),
            (
                (TO_HF.replace("${job.base_output_dir}/torch", "/elsewhere"),),
                "which the training does not write",
            ),
            (("  - x",), "postprocess takes steps by name"),
        ],
    )
    def test_what_they_work_on_is_what_the_training_makes(
        self, steps: tuple[str, ...], message: str, cluster: ClusterProfile
    ) -> None:
        with pytest.raises(SpecError, match=message):
            first_point(text_of(*steps), cluster)

    def test_the_native_spec_has_the_same_stages(self, cluster: ClusterProfile) -> None:
        sweep = load_sweep_text(
            text_of(
                TO_HF,
                EVALUATION,
                slurm="  array: true",
                top="container: {image: /c/m.sif, runtime: apptainer}",
            ),
            "study.yaml",
        )
        assert isinstance(sweep, OellmSweep)
        native = load_sweep_text(yaml.safe_dump(native_spec(sweep), sort_keys=False), "study.yaml")
        assert isinstance(native, NativeSweep)
        for point, other in zip(sweep.points, native.points, strict=True):
            ours, theirs = sweep.jobs(point, cluster), native.jobs(other, cluster)
            for one, two in zip(ours, theirs, strict=True):
                assert (one.kind, one.run_dir, two.stage.endswith(one.stage)) == (two.kind, two.run_dir, True)
                assert (one.iteration, one.container, one.array) == (two.iteration, two.container, two.array)


class TestContainers:
    @pytest.mark.slow
    def test_the_image_of_the_file_stands_in_place_of_the_profiles(self, cluster: ClusterProfile) -> None:
        top = "container: {image: /c/m.sif, runtime: apptainer, bind: [/data]}"
        sweep = load_sweep_text(text_of(TO_HF.replace("qwen3", "gpt2"), top=top), "study.yaml")
        jobs = check_sweep(sweep, cluster).jobs
        for job in jobs:
            assert "--bind /data /c/m.sif " in job_script(job, cluster, 1)

    def test_each_point_has_its_own(self, cluster: ClusterProfile) -> None:
        text = (
            text_of(top="container: {image: /c/m.sif}")
            + '        container.image: ["/c/a.sif", "/c/b.sif"]\n'
        )
        sweep = load_sweep_text(text, "study.yaml")
        images = [
            job.container.image
            for point in sweep.points
            for job in sweep.jobs(point, cluster)
            if job.container
        ]
        assert images == ["/c/a.sif", "/c/b.sif"] * 2

    @pytest.mark.parametrize(
        ("value", "image"),
        [("profile", None), ("{runtime: singularity, image: /s/own.sif}", "/s/own.sif")],
    )
    def test_a_sidecar_has_the_last_word(
        self, value: str, image: str | None, cluster: ClusterProfile, tmp_path: Path
    ) -> None:
        file = tmp_path / "study.yaml"
        file.write_text(text_of(top="container: {image: /c/m.sif}"))
        (tmp_path / "study.yaml.airflow.yml").write_text(f"container: {value}\n")
        sweep = load_sweep(file)
        containers = [job.container for point in sweep.points for job in sweep.jobs(point, cluster)]
        assert [container and container.image for container in containers] == [image, image]


class TestArrays:
    def test_the_points_are_tasks_of_one(self, cluster: ClusterProfile) -> None:
        sweep = load_sweep_text(text_of(TO_HF, slurm="  array: true"), "study.yaml")
        assert [instance.array for instance in sweep.tree] == [True, False]
        assert {job.stage: job.array for point in sweep.points for job in sweep.jobs(point, cluster)} == {
            "train": sweep.settings.max_active_points,
            "train_convert_hf": None,
        }
        assert not any("array" in problem.message for problem in sweep.warnings())

    def test_jobs_that_wait_are_submitted_alone(self, cluster: ClusterProfile) -> None:
        job = "  start_condition: {class_name: FileExistsCondition, path: /data/ready}"
        sweep = load_sweep_text(text_of(job=job, slurm="  array: true"), "study.yaml")
        assert [instance.array for instance in sweep.tree] == [False]
        assert any(
            "slurm.array: the tasks of an array start together" in problem.message
            for problem in sweep.warnings()
        )
