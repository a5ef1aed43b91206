"""Create an archive of a sweep's directories on its cluster."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.run_folders import below
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.spec.layout import run_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

SECRETS: Final = f"*/{run_layout.JOBS}/*/{run_layout.SECRETS}"
CHECKPOINTS: Final = (f"*/{run_layout.CHECKPOINTS}*/*/*", f"*/{run_layout.CONVERTED}*")
"""Patterns excluded by default; the small tracker file beside the checkpoints is always included."""


class ArchiveError(AirflowMegatronError):
    """The login node could not write the archive; no partial archive remains."""


@dataclass(frozen=True)
class Archive:
    """An archive on the cluster.

    :param path: absolute.
    :param bytes: its size.
    """

    path: str
    bytes: int


def archive_script(
    root: str,
    folders: Sequence[str],
    *,
    default: str,
    to: str = "",
    extra: bytes = b"",
    checkpoints: bool = False,
) -> str:
    """Return the remote script that writes an archive; it never replaces an existing file.

    :param root: absolute path of the cluster's run root.
    :param folders: absolute paths of the directories, strictly below the root.
    :param default: absolute path of the archive without suffix; the script appends ``.tar.zst``, or ``.tar.gz`` if
        zstd is missing.
    :param to: absolute path of the archive with one of these suffixes; overrides *default*.
    :param extra: a tar.gz with one directory ``airflow-megatron``, which is added to the archive.
    :param checkpoints: include checkpoints and converted models.
    :raises ValueError: for a directory that is not below the root.
    """
    relative = [below(root, path) for path in folders]
    if None in relative:
        raise ValueError(f"{folders[relative.index(None)]} is not below {root}")
    left_out = (SECRETS, *(() if checkpoints else CHECKPOINTS))
    encoded = base64.b64encode(extra).decode()
    words = " ".join(quote(path) for path in relative if path)
    return framed(
        f"am_root={quote_path(root)}\nam_to={quote_path(to) if to else ''}\nam_default={quote_path(default)}\n"
        f"am_extra={quote(encoded)}\nset -f\n"
        f"am_left_out={quote(' '.join(f'--exclude={pattern}' for pattern in left_out))}\n"
        f"{shell_file('archive_folders')}\n(am_archive {words})"
    )


def parse_archive(result: CommandResult) -> Archive:
    """Return the written archive.

    :raises ArchiveError: if the archive could not be written.
    :raises TransportError: if the output is incomplete.
    """
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise ArchiveError(rest or "no reason given")
        size, _, path = rest.strip().partition(" ")
        if word == "wrote" and size.isdecimal():
            return Archive(path, int(size))
    raise TransportError("the answer on an archive holds no result")
