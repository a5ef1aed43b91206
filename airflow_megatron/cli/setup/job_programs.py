"""Pack the programs of jobs into a reproducible archive."""

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
    """The archive of the programs.

    :param content: a tar.gz
    :param manifest: one line for each file, in the format of ``sha256sum --check``
    """

    content: bytes
    manifest: str

    @property
    def digest(self) -> str:
        """Digest of the files, 12 characters."""
        return hashlib.sha256(self.manifest.encode()).hexdigest()[:12]


def programs_archive(folder: Path) -> ProgramsArchive:
    """Return the archive of the programs in a folder."""
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
            # installing a wheel may not keep the file mode
            entry.mode = 0o755 if content.startswith(b"#!") else 0o644
            tar.addfile(entry, io.BytesIO(content))
            lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}")
    return ProgramsArchive(buffer.getvalue(), "\n".join(lines))
