"""Trainers: what runs the trainings of a sweep. Each is a class, found by the name that ``trainer:`` gives.

This package's own stand in :mod:`airflow_megatron.megatron.trainers`, a folder each. Another package registers its own
with an entry point of the group ``airflow_megatron.trainers``; CONTRIBUTING.md shows one. Here stands what is known
without a table of arguments; every trainer extends :class:`airflow_megatron.megatron.trainers.trainer.MegatronTrainer`.
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
    """It has training scripts for other models than GPT, which ``entry:`` names."""
    ramp_up_ignored_since: ClassVar[tuple[int, ...] | None] = None
    """The first Megatron release with which it does not grow the batch, ``rampup_batch_size``."""
    launchers: ClassVar[tuple[str, ...]] = ()
    """Launchers from which it takes its ranks, besides those that serve every trainer."""
    always_distributed: ClassVar[bool] = False
    """Whether it needs a rendezvous address even for a single rank."""
    resumes_by_tag: ClassVar[bool] = False
    """Whether a resumed attempt gets ``--load-tag`` with the directory of the newest checkpoint."""
    suggests_afterwards: ClassVar[bool] = False
    """Its search for a learning rate writes the curve alone; ``lr_finder.py suggest`` reads it when it has ended."""
    environment_is_ours: ClassVar[bool] = False
    """``cluster install`` makes its environment, from this package's lock file."""
    checkout_script: ClassVar[str] = ""
    """The script that puts its checkout on a machine: ``SCRIPT RELEASE DIRECTORY``; empty if there is none."""

    def load_words(self, iteration: int) -> tuple[str, ...]:
        """Return the arguments that choose one checkpoint of the directory that it loads from."""
        return ("--ckpt-step", str(iteration))

    def checkpoint_directory(self, iteration: int) -> str:
        """Return the name of the directory of a checkpoint."""
        return directory_name(iteration)

    def judge_checkpoint(self, files: Mapping[str, int], *, passed: bool) -> tuple[Completeness, str] | None:
        """Judge a checkpoint directory, of any trainer, in a layout of this one's own; None for every other layout.

        Megatron-LM's formats and DeepSpeed's are known to all trainers. Directories are named as Megatron-LM or
        DeepSpeed names them (:meth:`checkpoint_directory`), whatever is in them.

        :param files: path below the directory, two levels deep → size in bytes
        :param passed: the tracker holds this iteration or a later one
        :return: whether it can be loaded (``incomplete``: it must not be; ``unverifiable``: the listing cannot
            decide), and one sentence that names what decided
        """
        return None

    def in_megatrons_words(self, block: bytes) -> bytes:
        """Return whole lines of a log, of any trainer, with those of this one in Megatron-LM's words.

        :return: the block itself where there is none
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
