"""The records of a sweep's jobs, in the form in which the pages need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class StageReading(NamedTuple):
    """The progress of a training. Unknown values are None.

    :param iteration: the last one logged
    :param train_iters: the last iteration of the training
    :param loss: of the last iteration, in nats per token
    :param validation_loss: the last one, in nats per token
    :param step_s: seconds of an iteration
    :param tokens_per_iteration: tokens of an iteration
    :param tflops: TFLOP/s per GPU, as Megatron counts it
    :param memory_mib: the most that PyTorch has reserved on a GPU
    :param seen: Unix time of the newest row
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


class JobReading(NamedTuple):
    """The cost of the attempts of a job.

    :param attempts: how many there were
    :param gpu_hours: GPU-hours of those that have ended
    :param lost: of these, GPU-hours of attempts that were repeated from an earlier checkpoint or failed
    :param state: last state reported by Slurm; empty if there is none
    """

    attempts: int = 0
    gpu_hours: float = 0.0
    lost: float = 0.0
    state: str = ""


class EvaluationFigure(NamedTuple):
    """A figure of lm-evaluation-harness. Unknown values are None.

    :param point: name of the point
    :param stage: the training whose checkpoint it is of
    :param iteration: of the checkpoint
    :param model: run outside the sweep that the checkpoint is from; empty for the point's own
    :param name: task and metric
    :param value: the figure
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
    """Read-only view of what is stored of a sweep, by all its runs."""

    def trainings(self) -> Mapping[tuple[str, str], StageReading]:
        """Return point and stage → how far it has come."""

    def jobs(self) -> Mapping[tuple[str, str], JobReading]:
        """Return point and stage → its cost."""

    def attempts(self, point: str) -> Sequence[Mapping[str, Any]]:
        """Return the attempts of a point's jobs in the order of their ends."""

    def failures(self) -> Sequence[Mapping[str, Any]]:
        """Return the attempts that have failed."""

    def figures(self) -> Sequence[EvaluationFigure]:
        """Return every figure of an evaluation."""

    def curves(self, metric: str, points: Collection[str], most: int) -> Sequence[Mapping[str, Any]]:
        """Return a curve for each training of some points.

        ``point``, ``stage``, ``parent`` (the stage that it branches off, if any), lists of equal length ``x``
        (iterations), ``tokens``, ``flops``, ``hours``, ``rate`` (learning rates) and ``y``, and ``restarts``, the
        iterations at which attempts began. Unknown values are None.

        :param metric: ``loss``, ``validation_loss``, ``learning_rate``, ``grad_norm``, ``throughput``
        :param most: values of a curve, at most
        """


class NothingRecorded:
    """The records of a sweep of which nothing is stored."""

    def trainings(self) -> dict[tuple[str, str], StageReading]:
        """Return nothing."""
        return {}

    def jobs(self) -> dict[tuple[str, str], JobReading]:
        """Return nothing."""
        return {}

    def attempts(self, point: str) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    def failures(self) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    def figures(self) -> list[EvaluationFigure]:
        """Return nothing."""
        return []

    def curves(self, metric: str, points: Collection[str], most: int) -> list[dict[str, Any]]:
        """Return nothing."""
        return []
