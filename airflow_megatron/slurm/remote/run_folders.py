"""The folders of a sweep below the run root: how large they are, and removing them.

Nothing outside of the run root is touched, and no symbolic link is followed below it: each part of a path is entered
by itself, and refused when it is a link.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class FolderAnswer:
    """What was found of a folder, or done to it.

    :param path: the folder, absolute.
    :param exists: it is there; after a removal: it still is.
    :param kibibytes: what it takes on the disk, as ``du`` says; 0 where that was not asked.
    :param problem: why it was left alone, or could not be removed; empty otherwise.
    """

    path: str
    exists: bool
    kibibytes: int = 0
    problem: str = ""


def below(root: str, path: str) -> str | None:
    """Return *path* relative to *root*, None when it is not strictly below it.

    :param root: absolute.
    :param path: absolute, as a plan names it; links are not resolved here.
    """
    root, path = posixpath.normpath(root), posixpath.normpath(path)
    relative = posixpath.relpath(path, root)
    return None if relative == "." or relative.split("/")[0] == ".." else relative


def folders_script(root: str, paths: Sequence[str], *, remove: bool = False) -> str:
    """Return the remote script that measures folders, or removes them; it may run any number of times.

    :param root: the cluster's run root, absolute.
    :param paths: folders strictly below it, absolute.
    :raises ValueError: for a folder that is not.
    """
    calls: list[str] = []
    for number, path in enumerate(paths):
        relative = below(root, path)
        if relative is None:
            raise ValueError(f"{path} is not below {root}")
        what = " remove" if remove else ""
        calls.append(f"am_folder {number} {quote_path(root)} {quote(relative)}{what}")
    return framed("\n".join([shell_file("run_folders"), *calls]))


def parse_folders(paths: Sequence[str], result: CommandResult) -> list[FolderAnswer]:
    """Return the text about each of *paths*, in their order.

    :raises TransportError: when the answer is not whole.
    """
    found: dict[int, FolderAnswer] = {}
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        number, _, detail = rest.partition(" ")
        if not number.isdecimal() or int(number) >= len(paths):
            continue
        path = paths[int(number)]
        match word:
            case "absent" | "removed":
                found[int(number)] = FolderAnswer(path, exists=False)
            case "holds":
                size = int(detail) if detail.isdecimal() else 0
                found[int(number)] = FolderAnswer(path, exists=True, kibibytes=size)
            case "refused" | "failed":
                found[int(number)] = FolderAnswer(path, exists=True, problem=detail or "no reason given")
            case _:
                pass
    if len(found) != len(paths):
        raise TransportError("the answer on a sweep's folders is not whole")
    return [found[number] for number in range(len(paths))]
