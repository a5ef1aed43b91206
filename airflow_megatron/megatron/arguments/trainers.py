"""The arguments that each trainer takes.

``megatron_lm`` takes those of its release, or of the fork that the cluster has. ``megatron_core`` takes some of
them and more of its own; its table in ``trainer_arguments/`` is what ``airflow-megatron megatron-args
Megatron-LM --release megatron_core`` writes. That of ``megatron_deepspeed`` is made in the same way from
argonne-lcf/Megatron-DeepSpeed, commit ffa3456d.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.lr_search import KIND as SEARCH
from airflow_megatron.megatron.arguments.lr_search import with_search
from airflow_megatron.megatron.arguments.tables import (
    ArgumentError,
    ArgumentTable,
    argument_table,
    program_table,
    read_table,
    releases_with,
    with_extra,
)
from airflow_megatron.spec.model.schema import declarations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import Trainer, TrainerSection

UPSTREAM: Final = "megatron_lm"
TABLES_DIR: Final = Path(__file__).with_name("trainer_arguments")

_extended: dict[tuple[str, str, str, str, frozenset[str], str | None], ArgumentTable] = {}


def trainer_table(
    trainer: Trainer,
    release: str,
    cluster: ClusterProfile,
    declared: Mapping[str, Mapping[str, Any]],
    entry: str | None = None,
    *,
    search: bool = False,
) -> ArgumentTable:
    """Return the arguments that a trainer takes on a cluster.

    :param trainer: of the sweep.
    :param release: the Megatron release of the sweep.
    :param cluster: may name the table of a fork, and declare arguments.
    :param declared: the arguments that the spec declares, by flag; they win over the cluster's.
    :param entry: the script of upstream's that is run, ``pretrain_gpt.py`` when left out.
    :param search: with the options of a search for a learning rate, where the trainer itself has none.
    :raises ArgumentError: for an unknown release, and for a declaration that makes no sense.
    :raises OSError, ValueError: for a fork's table that cannot be read.
    """
    section = cluster.trainer(trainer)
    extra = {**declarations(section.extra_arguments), **declared}
    argument_table(release)  # unknown releases are refused whichever trainer it is
    packages = frozenset(section.packages)
    key = (trainer, release, section.arguments_table or "", repr(extra), packages, entry)
    table = _extended.get(key)
    if table is None:
        table = _own_table(trainer, release, section, entry).with_packages(packages)
        table = _extended[key] = with_extra(table, extra) if extra else table
    return with_search(table, TABLES_DIR / "megatron_core.json") if search and trainer == UPSTREAM else table


def job_table(job: Job, cluster: ClusterProfile) -> ArgumentTable:
    """Return the arguments that a job's trainer takes.

    :raises ArgumentError, OSError, ValueError: as :func:`trainer_table`.
    """
    return trainer_table(
        job.trainer,
        job.release,
        cluster,
        job.extra_arguments,
        job.entry or None,
        search=job.kind == SEARCH,
    )


def _own_table(trainer: Trainer, release: str, section: TrainerSection, entry: str | None) -> ArgumentTable:
    if section.arguments_table:
        return read_table(Path(section.arguments_table))
    if trainer == UPSTREAM:
        if entry is not None and release not in (known := releases_with(entry)):
            raise ArgumentError(entry, release, f"{release} has no such script; {', '.join(known)} have it")
        return program_table(release) if entry is None else program_table(release, entry)
    return read_table(TABLES_DIR / f"{trainer}.json")
