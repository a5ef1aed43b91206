"""The values that rules read: arguments of a command line, and properties of the job's machines."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.arguments.tables import argument_table, known_releases, program_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    "has_other_arguments",
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
_ABOVE_CAPABILITIES = 50


@dataclass(frozen=True)
class Machine:
    """Properties of a job's nodes that rules depend on.

    :param transformer_engine: version of Transformer Engine, or None if it is not installed
    :param compute_capability: major number of the GPUs' CUDA compute capability (8 Ampere, 9 Hopper, 10
        Blackwell)
    :param environment: environment variables of the job
    :param packages: optional Python packages that are installed, by import name
    :param missing: packages that are not installed although Transformer Engine is
    :param device: ``cpu`` if ``Megatron-LM/upstream_on_cpu.py`` starts the training
    :param is_complete: whether Transformer Engine is certainly missing if it is not named, as in a cluster profile
    :raises ValueError: by :meth:`of`, for a version or capability that is not a number
    """

    transformer_engine: tuple[int, ...] | None = None
    compute_capability: int = 9
    environment: Mapping[str, str] = field(default_factory=lambda: {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    packages: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    device: str = "cuda"
    is_complete: bool = False

    @classmethod
    def of(
        cls,
        *,
        transformer_engine: str | None = None,
        compute_capability: str | float | None = None,
        environment: Mapping[str, object] | None = None,
        packages: Iterable[str] = (),
        missing: Iterable[str] = (),
    ) -> Machine:
        """Return the machine described by strings.

        :param transformer_engine: ``2.8`` or ``2.8.0.dev0+abc``; None for none
        :param compute_capability: ``9`` or ``9.0``; None for 9
        :param environment: variables of the job, None for what job scripts set
        """
        numbers = re.findall(r"\d+", (transformer_engine or "").partition("+")[0].partition("dev")[0])
        if transformer_engine and not re.fullmatch(r"\d+(\.\w+)*(\+.*)?", transformer_engine):
            raise ValueError(f"{transformer_engine!r} is not a version of Transformer Engine; write 2.8")
        try:
            number = float(compute_capability) if compute_capability is not None else 9.0
        except ValueError:
            number = 0.0
        if not 1 <= number < _ABOVE_CAPABILITIES:  # 90 is how compilers write 9.0: sm_90
            raise ValueError(
                f"{compute_capability!r} is not a compute capability; write 9 (or 9.0) for Hopper"
            )
        capability = int(number)
        given: dict[str, Any] = (
            {} if environment is None else {"environment": {k: str(v) for k, v in environment.items()}}
        )
        return cls(
            transformer_engine=tuple(int(number) for number in numbers) or None,
            compute_capability=capability,
            packages=frozenset(packages),
            missing=frozenset(missing),
            **given,
        )

    def has_transformer_engine(self, *version: int) -> bool:
        """Return whether Transformer Engine of at least ``version`` is installed."""
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
        """Add the release's defaults for values that are not given."""
        content = self.__dict__
        content.update(_defaults(release))
        content.update(values)
        for name, value in program_table(release).program_defaults.items():
            if content[name] is None:  # as validate_args does with the defaults of its program
                content[name] = value
        content["release"] = release_number(release)
        content["world_size"] = world_size
        content["machine"] = machine
        content["global_batch_size_given"] = content["global_batch_size"] is not None
        content["has_other_arguments"] = (
            not values.keys() <= _defaults(release).keys()
        )  # of a fork or a package


@functools.cache
def release_number(release: str) -> tuple[int, ...]:
    """Return the version in a tag: ``core_v0.16.1`` → ``(0, 16, 1)``."""
    return tuple(int(part) for part in release.rpartition("v")[2].split(".") if part.isdigit())


@functools.cache
def _defaults(release: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for known in known_releases():
        values.update(dict.fromkeys(argument.dest for argument in argument_table(known)))
    values.update(dict.fromkeys(DERIVED))
    taken: set[str] = set()
    for argument in program_table(release):
        if argument.dest not in taken:  # of several arguments with one dest the first one's default holds
            taken.add(argument.dest)
            values[argument.dest] = argument.default
    return values
