"""Stages that evaluate models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.commands.evaluation_options import evaluation_options
from airflow_megatron.megatron.commands.words import needed, options
from airflow_megatron.megatron.stages.checkpoint_stage import CheckpointStage, scripts_of
from airflow_megatron.spec.layout.run_layout import RunLayout, model_config_of, result_dir
from airflow_megatron.spec.model.stage_kinds import CheckpointResult, StageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


class Evaluate(CheckpointStage):
    """The evaluation of a model, ``Megatron-LM/evaluate_hf.py``."""

    works_on = "models"
    reported_as = "evaluation"
    params = (
        *("tasks_dir", "tasks", "limit", "num_fewshot"),
        *("eval_backend", "eval_backend_arguments", "eval_batch_size"),
    )
    result = CheckpointResult(
        program="/evaluate_hf.py",
        path=RunLayout.evaluation,
        hint="give one stage the tasks of both; or give one of them start: {{from: {model}}}, which gives it a"
        " directory of its own",
    )

    def found_in(self, iteration: int | str) -> str:
        """Return the configuration of a model, or of that of an iteration."""
        every = iteration == "{iteration}"
        return model_config_of(result_dir("{directory}", iteration) if every else "{directory}")

    def one_command(self, job: Job, cluster: ClusterProfile, iteration: int | str) -> tuple[str, ...]:
        """Return the command that evaluates one model."""
        model = job.layout.model_dir(iteration)
        if job.source is not None:
            one = isinstance(iteration, int)
            model = job.source.path if one else result_dir(job.source.path, iteration)
        return (
            cluster.python,
            f"{scripts_of(cluster)}/evaluate_hf.py",
            *options(model=model, output=job.layout.evaluation(iteration)),
            *evaluation_options(needed(job, "tasks"), job.params),
        )

    def outputs(self, job: Job) -> tuple[str, ...]:
        """Return the results."""
        return (job.layout.evaluation(job.iteration),)

    def done(self, layout: RunLayout, iteration: int | str) -> str:
        """Return the results of a model."""
        return layout.evaluation(iteration)

    def problems(self, job: Job) -> Iterator[StageProblem]:
        """Yield an evaluation for which vLLM needs more GPUs than requested."""
        if job.params.get("eval_backend") != "vllm":
            return
        gpus = 1 if job.slurm.gpus_per_node is None else job.slurm.gpus_per_node
        needs = _vllm_gpus(job.params.get("eval_backend_arguments") or {})
        if needs > gpus:
            yield StageProblem(
                "eval_backend",
                ("eval_backend",),
                f"vllm runs on {needs} GPU{'s' if needs > 1 else ''}, and the job requests {gpus}",
                f"set slurm: {{gpus_per_node: {needs}}}, or other eval_backend_arguments",
            )


def _vllm_gpus(arguments: Mapping[str, object]) -> int:
    needs = 1
    for name in ("tensor_parallel_size", "data_parallel_size"):
        size = arguments.get(name, 1)
        needs *= size if isinstance(size, int) else 1
    return needs
