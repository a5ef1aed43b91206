"""A sweep in another tool's language, with the sidecar of its file."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from airflow_megatron.spec.model.schema import SweepSpecSection
from airflow_megatron.spec.model.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import YamlDocument
    from airflow_megatron.spec.foreign.sidecar import Sidecar
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import TrainerName
    from airflow_megatron.spec.model.stage_tree import StageInstance
    from airflow_megatron.spec.model.sweep import Point, SweepSettings

RELEASE: Final[str] = SweepSpecSection.model_fields["release"].default
TRAINER: Final[TrainerName] = "megatron_lm"
"""What the tools whose files are read here are made for; a sidecar can name another."""
_OF_TRAININGS: Final = ("trainer", "release", "health")
_RESTARTS_OF_TRAININGS: Final = ("chain", "nodes", "after_rollback")


_NAME: Final = re.compile(r"(?<![\w./-])(--)?([a-z][a-z0-9]*(?:[_-][a-z0-9]+)*)(?![\w/-])")
"""An argument in a message: ``--global-batch-size``, ``global_batch_size`` or ``lr``."""


class ForeignSweep(Sweep):
    """A sweep in another tool's language.

    :param name: name of the sweep, unless the sidecar names it
    :param document: its YAML document, for messages
    :param settings: settings for Airflow, unless the sidecar sets them
    :param tree: its stages, parents first
    :param sidecar: the sidecar of the file
    """

    def __init__(
        self,
        name: str,
        document: YamlDocument,
        settings: SweepSettings,
        tree: tuple[StageInstance, ...],
        sidecar: Sidecar,
    ) -> None:
        super().__init__(sidecar.section.name or name, document, sidecar.settings(settings), tree)
        self.sidecar = sidecar

    @property
    def trainer(self) -> TrainerName:
        """The trainer of its trainings."""
        return self.sidecar.section.trainer or TRAINER

    @property
    def release(self) -> str:
        """The Megatron release that defines their arguments."""
        return self.sidecar.section.release or RELEASE

    def argument_key(self, argument: str) -> str:
        """Return the key of the file that gives a Megatron argument, empty if there is none."""
        return ""

    def in_its_keys(self, text: str, names: Iterable[str] = ()) -> str:
        """Return a message in which arguments have the names of the file's keys, which may be quite different."""
        subjects = frozenset(names)

        def key(found: re.Match[str]) -> str:
            argument = found[2].replace("-", "_")
            is_argument = found[1] or "_" in found[2] or found[2] in subjects
            own = self.argument_key(argument) if is_argument else ""
            return found[0] if not own or own.endswith(f".{found[0]}") else own

        return _NAME.sub(key, text)

    def jobs(self, point: Point, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs of one point, parents first.

        :raises SpecError: if a value of the file is invalid
        """
        return [self.sidecar.job(job, cluster) for job in self.own_jobs(point, cluster)]

    def unused_settings(self, *more: str) -> Iterator[Problem]:
        """Yield a warning about the keys of the sidecar that have no effect on this sweep.

        :param more: further such keys
        """
        of_trainings = _OF_TRAININGS if all(stage.kind == "command" for stage in self.tree) else ()
        unused = [
            key for key in (*of_trainings, *more) if self.sidecar.given.get(key) not in (None, "off", False)
        ]
        restart = self.sidecar.section.restart
        if of_trainings and restart is not None:
            default = type(restart)()
            unused += [
                f"restart.{key}"
                for key in _RESTARTS_OF_TRAININGS
                if getattr(restart, key) != getattr(default, key)
            ]
        if unused:
            yield self.sidecar.document.problem(
                tuple(unused[0].split(".")),
                f"{', '.join(unused)}: no effect, since every job runs a script or command of the file's",
            )

    @abstractmethod
    def own_jobs(self, point: Point, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs of one point from the file, without its sidecar."""
