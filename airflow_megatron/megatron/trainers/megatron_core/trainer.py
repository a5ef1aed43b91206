"""The project's own trainer, ``Megatron-LM/pretrain_gpt.py``.

It accepts some of the release's arguments and additional ones; ``arguments.json`` is the output of ``airflow-megatron
megatron-args Megatron-LM --release megatron_core``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.trainers.trainer import MegatronTrainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.megatron.arguments.values import ArgumentValues
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

_MEGATRON_CORES: Final = frozenset(("adam", "adamw", "sgd"))
"""megatron-core's optimizers; each model-parallel process saves the state of the others as one object."""


class MegatronCore(MegatronTrainer):
    """A thin driver over the package megatron-core, for laptops, tests and small runs."""

    checked_by = "program"
    environment_is_ours = True
    refuses_long_decay = True

    def state_needs_layout(self, arguments: ArgumentValues) -> bool:
        """Return whether the state is that of a distributed optimizer, or of another package's optimizer."""
        own = arguments.value("optimizer") in _MEGATRON_CORES
        return bool(arguments.value("use_distributed_optimizer")) or not own

    def command(
        self, job: Job, cluster: ClusterProfile, arguments: Mapping[str, Any], table: ArgumentTable
    ) -> tuple[str, ...]:
        """Return the command; the program is in this project's folder on the cluster."""
        program = f"{cluster.megatron_lm_dir.rstrip('/')}/pretrain_gpt.py"
        return (cluster.python_of(job.trainer), program, *to_argv(arguments, table))
