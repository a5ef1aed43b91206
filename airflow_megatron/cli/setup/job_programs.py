"""The programs of jobs as one archive, which is the same for the same files."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_LEFT_OUT = ("__pycache__", ".pyc")


class ProgramsArchive(NamedTuple):
    """What is put onto a cluster.

    :param content: a tar.gz
    :param manifest: lines that ``sha256sum --check`` reads, one for each file
    """

    content: bytes
    manifest: str

    @property
    def digest(self) -> str:
        """Digest of the files, 12 characters."""
        return hashlib.sha256(self.manifest.encode()).hexdigest()[:12]


def programs_archive(folder: Path) -> ProgramsArchive:
    """Return the programs in a folder."""
    buffer, lines = io.BytesIO(), []
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if not path.is_file() or any(part in name for part in _LEFT_OUT):
                continue
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            # a wheel's installer need not keep the mode
            entry.mode = 0o755 if content.startswith(b"#!") else 0o644
            tar.addfile(entry, io.BytesIO(content))
            lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}")
    return ProgramsArchive(buffer.getvalue(), "\n".join(lines))
