"""Checks of other tools' files that are possible before jobs exist: the release and the trainer's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.arguments.tables import ArgumentError
from airflow_megatron.megatron.trainers.trainer_table import trainer_table
from airflow_megatron.spec.documents.errors import SpecError

if TYPE_CHECKING:
    from airflow_megatron.spec.foreign.foreign_sweep import ForeignSweep
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile


def check_trainer(sweep: ForeignSweep, cluster: ClusterProfile) -> None:
    """Check that the release and the cluster's settings of the trainer can be read.

    :raises SpecError: at the sidecar or the file
    """
    try:
        trainer_table(sweep.trainer, sweep.release, cluster, {})
    except ArgumentError as error:
        raise SpecError(sweep.document.problem(("release",), str(error))) from error
    except (OSError, ValueError) as error:
        section = f"trainers: {{{sweep.trainer}: {{arguments_table: …}}}}"
        message = f"cluster {cluster.name}, {section}: {error}"
        raise SpecError(sweep.document.problem(("cluster",), message)) from error
