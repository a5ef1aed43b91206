"""The records of a sweep's jobs, in the form that the pages need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

MOST_CURVES: Final = 60
"""Maximum number of curves in one answer."""


class StageReading(NamedTuple):
    """The progress of a training. Unknown values are None.

    :param iteration: the last logged iteration
    :param train_iters: the last iteration of the training
    :param loss: loss of the last iteration, in nats per token
    :param validation_loss: last validation loss, in nats per token
    :param step_s: seconds of an iteration
    :param tokens_per_iteration: tokens of an iteration
    :param tflops: TFLOP/s per GPU, as computed by Megatron
    :param memory_mib: maximum memory that PyTorch has reserved on a GPU, in MiB
    :param seen: Unix time of the newest row
    :param diverged: whether the loss is no longer a finite number, logged or as the error that ended the last attempt
    """

    iteration: int | None = None
    train_iters: int | None = None
    loss: float | None = None
    validation_loss: float | None = None
    step_s: float | None = None
    tokens_per_iteration: float | None = None
    tflops: float | None = None
    memory_mib: float | None = None
    seen: float | None = None
    diverged: bool = False


class JobReading(NamedTuple):
    """The cost of the attempts of a job.

    :param attempts: number of attempts
    :param gpu_hours: GPU-hours of the attempts that have ended
    :param lost: of these, GPU-hours of attempts that were repeated from an earlier checkpoint or failed
    :param state: last state reported by Slurm; empty if there is none
    """

    attempts: int = 0
    gpu_hours: float = 0.0
    lost: float = 0.0
    state: str = ""


class EvaluationFigure(NamedTuple):
    """A value measured by lm-evaluation-harness. Unknown values are None.

    :param point: name of the point
    :param stage: the training that saved the checkpoint
    :param iteration: of the checkpoint
    :param model: run outside the sweep that saved the checkpoint; empty for a training of the point
    :param name: task and metric
    :param value: the value
    :param stderr: its standard error
    :param chance: score of random guessing
    """

    point: str
    stage: str
    iteration: int
    model: str
    name: str
    value: float
    stderr: float | None
    chance: float | None


class Recorded(Protocol):
    """Read-only view of a sweep's stored results, from all its runs."""

    def trainings(self) -> Mapping[tuple[str, str], StageReading]:
        """Return point and stage → its progress."""

    def jobs(self) -> Mapping[tuple[str, str], JobReading]:
        """Return point and stage → its cost."""

    def attempts(self, point: str) -> Sequence[Mapping[str, Any]]:
        """Return the attempts of a point's jobs in the order of their ends."""

    def failures(self, most: int | None = None) -> Sequence[Mapping[str, Any]]:
        """Return the attempts that have failed, the newest first, at most the given number."""

    def failure_count(self) -> int:
        """Return the number of attempts that have failed."""

    def figures(self) -> Sequence[EvaluationFigure]:
        """Return every value of every evaluation."""

    def curves(self, metric: str, points: Collection[str], most: int) -> Sequence[Mapping[str, Any]]:
        """Return a curve for each training of some points, at most :data:`MOST_CURVES`.

        ``point``, ``stage``, ``parent`` (the stage from which it branches, if any), lists of equal length ``x``
        (iterations), ``tokens``, ``flops``, ``hours``, ``rate`` (learning rates) and ``y``, and ``restarts``, the
        iterations at which attempts began. Unknown values are None.

        :param metric: ``loss``, ``validation_loss``, ``learning_rate``, ``grad_norm``, ``throughput``
        :param most: maximum number of values of a curve
        """


class NothingRecorded:
    """The records of a sweep without stored results."""

    def trainings(self) -> dict[tuple[str, str], StageReading]:
        """Return nothing."""
        return {}

    def jobs(self) -> dict[tuple[str, str], JobReading]:
        """Return nothing."""
        return {}

    def attempts(self, point: str) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    def failures(self, most: int | None = None) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    def failure_count(self) -> int:
        """Return 0."""
        return 0

    def figures(self) -> list[EvaluationFigure]:
        """Return nothing."""
        return []

    def curves(self, metric: str, points: Collection[str], most: int) -> list[dict[str, Any]]:
        """Return nothing."""
        return []
