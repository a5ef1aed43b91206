"""The arguments that a trainer takes on a cluster."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.tables import (
    ArgumentTable,
    argument_table,
    file_state,
    read_table,
    with_extra,
)
from airflow_megatron.megatron.trainers.trainer import MegatronTrainer, trainer_called
from airflow_megatron.spec.model.schema import declarations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import TrainerName, TrainerSection


TRAINERS_DIR: Final = Path(__file__).parent
"""A folder for each trainer, with ``arguments.json`` if it has its own table."""
_MOST_EXTENDED: Final = 32
"""Maximum number of cached tables: each spec may declare arguments of its own."""
_extended: OrderedDict[tuple[object, ...], ArgumentTable] = OrderedDict()


def trainer_table(
    trainer: TrainerName,
    release: str,
    cluster: ClusterProfile,
    declared: Mapping[str, Mapping[str, Any]],
    entry: str | None = None,
    *,
    search: bool = False,
) -> ArgumentTable:
    """Return the arguments that a trainer takes on a cluster.

    :param trainer: trainer of the sweep.
    :param release: the Megatron release of the sweep.
    :param cluster: its profile, which may name the table of a fork, and declare arguments.
    :param declared: the arguments that the spec declares, by flag; they override the cluster's.
    :param entry: upstream's script; default: ``pretrain_gpt.py``.
    :param search: whether to add the options of a search for a learning rate, if the trainer has none.
    :raises ArgumentError: for an unknown release, and for an invalid declaration.
    :raises OSError, ValueError: for a fork's table that cannot be read.
    """
    program, section = trainer_called(trainer), cluster.trainer(trainer)
    extra = (
        {**declarations(section.extra_arguments), **declared} if section.extra_arguments or declared else {}
    )
    packages = frozenset(section.packages)
    own = section.arguments_table
    written = file_state(Path(own)) if own else None
    key = (trainer, release, own, written, repr(extra) if extra else "", packages, entry)
    table = _extended.get(key)
    if table is None:
        argument_table(release)  # unknown releases are refused for every trainer
        table = _own_table(program, release, section, entry).with_packages(packages)
        table = _extended[key] = with_extra(table, extra) if extra else table
        while len(_extended) > _MOST_EXTENDED:
            _extended.popitem(last=False)
    return program.search_table(table) if search else table


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
        search=job.stage_kind.searches,
    )


def _own_table(
    trainer: MegatronTrainer, release: str, section: TrainerSection, entry: str | None
) -> ArgumentTable:
    return (
        read_table(Path(section.arguments_table))
        if section.arguments_table
        else trainer.table(release, entry)
    )
