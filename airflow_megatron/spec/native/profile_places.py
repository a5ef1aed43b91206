"""Where a cluster profile gives the values of jobs, for messages."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.documents.project import clusters_dir
from airflow_megatron.spec.documents.yaml_document import load_yaml_file
from airflow_megatron.spec.model.cluster_profile import profile_path

if TYPE_CHECKING:
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile


class ProfilePlaces:
    """Places in the file of a profile, which is read when the first one is needed.

    :param cluster: the profile
    """

    def __init__(self, cluster: ClusterProfile) -> None:
        self.cluster = cluster

    @functools.cached_property
    def document(self) -> YamlDocument | None:
        """The file; None if it cannot be read, as for a profile that is not one of this project's."""
        try:
            return load_yaml_file(clusters_dir() / f"{self.cluster.name}.yaml")
        except SpecError:
            return None

    def problem(self, path: KeyPath, message: str, hint: str = "") -> Problem:
        """Return a problem at a place of the profile."""
        if self.document is None:
            return Problem(profile_path(self.cluster.name), 0, 0, message, hint)
        return self.document.problem(path, message, hint)

    def of_partition(self, partition: str, key: str) -> KeyPath | None:
        """Return where the section of a partition gives a key of ``slurm``, None if it does not."""
        return self._known(("partitions", partition, "slurm", key))

    def of_slurm(self, partition: str, key: str) -> KeyPath | None:
        """Return where the profile gives a key of ``slurm`` to the jobs on a partition, None if it does not."""
        return self.of_partition(partition, key) or self._known(("slurm", key))

    def of_option(self, partition: str, word: str) -> KeyPath | None:
        """Return where the profile gives jobs on a partition a word of ``slurm.options``, None if it does not."""
        for section, path in (
            (self.cluster.partition(partition).slurm, ("partitions", partition, "slurm", "options")),
            (self.cluster.slurm, ("slurm", "options")),
        ):
            if any(word in option.split() for option in section.options):
                return self._known(path)
        return None

    def of_argument(self, trainer: str, name: str) -> KeyPath | None:
        """Return where the profile gives an argument to a trainer, None if it does not."""
        return self._known(("trainers", trainer, "arguments", name))

    def _known(self, path: KeyPath) -> KeyPath | None:
        return path if self.document is not None and path in self.document.positions else None
