"""Trainers: the programs of the trainings of a sweep. Each is a class, found by the name in ``trainer:``.

Those of this package are in :mod:`airflow_megatron.megatron.trainers`, one folder each. Another package registers its
own with an entry point of the group ``airflow_megatron.trainers``; CONTRIBUTING.md shows one. This module has the
properties that need no table of arguments; every trainer extends
:class:`airflow_megatron.megatron.trainers.trainer.MegatronTrainer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, Literal

from airflow_megatron.spec.documents.checkpoint_directories import directory_name
from airflow_megatron.spec.registry.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping

Completeness = Literal["complete", "incomplete", "unverifiable"]


class Trainer:
    """A trainer. The defaults are those of a fork of Megatron-LM with additional arguments."""

    has_entries: ClassVar[bool] = False
    """Whether it has training scripts for other models than GPT, selected by ``entry:``."""
    ramp_up_ignored_since: ClassVar[tuple[int, ...] | None] = None
    """The first Megatron release with which it does not support ``rampup_batch_size``."""
    launchers: ClassVar[tuple[str, ...]] = ()
    """Launchers from which it reads its ranks, in addition to those for every trainer."""
    always_distributed: ClassVar[bool] = False
    """Whether it needs a rendezvous address even for a single rank."""
    resumes_by_tag: ClassVar[bool] = False
    """Whether a resumed attempt gets ``--load-tag`` with the directory of the newest checkpoint."""
    suggests_afterwards: ClassVar[bool] = False
    """Whether its search for a learning rate writes only the curve, which ``lr_finder.py suggest`` reads at the
    end."""
    environment_is_ours: ClassVar[bool] = False
    """Whether ``cluster install`` creates its environment, from this package's lock file."""
    checkout_script: ClassVar[str] = ""
    """The script that creates its checkout: ``SCRIPT RELEASE DIRECTORY``; empty if there is none."""

    def has_argument(self, name: str, release: str) -> bool:
        """Return whether its command line has an argument of this name, with underscores, in a release."""
        return False

    def load_words(self, iteration: int) -> tuple[str, ...]:
        """Return the arguments that select one checkpoint in its load directory."""
        return ("--ckpt-step", str(iteration))

    def checkpoint_directory(self, iteration: int) -> str:
        """Return the name of the directory of a checkpoint."""
        return directory_name(iteration)

    def judge_checkpoint(self, files: Mapping[str, int], *, passed: bool) -> tuple[Completeness, str] | None:
        """Judge a checkpoint directory, of any trainer, in the layout of this trainer; None for other layouts.

        The formats of Megatron-LM and DeepSpeed are supported for all trainers. Directories have the names of
        Megatron-LM or DeepSpeed (:meth:`checkpoint_directory`), regardless of their content.

        :param files: path below the directory, two levels deep → size in bytes
        :param passed: whether the tracker has this iteration or a later one
        :return: whether it can be loaded (``incomplete``: it must not be; ``unverifiable``: the listing is not
            decisive), and one sentence with the decisive fact
        """
        return None

    def in_megatrons_words(self, block: bytes) -> bytes:
        """Return complete lines of a log, of any trainer, with those of this trainer in Megatron-LM's wording.

        :return: the block itself if there are none
        """
        return block


_TRAINERS: Final = "airflow_megatron.megatron.trainers"
TRAINERS: Final = Registry(
    Trainer,
    "airflow_megatron.trainers",
    {
        "megatron_core": f"{_TRAINERS}.megatron_core.trainer:MegatronCore",
        "megatron_lm": f"{_TRAINERS}.megatron_lm.trainer:MegatronLM",
        "megatron_deepspeed": f"{_TRAINERS}.megatron_deepspeed.trainer:MegatronDeepSpeed",
    },
)
