"""Upstream Megatron-LM's training scripts.

They accept the arguments of the release, or those of the fork on the cluster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments import lr_search
from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import (
    PRETRAIN_GPT,
    ArgumentError,
    program_table,
    releases_with,
)
from airflow_megatron.megatron.trainers.trainer import (
    INDEX_CACHE_STARTER,
    RESHARDABLE,
    MegatronTrainer,
    checkout_of,
    shared_index_cache,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.arguments.tables import ArgumentTable
    from airflow_megatron.megatron.arguments.values import ArgumentValues
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

#: Default interval of validation before core_v0.16. Later releases have no default, and a training without an interval
#: fails at its start.
_EVAL_INTERVAL: Final = 1000
#: The table of ``megatron_core``, whose search has the same options.
_SEARCH_OPTIONS: Final = Path(__file__).parents[1] / "megatron_core" / "arguments.json"


class MegatronLM(MegatronTrainer):
    """Upstream's ``pretrain_gpt.py``, or the script in ``entry:``, in a checkout on the cluster."""

    has_entries = True
    ramp_up_ignored_since = (0, 18)
    always_distributed = True
    checkout_script = "Megatron-LM/checkout.sh"
    checked_by = "upstream_rules"
    keeps_bounds = True
    loads_sgd = False
    shares_index_cache = True

    def table(self, release: str, entry: str | None) -> ArgumentTable:
        """Return the arguments of a release's script."""
        if entry is not None and release not in (known := releases_with(entry)):
            raise ArgumentError(entry, release, f"{release} has no such script; {', '.join(known)} have it")
        return program_table(release) if entry is None else program_table(release, entry)

    def state_needs_layout(self, arguments: ArgumentValues) -> bool:
        """Return whether the state is divided in the way that loads fastest; earlier releases lack the choice."""
        return (
            bool(arguments.value("use_distributed_optimizer"))
            and arguments.value("ckpt_format") == "torch_dist"
            and arguments.value(RESHARDABLE) is False
        )

    def search_table(self, table: ArgumentTable) -> ArgumentTable:
        """Return a table with the options of the search, which precedes upstream's script."""
        return lr_search.with_search(table, _SEARCH_OPTIONS)

    def missing_arguments(self, table: ArgumentTable) -> dict[str, Any]:
        """Return the interval of validation for releases that have no default."""
        every = table.get("eval_interval")
        return {"eval_interval": _EVAL_INTERVAL} if every and every.default is None else {}

    def search_arguments(self, job: Job, arguments: dict[str, Any], table: ArgumentTable) -> dict[str, Any]:
        """Return the arguments of a short training, and of the search that precedes it."""
        return lr_search.search_arguments(job, arguments, table)

    def command(
        self, job: Job, cluster: ClusterProfile, arguments: Mapping[str, Any], table: ArgumentTable
    ) -> tuple[str, ...]:
        """Return the command, with the programs that start upstream's script before it."""
        words, scripts = to_argv(arguments, table), cluster.megatron_lm_dir.rstrip("/")
        starters = [f"{scripts}/upstream_on_cpu.py"] if cluster.trainer(job.trainer).device == "cpu" else []
        if arguments.get("data_cache_path") == shared_index_cache(job, cluster):
            starters += [f"{scripts}/{INDEX_CACHE_STARTER}"]
        starters += [f"{scripts}/{lr_search.STARTER}"] if job.stage_kind.searches else []
        script = f"{checkout_of(job, cluster)}/{job.entry or PRETRAIN_GPT}"
        return (cluster.python_of(job.trainer), *starters, script, *words)
