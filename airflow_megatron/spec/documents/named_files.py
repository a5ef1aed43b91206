"""Reading the files that a spec names: below the folder of specs or a configured one, regular files of a bounded size.

A spec is untrusted: a path in it may be ``/etc/shadow``, a private key, a device or a pipe without a writer. Every
reader of such a path goes through :func:`read_named_file`. Links are followed first, then the place is judged, so that
a link does not lead out. Messages name the path as it was written, never what a file holds, and are the same whether a
file outside exists or not.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.project import sweep_specs_dir

SETTING: Final = "AIRFLOW_MEGATRON_SPEC_FOLDERS"
"""Environment variable that names further folders, separated by ``:``, whose files specs may name."""
MAX_BYTES: Final = 1 << 20
"""Size of a file that a spec names."""
MAX_SPEC_BYTES: Final = 32_000_000
"""Size of a spec itself."""


class NamedFileError(AirflowMegatronError, ValueError):
    """A file that a spec may not name.

    :param message: what is wrong, without the file's name
    :param hint: what to do instead
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def read_named_file(path: str, document: str, origin: str = "", limit: int = MAX_BYTES) -> str:
    """Return the text of a file that a spec names.

    :param path: as written: absolute, or relative to the folder of the spec
    :param document: the file that names it
    :param origin: the spec that drew on that file, where it is another one
    :param limit: bytes that it may have at most
    :raises FileNotFoundError: if a file that could be read is not there
    :raises OSError: if it cannot be read
    :raises NamedFileError: if it lies elsewhere, is not a regular file or text, or is too large
    """
    if "\0" in path:
        raise NamedFileError("a path cannot hold a NUL character")
    roots = _roots(Path(origin or document).parent)
    full = Path(document).parent / Path(path).expanduser()
    real = Path(os.path.realpath(full))
    _check_below(real, roots)
    return _read(real, limit, roots)


def read_spec_file(path: Path | str) -> str:
    """Return the text of a spec: a regular file; one in the folder of specs may be a link within what may be read.

    :raises OSError: if it cannot be read
    :raises NamedFileError: if it is no such file
    """
    full = Path(os.path.abspath(path))  # noqa: PTH100
    if not full.is_relative_to(os.path.abspath(sweep_specs_dir())):  # noqa: PTH100
        return _read(full, MAX_SPEC_BYTES, ())
    roots = _roots(full.parent)
    real = Path(os.path.realpath(full))
    _check_below(real, roots)
    return _read(real, MAX_SPEC_BYTES, roots)


def _roots(folder: Path) -> tuple[Path, ...]:
    specs = Path(os.path.realpath(sweep_specs_dir()))
    own = Path(os.path.realpath(folder))
    configured = [
        Path(os.path.realpath(part)) for part in os.environ.get(SETTING, "").split(os.pathsep) if part
    ]
    return (specs, *configured) if own.is_relative_to(specs) else (own, specs, *configured)


def _check_below(real: Path, roots: tuple[Path, ...]) -> None:
    if not any(real.is_relative_to(root) for root in roots):
        raise NamedFileError(
            "a spec may only name files below its folder",
            f"put the file beside the spec, or its folder into {SETTING} where Airflow and the command line run",
        )


def _read(path: Path, limit: int, roots: tuple[Path, ...]) -> str:
    """Read a file after looking at what was opened: the name may mean another file by then."""
    # without a writer, a pipe would hold the reader at the open
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NamedFileError("it is not a regular file")
        opened = Path(f"/proc/self/fd/{descriptor}")
        if roots and opened.is_symlink():
            _check_below(opened.readlink(), roots)
        if status.st_size > limit:
            raise NamedFileError(f"the file is larger than {limit:,} bytes")
        content = b""
        while len(content) <= limit and (part := os.read(descriptor, limit + 1 - len(content))):
            content += part
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise NamedFileError(f"the file is larger than {limit:,} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise NamedFileError("the file is not UTF-8 text") from None
