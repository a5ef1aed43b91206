"""Provenance of an attempt: ``provenance.json`` beside its ``job.json``, which the job writes on its node.

It holds the version of this package, commits of checkouts, the container, and digests of data indexes. The installed
packages are in ``<run_root>/.environments/<environment>.json``, one file for all attempts with the same packages.
Packages in a container are listed in the container on the node, which takes a while: once for an image file, and once
per day for an image of a registry, whose content can change under the same name.

A large file is identified by its size, its modification time, and the SHA-256 of its first MiB. This is fast, and the
header of a container image and the beginning of an index differ between different files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron import __version__
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.spec.trust.json_records import read_object, whole, word
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.slurm.remote.transport import CommandResult

RECORD: Final = "provenance.json"
ENVIRONMENTS: Final = ".environments"
_MAX_INDEXES: Final = 256
_LISTING_S: Final = 120
"""Time limit in seconds for listing the packages in a container, while the job runs."""


@dataclass(frozen=True)
class Origins:
    """The sources of a job's programs and inputs.

    :param python: the Python that runs the trainer
    :param checkouts: directories of checkouts
    :param indexes: data indexes, ``.idx``
    :param image: image of the job's container, None for none
    :param container: the command prefix that runs a command in that container on the job's first node
    :param modules: environment modules that the prefix may need; the record is written before the job loads them
    """

    python: str
    checkouts: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    image: str | None = None
    container: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecordedCheckout:
    """A checkout in a record.

    :param path: its directory
    :param commit: its commit, empty if unknown
    :param changed: whether it has uncommitted changes
    """

    path: str
    commit: str
    changed: bool

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RecordedCheckout:
        """Parse an object of the list ``checkouts``."""
        return cls(word(value.get("path")) or "", word(value.get("commit")) or "", bool(value.get("changed")))


@dataclass(frozen=True)
class RecordedImage:
    """A container image in a record.

    :param image: its path, or its name in a registry
    :param size: size of the file in bytes, None for an image of a registry
    :param sha256_of_first_mib: digest of the beginning of the file, empty for an image of a registry
    """

    image: str
    size: int | None
    sha256_of_first_mib: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RecordedImage:
        """Parse an object of the list ``containers``."""
        return cls(
            word(value.get("image")) or "",
            whole(value.get("bytes")),
            word(value.get("sha256_of_first_mib")) or "",
        )


@dataclass(frozen=True)
class Provenance:
    """The part of a ``provenance.json`` that is compared between two runs, with the packages of its environment.

    :param package: version of this package, empty if unknown
    :param checkouts: checkouts of the job's programs
    :param containers: image of the job's container, empty without one
    :param packages: installed packages, name → version; empty if unknown
    """

    package: str = ""
    checkouts: tuple[RecordedCheckout, ...] = ()
    containers: tuple[RecordedImage, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Provenance:
        """Parse a record of any version; unknown keys are ignored, and missing or damaged values are empty."""
        return cls(
            package=word(value.get("package")) or "",
            checkouts=tuple(map(RecordedCheckout.from_json, _objects(value.get("checkouts")))),
            containers=tuple(map(RecordedImage.from_json, _objects(value.get("containers")))),
            packages=_versions(value.get("packages")),
        )


def recording_lines(origins: Origins, attempt_dir: str, run_root: str) -> str:
    """Return the lines of a job script that write the record in the background.

    :param attempt_dir: the attempt's directory on the cluster
    :param run_root: the cluster's run root
    """
    environments = f"{run_root.rstrip('/')}/{ENVIRONMENTS}"
    call = f"am_record_provenance {quote_path(f'{attempt_dir}/{RECORD}')} {quote_path(environments)}"
    return f"{_functions(origins)}\n{call} >/dev/null 2>&1 9>&- &\nam_provenance_job=$!\n"


def question_script(origins: Origins, run_root: str) -> str:
    """Return the remote script that prints the current provenance of a job, as visible on the login node.

    It starts no container: the packages of an image are known only if a job of this run root has listed them.
    """
    environments = f"{run_root.rstrip('/')}/{ENVIRONMENTS}"
    return framed(f"{_functions(origins)}\nam_print_provenance {quote_path(environments)}")


def parse_question(result: CommandResult) -> Provenance:
    """Parse the output of :func:`question_script`; return an empty record if it printed none.

    :raises TransportError: if the output is incomplete
    """
    for line in unframed(result):
        name, _, text = line.partition(" ")
        if name == "provenance":
            return Provenance.from_json(read_object(text) or {})
    return Provenance()


def record_script(stage_dirs: Sequence[str], run_root: str) -> str:
    """Return the remote script that reads the newest record of the first stage that has one.

    :param stage_dirs: ``<run_dir>/.jobs/<stage>`` of each stage
    """
    environments = quote_path(f"{run_root.rstrip('/')}/{ENVIRONMENTS}")
    calls = [f"am_read {number} {quote_path(path)} {environments}" for number, path in enumerate(stage_dirs)]
    return framed("\n".join([shell_file("provenance_record"), *calls]))


def parse_record(stage_dirs: Sequence[str], result: CommandResult) -> tuple[str, Provenance] | None:
    """Return the stage directory and its record with ``packages``; None if no stage has a record.

    :raises TransportError: if the output is incomplete
    """
    stage_dir, record, packages = "", None, None
    for line in unframed(result):
        name, _, text = line.partition(" ")
        if name == "record":
            number, _, text = text.partition(" ")
            record = read_object(text)
            if number.isdecimal() and int(number) < len(stage_dirs):
                stage_dir = stage_dirs[int(number)]
        elif name == "packages":
            packages = (read_object(text) or {}).get("packages")
    if record is None or not stage_dir:
        return None
    return stage_dir, Provenance.from_json({**record, "packages": packages})


def differences(before: Provenance, now: Provenance) -> list[str]:
    """Return the differences between two records, one line each.

    :param before: record of an attempt, with its packages
    :param now: current record
    """
    found: list[str] = []
    if before.package != now.package:
        found.append(f"airflow-megatron {_text(before.package)} → {_text(now.package)}")
    for old, new in zip(before.checkouts, now.checkouts, strict=False):
        if old.commit != new.commit:
            found.append(f"{_described(old.path, old.commit)} → {_described(new.path, new.commit)}")
        elif new.changed:
            found.append(f"{_text(new.path)} has uncommitted changes")
    if before.containers != now.containers:
        both = (
            " ".join(_described(item.image, item.sha256_of_first_mib) for item in record.containers)
            or "no container"
            for record in (before, now)
        )
        found.append(" → ".join(both))
    if not before.packages or not now.packages:
        return [*found, "the installed packages are not known on both sides"]
    for name in sorted(before.packages.keys() | now.packages.keys()):
        if before.packages.get(name) != now.packages.get(name):
            versions = (record.packages.get(name, "not installed") for record in (before, now))
            found.append(f"{name} {' → '.join(versions)}")
    return found


def _objects(items: object) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _described(name: str, digest: str) -> str:
    return f"{_text(name)} {_text(digest)[:12]}"


def _text(text: str) -> str:
    return shown(text) if text else "unknown"


def _versions(packages: object) -> dict[str, str]:
    texts = [shown(item) for item in packages if isinstance(item, str)] if isinstance(packages, list) else []
    return {name: version for name, _, version in (text.partition("==") for text in texts)}


def _functions(origins: Origins) -> str:
    inputs = [f"printf '%s' {quote(_member('package', __version__))}"]
    inputs += _listed(
        "checkouts", [("path", path, f"am_commit {quote_path(path)}") for path in origins.checkouts]
    )
    images = [origins.image] if origins.image else []
    inputs += _listed("containers", [("image", image, f"am_digest {quote(image)}") for image in images])
    indexes = origins.indexes[:_MAX_INDEXES]
    inputs += _listed("indexes", [("path", path, f"am_digest {quote_path(path)}") for path in indexes])
    return "\n".join(
        [
            f"am_python={quote(origins.python)}",
            f"am_image={quote(origins.image or '')}",
            *_listed_in_container(origins),
            "am_inputs() {",
            *inputs,
            "}",
            shell_file("installed_packages"),
            shell_file("provenance"),
        ]
    )


def _listed_in_container(origins: Origins) -> list[str]:
    if not origins.container:
        return ["am_in_container() { return 1; }"]
    text = f"am_python=$1\n{shell_file('installed_packages')}\nam_packages_here"
    words = [*origins.container, "sh", "-c", text, "sh", origins.python]
    loading = (
        f"module load {' '.join(map(quote, origins.modules))} >/dev/null 2>&1; " if origins.modules else ""
    )
    return [f"am_in_container() {{ {loading}timeout {_LISTING_S} {' '.join(map(quote, words))}; }}"]


def _listed(name: str, items: list[tuple[str, str, str]]) -> list[str]:
    """Return the lines that print a JSON member: a list of objects whose first key is the path."""
    lines = [f"printf ', %s: [' {quote(json.dumps(name))}"]
    for index, (key, value, call) in enumerate(items):
        opening = ("" if index == 0 else ", ") + "{" + _member(key, value) + ", "
        lines += [f"printf '%s' {quote(opening)}", call, "printf '}'"]
    return [*lines, "printf ']'"]


def _member(name: str, value: str) -> str:
    return f"{json.dumps(name)}: {json.dumps(value)}"
