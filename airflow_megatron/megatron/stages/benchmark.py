"""Stages that measure a short training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.commands.trainer_stage import TrainerStage
from airflow_megatron.spec.model.stage_kinds import StageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.spec.model.jobs import Job


class Benchmark(TrainerStage):
    """A short training that is measured, without checkpoints and evaluations."""

    reported_as = "benchmark"

    def default_arguments(self, job: Job, table: ArgumentTable) -> dict[str, Any]:
        """Save and evaluate nothing, and log every iteration."""
        return {
            **{"save": None, "load": None, "exit_signal_handler": None},
            # no evaluation; but from core_v0.16 on upstream divides by the interval and has no default for it
            **{"log_interval": 1, "eval_iters": 0, "eval_interval": job.params.get("train_iters")},
            **({"log_throughput": True} if table.get("log_throughput") else {}),
        }

    def final_arguments(
        self, job: Job, arguments: dict[str, Any], given: frozenset[str], table: ArgumentTable
    ) -> dict[str, Any]:
        """Remove TensorBoard's files unless W&B needs them."""
        if not arguments.get("wandb_project"):
            # upstream sends to W&B only values that it writes for TensorBoard
            arguments["tensorboard_dir"] = job.params.get("tensorboard_dir")
        return arguments

    def problems(self, job: Job) -> Iterator[StageProblem]:
        """Yield a benchmark of which every iteration is excluded from the measurement."""
        iterations, skipped = job.params.get("train_iters"), job.measure.get("skip", 0)
        measured = "--train-iters" in job.command and job.expect is None  # not a command of its own
        if measured and isinstance(iterations, int) and skipped >= iterations:
            yield StageProblem(
                "skip",
                ("train_iters",),
                f"skip excludes the first {skipped} of {iterations} iterations: nothing is measured",
                f"skip: {iterations // 10}, or more iterations",
                warning=True,
            )
