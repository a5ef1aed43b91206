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

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

INDEX_CACHE_STARTER: Final = "upstream_index_cache.py"
"""The program that lets upstream share a folder of index files, which it writes in place."""


class MegatronTrainer(Trainer):
    """A trainer whose command line is Megatron's, or much like it. It holds no state: one object serves all jobs."""

    checked_by: ClassVar[Literal["upstream_rules", "program", "nothing"]] = "nothing"
    """What is asked before submission whether it takes a command line: the rules of the Megatron release, or this
    project's ``check_arguments.py``. What the rules know of data sets is checked of the other trainers too."""
    keeps_bounds: ClassVar[bool] = False
    """It continues with the bounds of the learning rate that a checkpoint holds, or refuses others."""
    refuses_long_decay: ClassVar[bool] = False
    """It ends when the WSD decay is longer than the schedule; others begin in the middle of the decay."""
    leaves_out_saving: ClassVar[bool] = True
    """``save_interval: 0`` means no checkpoints at all."""
    evaluates_at_end: ClassVar[bool] = True
    """Its log shows a loss on the test set at the end, where the arguments ask for one."""
    shares_index_cache: ClassVar[bool] = False
    """Its jobs may build the index files of their data in one folder at the same time: without a ``data_cache_path`` of
    the user's they get that of their sweep."""
    not_converted: ClassVar[str] = ""
    """Why the converter does not read its checkpoints, and what to do instead; empty if it does."""
    no_estimates: ClassVar[str] = ""
    """Why memory and time are not estimated; empty if they are."""

    def table(self, release: str, entry: str | None) -> ArgumentTable:
        """Return the arguments that it takes: the file ``arguments.json`` beside its class, when not overridden.

        :param release: the Megatron release of the sweep
        :param entry: the script that ``entry:`` names, None for its own of GPT
        :raises ArgumentError: if the release has no such script
        """
        return read_table(Path(inspect.getfile(type(self))).with_name("arguments.json"))

    def search_table(self, table: ArgumentTable) -> ArgumentTable:
        """Return its table with the options of a search for a learning rate, where they are not among its own."""
        return table

    def parser_name(self, table: ArgumentTable, release: str) -> str:
        """Return what messages call the parser of its arguments."""
        return release

    def default_arguments(self, job: Job) -> dict[str, Any]:
        """Return the default arguments of its jobs, which the cluster, the stage kind or the spec may override."""
        return {}

    def missing_arguments(self, table: ArgumentTable) -> dict[str, Any]:
        """Return values of arguments that have no default and must be given, unless the kind of stage gives them."""
        return {}

    def search_arguments(self, job: Job, arguments: dict[str, Any], table: ArgumentTable) -> dict[str, Any]:
        """Return the arguments of a search for a learning rate.

        :param arguments: those that a training would get
        :raises CommandError: if they do not fit a search
        """
        return arguments

    def written_arguments(self, job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the paths of files in place of what :meth:`files` writes into them."""
        return arguments

    @abstractmethod
    def command(
        self, job: Job, cluster: ClusterProfile, arguments: Mapping[str, Any], table: ArgumentTable
    ) -> tuple[str, ...]:
        """Return the words that each process runs.

        :param arguments: name → value, with all defaults
        :raises ArgumentError: for an argument that is unknown or of the wrong type
        :raises CommandError: for what else is missing
        """

    def launches_itself(self, job: Job, cluster: ClusterProfile) -> bool:
        """Return whether a job's command starts the processes itself."""
        return False

    def files(self, job: Job, arguments: Mapping[str, Any], table: ArgumentTable) -> dict[str, str]:
        """Return the files that a job's script writes before the command starts: path → text.

        :raises ArgumentError: for arguments that do not fit together
        """
        return {}

    def program_name(self, release: str) -> str:
        """Return what messages call its checkout."""
        return f"Megatron-LM {release}"


def trainer_called(name: str) -> MegatronTrainer:
    """Return the trainer of a name.

    :raises KeyError: if nothing registers it
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
