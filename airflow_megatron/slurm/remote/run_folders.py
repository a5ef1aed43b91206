"""Measure or remove the directories of a sweep below the run root.

The script changes nothing outside the run root and follows no symbolic link below it: it enters each component of a
path separately and refuses links.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class FolderAnswer:
    """The result for one directory.

    :param path: absolute path of the directory.
    :param exists: whether it exists; after a removal, whether it still exists.
    :param kibibytes: its size on disk in KiB by ``du``; 0 if not measured.
    :param problem: why it was refused or could not be removed; empty otherwise.
    :param removed: whether it was removed now.
    :param kept: the first 1,000 names of the entries that are kept because no job has records in them.
    """

    path: str
    exists: bool
    kibibytes: int = 0
    problem: str = ""
    removed: bool = False
    kept: tuple[str, ...] = ()


def below(root: str, path: str) -> str | None:
    """Return *path* relative to *root*, or None if it is not strictly below *root*.

    :param root: absolute path.
    :param path: absolute path from a plan; links are not resolved.
    """
    root, path = posixpath.normpath(root), posixpath.normpath(path)
    relative = posixpath.relpath(path, root)
    return None if relative == "." or relative.split("/")[0] == ".." else relative


def folders_script(root: str, paths: Sequence[str], *, remove: bool = False, of_jobs: bool = False) -> str:
    """Return the remote script that measures or removes directories; it is idempotent.

    :param root: absolute path of the cluster's run root.
    :param paths: absolute paths of directories strictly below the root.
    :param of_jobs: leave out, and keep, the entries of each directory in which no job has records.
    :raises ValueError: for a directory that is not below the root.
    """
    calls: list[str] = []
    for number, path in enumerate(paths):
        relative = below(root, path)
        if relative is None:
            raise ValueError(f"{path} is not below {root}")
        what = ("remove" if remove else "list") + "-of-jobs" if of_jobs else "remove" if remove else ""
        calls.append(f"am_folder {number} {quote_path(root)} {quote(relative)} {what}".rstrip())
    return framed("\n".join([shell_file("run_folders"), *calls]))


def parse_folders(paths: Sequence[str], result: CommandResult) -> list[FolderAnswer]:
    """Return the result for each of *paths*, in the same order.

    :raises TransportError: if the output is incomplete.
    """
    found: dict[int, FolderAnswer] = {}
    kept: dict[int, list[str]] = {}
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        number, _, detail = rest.partition(" ")
        if not number.isdecimal() or int(number) >= len(paths):
            continue
        path = paths[int(number)]
        match word:
            case "absent" | "removed":
                found[int(number)] = FolderAnswer(path, exists=False, removed=word == "removed")
            case "holds":
                size = int(detail) if detail.isdecimal() else 0
                found[int(number)] = FolderAnswer(path, exists=True, kibibytes=size)
            case "kept":
                kept.setdefault(int(number), []).append(detail)
            case "refused" | "failed":
                found[int(number)] = FolderAnswer(path, exists=True, problem=detail or "no reason given")
            case _:
                pass
    if len(found) != len(paths):
        raise TransportError("the answer on a sweep's folders is not whole")
    return [replace(found[number], kept=tuple(kept.get(number, ()))) for number in range(len(paths))]
