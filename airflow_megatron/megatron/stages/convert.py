"""Stages that convert checkpoints to Hugging Face models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.commands.conversion_options import LIBRARIES, conversion_options
from airflow_megatron.megatron.commands.words import needed, options
from airflow_megatron.megatron.stages.checkpoint_stage import CheckpointStage, scripts_of
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.spec.layout.run_layout import RunLayout
from airflow_megatron.spec.model.stage_kinds import CheckpointResult, StageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


class Convert(CheckpointStage):
    """The converter to Hugging Face, ``Megatron-LM/convert_to_hf.py``."""

    works_on = "checkpoints"
    makes_models = True
    params = ("tokenizer", "hf_architecture", "converter", "converter_arguments", "hf_config")
    result = CheckpointResult(
        program="/convert_to_hf.py",
        path=RunLayout.model_dir,
        hint="convert it once and use the result in both; or give one of them start: {{from: {checkpoints}}},"
        " which gives it a directory of its own",
    )

    def one_command(self, job: Job, cluster: ClusterProfile, iteration: int | str) -> tuple[str, ...]:
        """Return the command that converts one checkpoint."""
        return (
            cluster.python,
            f"{scripts_of(cluster)}/convert_to_hf.py",
            *options(
                load=job.source.path if job.source else job.checkpoint_dir,
                iteration=iteration,
                output=job.layout.model_dir(iteration),
                tokenizer=_tokenizer(job),
                done_marker=self.done(job.layout, iteration),
            ),
            *conversion_options(job.params),
        )

    def done(self, layout: RunLayout, iteration: int | str) -> str:
        """Return the file that marks a converted checkpoint."""
        return layout.converted_mark(iteration)

    def check_origin(self, job: Job) -> None:
        """Refuse checkpoints that the converter does not read."""
        if reason := trainer_called(job.trainer).not_converted:
            raise CommandError("kind", f"stage {job.stage}: {reason}")

    def outputs(self, job: Job) -> tuple[str, ...]:
        """Return the model's configuration, which is written last."""
        return (job.layout.model_config(job.iteration),)

    def problems(self, job: Job) -> Iterator[StageProblem]:
        """Yield a conversion by a library without a GPU."""
        converter = job.params.get("converter")
        if converter in LIBRARIES and job.slurm.gpus_per_node is not None and not job.slurm.gpus_per_node:
            yield StageProblem(
                "converter",
                ("converter",),
                f"{converter} converts on a GPU, and the job requests none",
                "set slurm: {gpus_per_node: 1}, or leave converter out",
            )


def _tokenizer(job: Job) -> str:
    tokenizer = needed(job, "tokenizer")
    if not isinstance(tokenizer, str):
        raise CommandError(
            "tokenizer",
            f"tokenizer is {tokenizer!r}; write its directory, or its name on the Hugging Face hub",
        )
    return tokenizer
