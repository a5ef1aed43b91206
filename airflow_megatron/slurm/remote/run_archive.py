"""One archive of a sweep's folders, made on its cluster."""

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
"""What is left out unless it is asked for; a tracker file, which lies beside the checkpoints, is small."""


class ArchiveError(AirflowMegatronError):
    """The login node could not write the archive; nothing of it is left there."""


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
    """Return the remote script that writes an archive; an existing one is never replaced.

    :param root: the cluster's run root, absolute.
    :param folders: strictly below it, absolute.
    :param default: the archive without its ending, absolute: ``.tar.zst``, or ``.tar.gz`` where zstd is missing.
    :param to: the archive instead, absolute, with one of these endings.
    :param extra: a tar.gz with one folder ``airflow-megatron``, which the archive gets too.
    :param checkpoints: put checkpoints and converted models into it.
    :raises ValueError: for a folder that is not below the root.
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
    """Return what was written.

    :raises ArchiveError: when it could not be.
    :raises TransportError: when the answer is not whole.
    """
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise ArchiveError(rest or "no reason given")
        size, _, path = rest.strip().partition(" ")
        if word == "wrote" and size.isdecimal():
            return Archive(path, int(size))
    raise TransportError("the answer on an archive holds no result")
