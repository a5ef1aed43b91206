"""The values that rules look at: a command line's arguments, and what the job's machines bring along."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.arguments import argument_table, known_releases

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Attributes that upstream derives from the arguments before or while it checks them.
DERIVED = (
    "activation",
    "bias_activation_fusion",
    "cpu_offloading",
    "cuda_graph_regions",
    "cuda_graph_whole_iteration",
    "data_parallel_size",
    "expert_weight_remat_size",
    "gated_linear_unit",
    "global_batch_size_given",
    "is_distributed_checkpoint",
    "machine",
    "num_microbatches",
    "pipeline_layout",
    "release",
    "layers_to_split",
    "virtual_pipeline_model_parallel_size",
    "weight_remat_size",
    "world_size",
)


@dataclass(frozen=True)
class Machine:
    """What a job finds on its nodes, where rules depend on it.

    :param transformer_engine: version of Transformer Engine, or None where it is not installed
    :param compute_capability: major number of the GPUs' CUDA compute capability (8 Ampere, 9 Hopper, 10
        Blackwell)
    :param environment: environment variables of the job
    :param packages: optional Python packages that are installed, by import name
    """

    transformer_engine: tuple[int, ...] | None = None
    compute_capability: int = 9
    environment: Mapping[str, str] = field(default_factory=lambda: {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    packages: frozenset[str] = frozenset()

    def has_transformer_engine(self, *version: int) -> bool:
        """Tell whether Transformer Engine of at least ``version`` is installed."""
        return self.transformer_engine is not None and self.transformer_engine >= version


class Settings:
    """A command line's values by ``dest``, plus :data:`DERIVED`; upstream's ``args`` namespace.

    An argument that the release does not have is None, so that one rule serves several releases.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return the value of an argument."""

        def __setattr__(self, name: str, value: Any) -> None:
            """Replace the value of an argument, as upstream does when it derives one from others."""

    def __init__(self, release: str, values: Mapping[str, Any], world_size: int, machine: Machine) -> None:
        """Fill in the release's defaults under the given values."""
        content = self.__dict__
        content.update(_defaults(release))
        content.update(values)
        content["release"] = release_number(release)
        content["world_size"] = world_size
        content["machine"] = machine
        content["global_batch_size_given"] = content["global_batch_size"] is not None


@functools.cache
def release_number(release: str) -> tuple[int, ...]:
    """Read the version out of a tag: ``core_v0.16.1`` → ``(0, 16, 1)``."""
    return tuple(int(part) for part in release.rpartition("v")[2].split(".") if part.isdigit())


@functools.cache
def _defaults(release: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for known in known_releases():
        values.update(dict.fromkeys(argument.dest for argument in argument_table(known)))
    values.update(dict.fromkeys(DERIVED))
    taken: set[str] = set()
    for argument in argument_table(release):
        if argument.dest not in taken:  # of several arguments with one dest the first one's default holds
            taken.add(argument.dest)
            values[argument.dest] = argument.default
    return values
