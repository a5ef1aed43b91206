"""The estimate of a training before it is submitted: parameters, operations, memory per GPU.

>>> params = {
...     "num_layers": 36,
...     "hidden_size": 1280,
...     "num_attention_heads": 20,
...     "seq_length": 1024,
...     "max_position_embeddings": 1024,
...     "micro_batch_size": 32,
...     "vocab_size": 50257,
...     "fp16": True,
... }
>>> estimate(params, 1, "core_v0.16.1").parameters.total // 10**6
774
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.estimates.memory import StageMemory, memory_per_stage
from airflow_megatron.megatron.estimates.operations import operations_per_token
from airflow_megatron.megatron.estimates.parameters import ParameterCounts, parameter_counts
from airflow_megatron.megatron.rules.settings import Machine, Settings
from airflow_megatron.megatron.validation.command_checks import read_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.estimates.hardware import Gpu
    from airflow_megatron.megatron.rules.argument_problem import ArgumentProblem

#: An estimate this close to a GPU's memory is taken for out of memory: see the errors in the documentation.
MARGIN: Final = 0.05
#: Vocabulary sizes of tokenizers with a fixed size.
VOCABULARIES: Final = {"GPT2BPETokenizer": 50257}
#: Layers and pipeline stages are counted one by one.
_MOST_PARTS: Final = 10_000
#: Readers of JSON take no larger integers.
_LARGEST: Final = 2**63 - 1
_WITH_ENGINE: Final = Machine(transformer_engine=(99,))


class EstimateError(AirflowMegatronError, ValueError):
    """Parameters that cannot be estimated: the release refuses them, or a size is missing."""

    def __init__(self, message: str, problems: list[ArgumentProblem] | None = None) -> None:
        self.problems = problems or []
        super().__init__("; ".join([message, *(str(problem) for problem in self.problems)]))


@dataclass(frozen=True)
class Estimate:
    """Requirements of one job.

    :param parameters: parameter counts of the whole model
    :param operations_per_token: floating point operations per token, forward and backward
    :param tokens_per_iteration: global batch size times sequence length
    :param iterations: iterations of the job, None if unknown
    :param world_size: number of GPUs
    :param stages: memory of a GPU of each pipeline stage
    """

    parameters: ParameterCounts
    operations_per_token: float
    tokens_per_iteration: int
    iterations: int | None
    world_size: int
    stages: tuple[StageMemory, ...]

    @property
    def operations_per_iteration(self) -> float:
        """Floating point operations per iteration of the whole job."""
        return self.operations_per_token * self.tokens_per_iteration

    @property
    def memory_bytes(self) -> float:
        """Bytes on the GPU that needs most."""
        return max(stage.total for stage in self.stages)

    def runs_out_of_memory(self, gpu: Gpu) -> bool:
        """Return whether the memory of a GPU is insufficient (within :data:`MARGIN`)."""
        return self.memory_bytes > gpu.memory_bytes * (1 - MARGIN)

    def gpu_hours(self, step_s: float, done: int = 0) -> float | None:
        """Return the GPU-hours of the job from the time of an iteration in seconds.

        :param done: iteration of the checkpoint from which it continues
        """
        if self.iterations is None:
            return None
        return max(self.iterations - done, 0) * step_s * self.world_size / 3600

    def utilisation(self, step_s: float, gpu: Gpu) -> float:
        """Return the model FLOPs utilisation (MFU) from the time of an iteration in seconds."""
        return self.operations_per_iteration / (step_s * self.world_size * gpu.operations_per_s)

    def step_s(self, utilisation: float, gpu: Gpu) -> float:
        """Return the time of an iteration in seconds from an assumed MFU."""
        return self.operations_per_iteration / (utilisation * self.world_size * gpu.operations_per_s)

    def to_json(self) -> dict[str, Any]:
        """Return the estimate as a JSON object; memory in bytes."""
        return {
            "parameters": self.parameters.to_json(),
            "operations_per_token": self.operations_per_token,
            "operations_per_iteration": self.operations_per_iteration,
            "tokens_per_iteration": self.tokens_per_iteration,
            "iterations": self.iterations,
            "world_size": self.world_size,
            "memory_bytes": self.memory_bytes,
            "stages": [stage.to_json() for stage in self.stages],
        }


def _not_estimated(s: Settings) -> dict[str, object]:
    return {
        "hybrid models": s.hybrid_layer_pattern or s.hybrid_override_pattern or s.is_hybrid_model,
        "experimental attention": s.experimental_attention_variant,
        "heterogeneous layers": s.heterogeneous_layers_config_path
        or s.heterogeneous_layers_config_encoded_json,
    }


def estimate(
    params: Mapping[str, object], world_size: int, release: str, *, machine: Machine = _WITH_ENGINE
) -> Estimate:
    """Estimate a job.

    :param params: parameters as for :func:`~airflow_megatron.megatron.arguments.argv.to_argv`; ``vocab_size`` (before
        padding) is needed if the tokenizer does not determine it (:data:`VOCABULARIES`).
    :param world_size: number of GPUs.
    :param release: an upstream tag.
    :param machine: properties of the job's nodes; default: with Transformer Engine.
    :raises ArgumentError: for a parameter that the release does not have.
    :raises EstimateError: if the release refuses the parameters together, or their vocabulary is unknown.
    """
    try:
        return _estimate(to_argv(params, release), world_size, release, machine)
    except ArithmeticError as error:  # a division by a size of 0, or a number beyond those of floating point
        raise EstimateError(f"there is no estimate for these sizes: {error}") from error


def _estimate(argv: list[str], world_size: int, release: str, machine: Machine) -> Estimate:
    problems, settings = read_settings(argv, world_size, release, machine=machine)
    if problems or settings is None:
        raise EstimateError(f"{release} refuses these parameters", problems)
    if settings.vocab_size is None:
        settings.vocab_size = VOCABULARIES.get(settings.tokenizer_type)
    if settings.vocab_size is None:
        of = settings.tokenizer_model or settings.tokenizer_type
        raise EstimateError(f"how many tokens {of} has is not known here; give vocab_size")
    beyond = [name for name, given in _not_estimated(settings).items() if given]
    if beyond:
        raise EstimateError(f"there is no estimate for {', '.join(beyond)}")
    for name in ("num_layers", "mtp_num_layers", "pipeline_model_parallel_size"):
        if (getattr(settings, name) or 0) > _MOST_PARTS:
            raise EstimateError(f"there is no estimate for {name} above {_MOST_PARTS}")
    samples = settings.global_batch_size
    iterations = settings.train_iters
    if iterations is None and settings.train_samples:
        iterations = -(-settings.train_samples // samples)
    parameters, tokens = parameter_counts(settings), samples * settings.seq_length
    for number, of in (
        (parameters.total, "parameters"),
        (parameters.active, "parameters"),
        (tokens, "tokens in an iteration"),
        (iterations or 0, "iterations"),
    ):
        if abs(number) > _LARGEST:
            raise EstimateError(f"there is no estimate for more than {_LARGEST:.0e} {of}")
    return Estimate(
        parameters=parameters,
        operations_per_token=operations_per_token(settings),
        tokens_per_iteration=tokens,
        iterations=iterations,
        world_size=world_size,
        stages=memory_per_stage(settings),
    )
