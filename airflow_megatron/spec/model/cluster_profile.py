"""Cluster profiles: ``<name>.yaml`` in the folder of the profiles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.documents.project import (
    check_configured_folders,
    clusters_dir,
    job_programs_dir,
    local_dir,
    project_root,
    templates_dir,
)
from airflow_megatron.spec.documents.yaml_document import YamlDocument, load_yaml_file
from airflow_megatron.spec.expressions.resolution import ExpressionError, attribute_names, evaluate_tree
from airflow_megatron.spec.model.schema import ClusterSection, PartitionSection, TrainerSection, validate
from airflow_megatron.spec.trust.permitted_variables import SETTING, permitted_variables

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.model.schema import TrainerName


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_UNDESCRIBED_PARTITION = PartitionSection.model_construct()
_UNDESCRIBED_TRAINER = TrainerSection.model_construct()


class ClusterProfile(ClusterSection):
    """A cluster profile with its name and all expressions evaluated."""

    name: str

    @property
    def templates_folder(self) -> Path:
        """The folder of the sbatch templates of its jobs."""
        return clusters_dir() / self.templates if self.templates else templates_dir()

    def partition(self, name: str | None) -> PartitionSection:
        """Return the partition called ``name``, an empty description for one that the profile does not describe."""
        return self.partitions.get(name or "", _UNDESCRIBED_PARTITION)

    def trainer(self, name: TrainerName) -> TrainerSection:
        """Return the section of a trainer in the profile."""
        return self.trainers.get(name, _UNDESCRIBED_TRAINER)

    def python_of(self, trainer: TrainerName) -> str:
        """Return the Python interpreter of a trainer."""
        return self.trainer(trainer).python or self.python

    def launcher_of(self, trainer: TrainerName) -> str:
        """Return the launcher of a trainer for several processes."""
        return self.trainer(trainer).launcher or self.launcher


def cluster_names(directory: Path | None = None) -> list[str]:
    """Return the names of the profiles that exist."""
    return sorted(path.stem for path in (directory or clusters_dir()).glob("*.yaml"))


def profile_path(name: str) -> str:
    """Return the path of an existing or possible profile, relative to the project if it is inside."""
    path, root = clusters_dir() / f"{name}.yaml", project_root()
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def is_cluster_name(name: str) -> bool:
    """Return whether a word is a valid name of a profile, which becomes part of a path."""
    return _NAME.fullmatch(name) is not None


def load_cluster(name: str, directory: Path | None = None) -> ClusterProfile:
    """Load a cluster profile.

    Its expressions may use ``project_root``, ``local_dir``, ``job_programs`` (the programs of jobs in the package) and
    ``env`` (the environment variables that
    :mod:`airflow_megatron.spec.trust.permitted_variables` permits).

    :raises SpecError: if the profile does not exist or is invalid
    """
    if directory is None:
        check_configured_folders()
        directory = clusters_dir()
    if not is_cluster_name(name):
        shown = name if len(name) <= 60 else f"{name[:60]}…"
        raise SpecError(
            Problem(
                str(directory),
                0,
                0,
                f"{shown!r} is not the name of a cluster",
                "letters, digits, '_' and '-' only",
            )
        )
    path = directory / f"{name}.yaml"
    if path.is_dir():
        message = f"the cluster profile {name!r} is a folder"
        raise SpecError(Problem(str(path), 0, 0, message, "a profile is a file; write it to this path"))
    if not path.is_file():
        known = cluster_names(directory)
        raise SpecError(
            Problem(
                str(path),
                0,
                0,
                f"there is no cluster profile {name!r}",
                did_you_mean(name, known) or f"known: {', '.join(known)}; or write {path.name}",
            )
        )
    document = load_yaml_file(path)
    names = {
        "project_root": str(project_root()),
        "local_dir": str(local_dir()),
        "job_programs": str(job_programs_dir()),
        "env": dict(permitted_variables()),
    }
    evaluated = YamlDocument(document.file, _evaluated(document, names), document.positions)
    section = validate(ClusterSection, evaluated)
    missing = [
        document.problem(
            ("signatures", index), f"there is no file {path.parent / name}", "write it, or drop the entry"
        )
        for index, name in enumerate(section.signatures)
        if not (path.parent / name).is_file()
    ]
    if section.templates is not None and not (path.parent / section.templates).is_dir():
        message = f"there is no folder {path.parent / section.templates}"
        missing.append(document.problem(("templates",), message, "make it, or drop the key"))
    tables = {
        key: path.parent / one.arguments_table for key, one in section.trainers.items() if one.arguments_table
    }
    missing += [
        document.problem(
            ("trainers", key, "arguments_table"),
            f"there is no file {table}",
            "make it with: airflow-megatron megatron-args CHECKOUT -o FILE",
        )
        for key, table in tables.items()
        if not table.is_file()
    ]
    if missing:
        raise SpecError(missing)
    fields = {key: getattr(section, key) for key in ClusterSection.model_fields}
    fields["trainers"] = {
        key: one.model_copy(update={"arguments_table": str(tables[key])}) if key in tables else one
        for key, one in section.trainers.items()
    }
    return ClusterProfile(name=name, **fields)


def _evaluated(document: YamlDocument, names: dict[str, Any]) -> Any:
    if not isinstance(document.data, dict):
        return document.data
    data, problems = {}, []
    permitted = permitted_variables()
    for key, value in document.data.items():
        try:
            read = sorted(attribute_names(value, "env"))
        except ExpressionError as error:
            problems.append(document.problem((key,), str(error)))
            continue
        refused = [name for name in read if not permitted.permits(name)]
        if refused:
            message = f"a profile may not read the environment variable {refused[0]}"
            problems.append(document.problem((key,), message, f"add {refused[0]} to {SETTING}"))
            continue
        try:
            data[key] = evaluate_tree(value, names)
        except ExpressionError as error:
            missing = [name for name in read if name not in permitted]
            unset = [name for name in missing if f"there is no entry {name!r}" in str(error)]
            message = f"the environment variable {unset[0]} is not set" if unset else str(error)
            hint = f"export {unset[0]}=…, or write the value instead of the expression" if unset else ""
            problems.append(document.problem((key,), message, hint))
    if problems:
        raise SpecError(problems)
    return data
