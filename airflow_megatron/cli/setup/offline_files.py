"""Send files to a cluster without internet access, over the SSH connection: wheels and upstream's checkout."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from airflow_megatron.cli.setup.installation_scripts import InstallationError, encoded
from airflow_megatron.spec.documents.project import job_programs_dir, local_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_megatron.cli.setup.installation_scripts import LoginNode

PIECE: Final = 3 << 20
"""Maximum number of bytes that one script transfers."""
BUILD_TOOLS: Final = ("setuptools<80", "wheel", "pybind11", "packaging>=24.2")
"""Packages that pip needs to build the few source distributions; for Python 3.14 and newer, megatron-core is one."""
_TORCH: Final = re.compile(r"^torch=(\S+)$", re.MULTILINE)
_OLDEST_LIBC: Final = 17


class RemotePython(NamedTuple):
    """The interpreter that creates an environment.

    :param version: such as ``3.11``
    :param machine: such as ``x86_64``
    :param libc: minor version of glibc 2; None for another C library
    """

    version: str
    machine: str
    libc: int | None

    @classmethod
    def of(cls, answer: str) -> RemotePython:
        """Parse the output of ``am_about_python``."""
        _, version, machine, *library = answer.split()
        glibc = library[1] if len(library) > 1 and library[0] == "glibc" else ""
        return cls(version, machine, int(glibc.partition(".")[2]) if glibc.startswith("2.") else None)

    @classmethod
    def here(cls) -> RemotePython:
        """Return the interpreter of this process."""
        words = ["python", f"{sys.version_info[0]}.{sys.version_info[1]}", platform.machine()]
        return cls.of(" ".join([*words, *platform.libc_ver()]))

    def pip_arguments(self) -> list[str]:
        """Return pip's arguments to download for this interpreter; empty if it equals the one of this process."""
        if self == RemotePython.here():
            return []
        newest = _OLDEST_LIBC if self.libc is None else self.libc
        tags = [f"manylinux_2_{minor}_{self.machine}" for minor in range(newest, _OLDEST_LIBC - 1, -1)]
        tags += [f"manylinux2014_{self.machine}", f"linux_{self.machine}"]
        words = ["--python-version", self.version, "--implementation", "cp"]
        return words + [word for tag in tags for word in ("--platform", tag)]


def collected_wheels(
    programs: Path,
    remote: RemotePython,
    given: Path | None,
    pip_arguments: Sequence[str],
    say: Callable[[str], None],
) -> list[Path]:
    """Return the wheels of the jobs' environment; download them unless a folder is given.

    :param programs: the folder of the programs of jobs
    :param given: a folder that already contains them
    :param pip_arguments: pip arguments for torch, such as an index
    :raises InstallationError: if pip fails or the folder is empty
    """
    if given is None:
        given = local_dir() / "wheels" / f"{remote.version}-{remote.machine}"
        say(f"environment: collecting wheels in {given}")
        _download(programs, remote, given, pip_arguments)
    found = sorted(path for path in given.glob("*") if path.name.endswith((".whl", ".tar.gz", ".zip")))
    if not found:
        raise InstallationError(f"{given} contains no wheels")
    return found


def _download(programs: Path, remote: RemotePython, folder: Path, pip_arguments: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch = _TORCH.search((programs / "install.sh").read_text(encoding="utf-8"))
    if torch is None:
        raise InstallationError(f"{programs / 'install.sh'} does not name its torch (torch=torch==VERSION)")
    flags = remote.pip_arguments()
    binary = ["--only-binary=:all:"] if flags else []
    lock = ["--no-deps", "--require-hashes", "--requirement", str(programs / "requirements.lock")]
    for words in ([torch[1], *binary, *pip_arguments], lock, [*BUILD_TOOLS, *binary]):
        command = ["download", "--quiet", "--disable-pip-version-check", "--dest", str(folder)]
        result = subprocess.run(
            [sys.executable, "-m", "pip", *command, *flags, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if result.returncode:
            raise InstallationError(f"the wheels cannot be collected:\n{result.stdout[-2000:].strip()}")


def checkout_archive(release: str, commit: str) -> Path:
    """Return an archive of a pinned release; create it if necessary.

    :raises InstallationError: if it cannot be cloned
    """
    folder = local_dir() / "checkouts"
    archive = folder / f"{release}-{commit[:12]}.tar.gz"
    if archive.is_file():
        return archive
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        clone = Path(place) / release
        result = subprocess.run(
            ["sh", str(job_programs_dir() / "checkout.sh"), release, str(clone)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if result.returncode:
            raise InstallationError(f"{release} cannot be cloned:\n{result.stdout.strip()}")
        draft = Path(place) / archive.name
        with tarfile.open(draft, "w:gz") as tar:
            for path in sorted(clone.iterdir()):
                tar.add(path, path.name)
        os.replace(draft, archive)  # noqa: PTH105
    return archive


def send_file(node: LoginNode, path: Path, remote: str, say: Callable[[str], None]) -> None:
    """Copy a file; resume an interrupted transfer, and skip an existing file.

    :raises InstallationError: if it cannot be written or arrives damaged
    :raises airflow_megatron.slurm.remote.transport.TransportError: if the login node does not answer
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        there = node.call("am_size", remote, digest)
        if there == "complete":
            return
        say(f"sending {path.name}, {path.stat().st_size / 1e6:.1f} MB")
        for offset, piece in _pieces(file, int(there)):
            there = node.call("am_append", remote, str(offset), encoded(piece))
            if int(there) != offset + len(piece):
                raise InstallationError(
                    f"{remote} is being written by another process; run the command again"
                )
    node.call("am_complete", remote, digest)


def _pieces(file: BinaryIO, begin: int) -> Iterator[tuple[int, bytes]]:
    """Yield the rest of a file in pieces with their offsets; one empty piece for an empty file."""
    file.seek(begin)
    offset, piece = begin, file.read(PIECE)
    while piece or not offset:
        yield offset, piece
        if not piece:
            return
        offset, piece = offset + len(piece), file.read(PIECE)
