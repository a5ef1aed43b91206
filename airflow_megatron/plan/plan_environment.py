"""Inputs that turn jobs into scripts: the cluster's profile, templates, and files that the profile names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.submission.job_script import template_name, template_texts
from airflow_megatron.spec.documents.project import clusters_dir
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_megatron.plan.pins.pin_store import PinStore
    from airflow_megatron.spec.model.jobs import Job


@dataclass(frozen=True)
class PlanEnvironment:
    """A cluster profile with its files, either the current ones or those that a run has pinned.

    :param cluster: the resolved profile
    :param templates: sbatch templates, their folder or name → text
    :param signatures: signature files that the profile names, name → content
    :param tables: argument tables that the profile's trainers name, path → content
    """

    cluster: ClusterProfile
    templates: Path | Mapping[str, str]
    signatures: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def now(cls, cluster: ClusterProfile | str) -> PlanEnvironment:
        """Return a profile with its current files.

        :raises airflow_megatron.spec.documents.errors.SpecError: if the profile is missing or invalid
        """
        profile = load_cluster(cluster) if isinstance(cluster, str) else cluster
        paths = {section.arguments_table for section in profile.trainers.values()} - {None}
        return cls(
            profile,
            profile.templates_folder,
            {name: _text(clusters_dir() / name) for name in profile.signatures},
            {str(path): _text(Path(str(path))) for path in sorted(paths, key=str)},
        )

    def to_json(self, jobs: Iterable[Job]) -> dict[str, Any]:
        """Return plain JSON data with the templates of some jobs in it, for :meth:`from_json`."""
        templates = self.templates
        if isinstance(templates, Path):
            names = {template_name(job) for job in jobs} | {"train.sbatch.j2", "command.sbatch.j2"}
            templates = template_texts(templates, sorted(names))
        return {
            "cluster": self.cluster.model_dump(mode="json", exclude=_unset(self.cluster)),
            "templates": dict(templates),
            # a list, because the order matters
            "signatures": [list(item) for item in self.signatures.items()],
            "tables": dict(self.tables),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], store: PinStore) -> PlanEnvironment:
        """Return what :meth:`to_json` described; argument tables are read from copies in the store."""
        tables: dict[str, str] = data["tables"]
        profile = ClusterProfile.model_validate(data["cluster"])
        trainers = {
            name: section.model_copy(
                update={"arguments_table": str(store.as_file(tables[section.arguments_table]))}
            )
            if section.arguments_table in tables
            else section
            for name, section in profile.trainers.items()
        }
        return cls(
            profile.model_copy(update={"trainers": trainers}),
            data["templates"],
            dict(data["signatures"]),
            tables,
        )

    def changes(self, other: PlanEnvironment, *, profile: bool = True) -> list[str]:
        """Return the differences from another environment: names of the profile's keys and of files.

        :param other: the current environment, of which only the templates in this one are compared
        :param profile: whether both belong to one cluster, so that the keys of the profile are compared
        """
        found: list[str] = []
        mine, its = (_plain_profile(one) for one in (self, other))
        keys = [key for key in mine if mine[key] != its.get(key)]
        if profile and keys:
            found.append(f"cluster profile {self.cluster.name} ({', '.join(sorted(keys))})")
        if not isinstance(self.templates, Path) and isinstance(other.templates, Path):
            now = template_texts(other.templates, self.templates)
            found += [
                f"sbatch/{name}" for name, text in sorted(self.templates.items()) if now.get(name) != text
            ]
        for before, after in ((self.signatures, other.signatures), (self.tables, other.tables)):
            found += [name for name in before if name in after and before[name] != after[name]]
        return found


_LATER_KEYS = ("login_budget", "min_poll_interval", "storage")
"""Keys that profiles of stored plans lack; without a value they do not change the digest of a plan."""


def _unset(cluster: ClusterProfile) -> set[str]:
    return {name for name in _LATER_KEYS if getattr(cluster, name) is None}


def _plain_profile(plan_environment: PlanEnvironment) -> dict[str, Any]:
    """Return a profile with the argument tables' content in place of their paths."""
    data = plan_environment.cluster.model_dump(mode="json", exclude={"templates"})
    for section in data["trainers"].values():
        section.pop("arguments_table", None)
    return data


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # checks report the error
