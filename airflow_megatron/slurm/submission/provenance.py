"""What an attempt has run with: ``provenance.json`` beside its ``job.json``, written on the node by the job itself.

It holds the version of this package, commits of checkouts, the container, and digests of data indexes. The installed
packages are in ``<run_root>/.environments/<environment>.json``, one file for all attempts that have the same ones.
Those in a container are listed in it, on the node: once for an image that is a file, and once a day for one of a
registry, whose name says less, as starting a container takes a while.

A large file is identified by its size, its time of modification, and the SHA-256 of its first MiB: a container's header
and the beginning of an index differ where the files do, and nothing is read that takes long.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron import __version__
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.spec.trust.json_records import read_object
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.slurm.remote.transport import CommandResult

RECORD: Final = "provenance.json"
ENVIRONMENTS: Final = ".environments"
_MAX_INDEXES: Final = 256
_LISTING_S: Final = 120
"""For starting a container and listing its packages, beside the job."""


@dataclass(frozen=True)
class Origins:
    """What a job's programs and inputs are taken from.

    :param python: the Python that runs the trainer
    :param checkouts: folders of checkouts
    :param indexes: data indexes, ``.idx``
    :param image: of the container that it runs in, None for none
    :param container: the words that run a command in that container on the job's first node
    """

    python: str
    checkouts: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    image: str | None = None
    container: tuple[str, ...] = ()


def recording_lines(origins: Origins, attempt_dir: str, run_root: str) -> str:
    """Return the lines of a job script that write the record, beside what the job does.

    :param attempt_dir: the attempt's directory on the cluster
    :param run_root: the cluster's run root
    """
    environments = f"{run_root.rstrip('/')}/{ENVIRONMENTS}"
    call = f"am_record_provenance {quote_path(f'{attempt_dir}/{RECORD}')} {quote_path(environments)}"
    return f"{_functions(origins)}\n{call} >/dev/null 2>&1 9>&- &\nam_provenance_job=$!\n"


def question_script(origins: Origins, run_root: str) -> str:
    """Return the remote script that says what a job would run with, as far as the login node sees it.

    No container is started there: the packages of an image are known when a job of this run root has listed them.
    """
    environments = f"{run_root.rstrip('/')}/{ENVIRONMENTS}"
    return framed(f"{_functions(origins)}\nam_print_provenance {quote_path(environments)}")


def parse_question(result: CommandResult) -> dict[str, Any]:
    """Return what :func:`question_script` has found, empty when it could not say.

    :raises TransportError: when the answer is not whole
    """
    for line in unframed(result):
        name, _, text = line.partition(" ")
        if name == "provenance":
            return read_object(text) or {}
    return {}


def record_script(stage_dirs: Sequence[str], run_root: str) -> str:
    """Return the remote script that reads the newest record of the first of some stages that has one.

    :param stage_dirs: ``<run_dir>/.jobs/<stage>`` each
    """
    environments = quote_path(f"{run_root.rstrip('/')}/{ENVIRONMENTS}")
    calls = [f"am_read {number} {quote_path(path)} {environments}" for number, path in enumerate(stage_dirs)]
    return framed("\n".join([shell_file("provenance_record"), *calls]))


def parse_record(stage_dirs: Sequence[str], result: CommandResult) -> tuple[str, dict[str, Any]] | None:
    """Return the stage whose record was found, and the record with its ``packages``; None where there is none.

    :raises TransportError: when the answer is not whole
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
    return stage_dir, {**record, "packages": packages}


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return what differs between two records, a line each.

    :param before: of an attempt, with its ``packages`` filled in
    :param now: of today
    """
    found: list[str] = []
    if before.get("package") != now.get("package"):
        found.append(f"airflow-megatron {_text(before.get('package'))} → {_text(now.get('package'))}")
    for old, new in zip(_objects(before, "checkouts"), _objects(now, "checkouts"), strict=False):
        if old.get("commit") != new.get("commit"):
            found.append(f"{_described(old, 'path', 'commit')} → {_described(new, 'path', 'commit')}")
        elif new.get("changed"):
            found.append(f"{_text(new.get('path'))} has uncommitted changes")
    images = [_objects(record, "containers") for record in (before, now)]
    if [_image(item) for item in images[0]] != [_image(item) for item in images[1]]:
        both = (
            " ".join(_described(item, "image", "sha256_of_first_mib") for item in items) or "no container"
            for items in images
        )
        found.append(" → ".join(both))
    old_packages, new_packages = (_versions(record.get("packages")) for record in (before, now))
    if not old_packages or not new_packages:
        return [*found, "the installed packages are not known on both sides"]
    for name in sorted(old_packages.keys() | new_packages.keys()):
        if old_packages.get(name) != new_packages.get(name):
            versions = (packages.get(name, "not installed") for packages in (old_packages, new_packages))
            found.append(f"{name} {' → '.join(versions)}")
    return found


def _objects(record: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    items = record.get(kind)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _image(item: Mapping[str, Any]) -> tuple[Any, ...]:
    return item.get("image"), item.get("bytes"), item.get("sha256_of_first_mib")


def _described(item: Mapping[str, Any], name: str, digest: str) -> str:
    return f"{_text(item.get(name))} {_text(item.get(digest))[:12]}"


def _text(value: object) -> str:
    return shown(str(value)) if value else "unknown"


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
    return [f"am_in_container() {{ timeout {_LISTING_S} {' '.join(map(quote, words))}; }}"]


def _listed(name: str, items: list[tuple[str, str, str]]) -> list[str]:
    """Return the lines that print a member: a list of objects that each begin with a path."""
    lines = [f"printf ', %s: [' {quote(json.dumps(name))}"]
    for index, (key, value, call) in enumerate(items):
        opening = ("" if index == 0 else ", ") + "{" + _member(key, value) + ", "
        lines += [f"printf '%s' {quote(opening)}", call, "printf '}'"]
    return [*lines, "printf ']'"]


def _member(name: str, value: str) -> str:
    return f"{json.dumps(name)}: {json.dumps(value)}"
