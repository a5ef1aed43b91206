"""The properties of a trainer that need a table of arguments; see :mod:`airflow_megatron.spec.model.trainers`."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.arguments.tables import ArgumentTable, read_table
from airflow_megatron.spec.layout.run_layout import SweepLayout
from airflow_megatron.spec.model.trainers import TRAINERS, Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.arguments.values import ArgumentValues
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

RESHARDABLE: Final = "dist_ckpt_optim_fully_reshardable"
"""With it, a distributed optimizer's state can be loaded with other tensor- and pipeline-parallel sizes.

Upstream raises ``RuntimeError`` otherwise (``load_checkpoint`` in ``megatron/training/checkpointing.py``).
"""
INDEX_CACHE_STARTER: Final = "upstream_index_cache.py"
"""The program that lets upstream share a folder of index files, which it writes in place."""


class MegatronTrainer(Trainer):
    """A trainer with a command line like that of Megatron. It has no state: one object serves all jobs."""

    checked_by: ClassVar[Literal["upstream_rules", "program", "nothing"]] = "nothing"
    """The check of command lines before submission: the rules of the Megatron release, or this project's
    ``check_arguments.py``. The rules about data sets are also checked for the other trainers."""
    keeps_bounds: ClassVar[bool] = False
    """Whether it continues with the bounds of the learning rate in a checkpoint, or refuses others."""
    loads_sgd: ClassVar[bool] = True
    """Whether it loads the state of SGD from its checkpoints in the format ``torch_dist``."""
    refuses_long_decay: ClassVar[bool] = False
    """Whether it fails if the WSD decay is longer than the schedule; others begin in the middle of the decay."""
    leaves_out_saving: ClassVar[bool] = True
    """Whether ``save_interval: 0`` means no checkpoints."""
    evaluates_at_end: ClassVar[bool] = True
    """Whether its log shows a loss on the test set at the end, if the arguments request one."""
    shares_index_cache: ClassVar[bool] = False
    """Whether its jobs may build the index files of their data in one folder at the same time; without a
    ``data_cache_path`` in the spec, they use that of their sweep."""
    not_converted: ClassVar[str] = ""
    """Why the converter cannot read its checkpoints, and what to do instead; empty if it can."""
    no_estimates: ClassVar[str] = ""
    """Why memory and time are not estimated; empty if they are."""

    def table(self, release: str, entry: str | None) -> ArgumentTable:
        """Return its arguments; default: the file ``arguments.json`` beside its class.

        :param release: the Megatron release of the sweep
        :param entry: the script in ``entry:``, None for its script for GPT
        :raises ArgumentError: if the release has no such script
        """
        return read_table(Path(inspect.getfile(type(self))).with_name("arguments.json"))

    def has_argument(self, name: str, release: str) -> bool:
        """Return whether its table has the argument."""
        return self.table(release, None).get(name) is not None

    def state_needs_layout(self, arguments: ArgumentValues) -> bool:
        """Return whether the optimizer's state in a checkpoint can be loaded only with its model-parallel sizes.

        :param arguments: those of the training that writes the checkpoint
        """
        return False

    def search_table(self, table: ArgumentTable) -> ArgumentTable:
        """Return its table with the options of a search for a learning rate, if its own table lacks them."""
        return table

    def parser_name(self, table: ArgumentTable, release: str) -> str:
        """Return the name of its argument parser in messages."""
        return release

    def default_arguments(self, job: Job) -> dict[str, Any]:
        """Return the default arguments of its jobs, which the cluster, the stage kind or the spec may override."""
        return {}

    def missing_arguments(self, table: ArgumentTable) -> dict[str, Any]:
        """Return values of required arguments without a default, unless the kind of stage sets them."""
        return {}

    def search_arguments(self, job: Job, arguments: dict[str, Any], table: ArgumentTable) -> dict[str, Any]:
        """Return the arguments of a search for a learning rate.

        :param arguments: the arguments of a training
        :raises CommandError: if they are not possible in a search
        """
        return arguments

    def written_arguments(self, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the paths of the files that :meth:`files` writes."""
        return arguments

    @abstractmethod
    def command(
        self, job: Job, cluster: ClusterProfile, arguments: Mapping[str, Any], table: ArgumentTable
    ) -> tuple[str, ...]:
        """Return the words that each process runs.

        :param arguments: name → value, with all defaults
        :raises ArgumentError: for an argument that is unknown or of the wrong type
        :raises CommandError: if something else is missing
        """

    def launches_itself(self, job: Job, cluster: ClusterProfile) -> bool:
        """Return whether a job's command starts the processes itself."""
        return False

    def files(self, job: Job, arguments: Mapping[str, Any], table: ArgumentTable) -> dict[str, str]:
        """Return the files that a job's script writes before the command starts: path → text.

        :raises ArgumentError: for inconsistent arguments
        """
        return {}

    def program_name(self, release: str) -> str:
        """Return the name of its checkout in messages."""
        return f"Megatron-LM {release}"


def trainer_called(name: str) -> MegatronTrainer:
    """Return the trainer of a name.

    :raises KeyError: if it is not registered
    :raises TypeError: if it does not extend :class:`MegatronTrainer`
    """
    trainer = TRAINERS.objects[name]
    if not isinstance(trainer, MegatronTrainer):
        raise TypeError(f"{type(trainer).__name__}, the trainer {name}, does not extend MegatronTrainer")
    return trainer


def shared_index_cache(job: Job, cluster: ClusterProfile) -> str:
    """Return the folder in which all trainings of a sweep keep the index files of their data."""
    return SweepLayout.of(cluster.run_root, job.sweep).data_cache_dir


def checkout_of(job: Job, cluster: ClusterProfile) -> str:
    """Return the folder of the trainer's checkout on a cluster.

    :raises CommandError: if the profile names none
    """
    checkout = cluster.trainer(job.trainer).checkout_of(job.release)
    if not checkout:
        raise CommandError(
            "trainer",
            f"cluster {cluster.name} has no checkout of {trainer_called(job.trainer).program_name(job.release)}; "
            f"set trainers: {{{job.trainer}: {{checkout: …}}}} in its profile",
        )
    return checkout.rstrip("/")
