"""``<file>.airflow.yml``: the settings of a sweep that a file in another tool's language cannot express.

AutoExperiment and oellm-autoexp have no keys for a cluster profile, a restart policy, notifiers or limits. A sidecar
beside such a file sets them, with the keys of a native spec; ``--set`` does the same for one command. A sidecar is not
a spec and is never loaded as one.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from pydantic import Field

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.documents.yaml_document import YamlDocument, load_yaml_text
from airflow_megatron.spec.expressions.resolution import ExpressionError, template_names
from airflow_megatron.spec.model.schema import (
    DEFAULT_AHEAD,
    Ahead,
    ClusterNames,
    ContainerSection,
    HealthRules,
    NotifySection,
    RestartSection,
    Seconds,
    Secrets,
    Strict,
    TrackerSection,
    TrainerName,
    Word,
    validate,
)
from airflow_megatron.spec.model.secret_sources import secret_sources
from airflow_megatron.spec.model.sweep import named_clusters
from airflow_megatron.spec.native.overrides import OPTION, overridden

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import HealthSection
    from airflow_megatron.spec.model.sweep import SweepSettings

SUFFIXES: Final = (".airflow.yml", ".airflow.yaml")
NO_SPEC: Final = ("this is the sidecar of another file, no spec", "name the file beside it")
"""Message and hint for a sidecar that is loaded as a spec."""


class SidecarSection(Strict):
    """The keys of a sidecar, with the same meaning as in a native spec."""

    name: Word | None = None
    description: str | None = None
    cluster: ClusterNames | None = None
    trainer: TrainerName | None = None
    release: str | None = None
    restart: RestartSection | None = None
    health: HealthRules | None = None
    max_active_points: int | None = Field(default=None, ge=1, le=100_000)
    max_jobs: int | None = Field(default=None, ge=1, le=1_000_000)
    ahead: Ahead = DEFAULT_AHEAD
    poll_interval: Seconds | None = Field(default=None, ge=1, le=86_400)
    tags: list[str] | None = None
    notify: list[NotifySection] | None = None
    trackers: list[TrackerSection] | None = None
    secrets: Secrets | None = None
    container: ContainerSection | Literal["profile"] | None = None
    """Replacement of the file's value; ``profile``: that of the cluster profile."""


_OF_SETTINGS: Final = frozenset(
    {"description", "cluster", "max_active_points", "max_jobs", "poll_interval", "tags", "notify", "trackers"}
)


@dataclass(frozen=True)
class Sidecar:
    """The settings in the sidecar of a file, or set for one command.

    :param section: its content
    :param document: its YAML document, for messages
    """

    section: SidecarSection
    document: YamlDocument

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """The keys that it sets, with their values."""
        values = {name: getattr(self.section, name) for name in self.section.model_fields_set}
        return {name: value for name, value in values.items() if value is not None}

    def place_in(self, document: YamlDocument) -> None:
        """Give messages about the sidecar's values positions in the sidecar, not in the file beside it."""
        for path, position in self.document.positions.items():
            if path and path[0] in self.given:
                document.positions[path] = position
                document.files[path] = self.document.files.get(path, self.document.file)

    def settings(self, settings: SweepSettings) -> SweepSettings:
        """Return the settings of a sweep, replaced by those of the sidecar."""
        changes: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.given.items()
            if name in _OF_SETTINGS
        }
        if "cluster" in changes:
            changes |= named_clusters(changes["cluster"])
        return dataclasses.replace(settings, **changes)

    def job(self, job: Job, cluster: ClusterProfile) -> Job:
        """Return a job with the trainer, release, restart policy, health rules, limit and secrets given here.

        A complete script of the user does not use the cluster's profile, and gets none of its secrets.

        :raises SpecError: if an expression for the path of a secret fails
        """
        given = self.given
        changes: dict[str, Any] = {name: given[name] for name in ("trainer", "release") if name in given}
        changes["ahead"] = self.section.ahead
        if self.section.restart is not None:
            own = self.section.restart.model_dump(exclude_unset=True)
            changes["restart"] = job.restart.model_copy(update=own)
        if "health" in given and job.trains:
            health: HealthSection | str = given["health"]
            changes["health"] = None if isinstance(health, str) else health
        if "max_jobs" in given:
            changes["max_jobs"] = given["max_jobs"]
        if "container" in given:
            container: ContainerSection | str = given["container"]
            changes["container"] = None if isinstance(container, str) else container
        secrets = {**({} if job.script is not None else cluster.secrets), **(self.section.secrets or {})}
        if secrets:
            changes |= self._secrets(job, secrets)
        return msgspec.structs.replace(job, **changes) if changes else job

    def _secrets(self, job: Job, secrets: Secrets) -> dict[str, Any]:
        names = {"sweep": job.sweep, "point": job.point, "stage": job.stage, "run_dir": job.run_dir}
        try:
            for name in sorted(
                template_names([secret.model_dump() for secret in secrets.values()]) - names.keys()
            ):
                raise ExpressionError(f"{name!r} is not defined here; known are {', '.join(names)}")
            return secret_sources(secrets, names)
        except ExpressionError as error:
            raise SpecError(self.document.problem(("secrets",), str(error))) from error


NO_SIDECAR: Final = Sidecar(SidecarSection(), YamlDocument("", {}))
"""An empty sidecar."""


def is_sidecar(path: Path) -> bool:
    """Return whether a file is a sidecar by its name."""
    return path.name.endswith(SUFFIXES)


def sidecar_owners(path: Path) -> tuple[str, ...]:
    """Return the names of the files that a sidecar may stand beside, by its own name."""
    name = next(path.name.removesuffix(suffix) for suffix in SUFFIXES if path.name.endswith(suffix))
    return (name,) if name.endswith((".yaml", ".yml")) else (f"{name}.yaml", f"{name}.yml")


def sidecar_of(document: YamlDocument, settings: Iterable[str]) -> tuple[Sidecar, list[str]]:
    """Return the sidecar of a file in another tool's language, and the settings for the file itself.

    :param settings: ``key=value`` each; if the first word is a key of a sidecar, and not of the file, it is for the
        sidecar; in capitals, as AutoExperiment's variables are written, it is no misspelt one
    :raises SpecError: if the sidecar is invalid, or there are two
    """
    own, of_file = [], []
    for setting in settings:
        word = setting.partition("=")[0].strip().split(".")[0]
        known = SidecarSection.model_fields
        if word in document.data:
            of_file.append(setting)
        elif word in known:
            own.append(setting)
        elif not word.isupper() and (near := did_you_mean(word, known, alike=0.75)):
            raise SpecError(Problem(f"{OPTION} {setting}", 0, 0, f"there is no {word!r} to set", near))
        else:
            of_file.append(setting)
    found = overridden(_document(document), own)
    return Sidecar(validate(SidecarSection, found), found), of_file


def refuse_sidecar(document: YamlDocument) -> None:
    """Refuse a sidecar beside a native spec, which has these keys itself.

    :raises SpecError: if there is one
    """
    for name in _names(document):
        if (Path(document.file).parent / name).is_file():
            message = (
                f"{Path(document.file).name} is a spec in this project's own language, which takes no sidecar"
            )
            raise SpecError(
                Problem(str(Path(document.file).parent / name), 0, 0, message, "write its keys there")
            )


def _names(document: YamlDocument) -> list[str]:
    file = Path(document.file)
    return [f"{name}{suffix}" for name in dict.fromkeys((file.name, file.stem)) for suffix in SUFFIXES]


def _document(document: YamlDocument) -> YamlDocument:
    found: list[tuple[str, str]] = []
    for name in _names(document):
        try:
            found.append((name, document.read(name)))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            file = str(Path(document.file).parent / name)
            raise SpecError(Problem(file, 0, 0, f"cannot be read: {error}")) from error
    if not found:
        return YamlDocument(str(Path(document.file).parent / _names(document)[0]), {})
    _one(document, [name for name, _ in found])
    name, text = found[0]
    return load_yaml_text(text, str(Path(document.file).parent / name))


def _one(document: YamlDocument, names: Sequence[str]) -> None:
    if len(names) > 1:
        message = f"{' and '.join(names)} are both sidecars of {Path(document.file).name}"
        raise SpecError(Problem(document.file, 0, 0, message, f"keep {names[0]}"))
