"""Reading the files that a spec names: below the folder of specs or a configured one, regular files of a bounded size.

A spec is untrusted: a path in it may be ``/etc/shadow``, a private key, a device or a pipe without a writer. Every
reader of such a path uses :func:`read_named_file`. Links are resolved before the location is checked, so that a link
cannot lead out. Messages contain the path as written, never the content of a file. They do not depend on whether a
file outside exists.
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
"""Maximum size of a file that a spec names, in bytes."""
MAX_SPEC_BYTES: Final = 32_000_000
"""Maximum size of a spec, in bytes."""


class NamedFileError(AirflowMegatronError, ValueError):
    """A spec may not name this file.

    :param message: the problem, without the file's name
    :param hint: what to do instead
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def read_named_file(path: str, document: str, origin: str = "", limit: int = MAX_BYTES) -> str:
    """Return the text of a file that a spec names.

    :param path: as written: absolute, or relative to the folder of the spec
    :param document: the file that names it
    :param origin: the spec that includes *document*, if they differ
    :param limit: maximum size in bytes
    :raises FileNotFoundError: if a permitted file does not exist
    :raises OSError: if it cannot be read
    :raises NamedFileError: if it is in another folder, is not a regular file or text, or is too large
    """
    if "\0" in path:
        raise NamedFileError("a path cannot hold a NUL character")
    roots = _roots(Path(origin or document).parent)
    full = Path(document).parent / Path(path).expanduser()
    real = Path(os.path.realpath(full))
    _check_below(real, roots)
    return _read(real, limit, roots)


def read_spec_file(path: Path | str) -> str:
    """Return the text of a spec, a regular file; in the folder of specs, it may be a link to a readable folder.

    :raises OSError: if it cannot be read
    :raises NamedFileError: if it is not such a file
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
    below = [real.relative_to(root) for root in roots if real.is_relative_to(root)]
    if not below:
        raise NamedFileError(
            "a spec may only name files below its folder",
            f"put the file beside the spec, or its folder into {SETTING} where Airflow and the command line run",
        )
    if all(map(_is_hidden, below)):
        raise NamedFileError(
            "a spec may not name hidden files, nor files in hidden folders",
            "programs keep keys and tokens there (.git/config, .netrc); give a file that is meant another name",
        )


def _is_hidden(path: Path) -> bool:
    """Return whether a path leads through a hidden folder, or to a hidden file that is not YAML.

    Names that begin with two dots are those of mounted configurations in Kubernetes: ``..data``.
    """
    hidden = [part.startswith(".") and not part.startswith("..") for part in path.parts]
    return any(hidden[:-1]) or (any(hidden[-1:]) and path.suffix not in (".yaml", ".yml"))


def _read(path: Path, limit: int, roots: tuple[Path, ...]) -> str:
    """Read a file after checking the opened file, because the name may refer to another file in the meantime."""
    # opening a pipe without a writer would block
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise NamedFileError("it is a folder", "name its files")
        if not stat.S_ISREG(status.st_mode):
            raise NamedFileError("it is not a regular file")
        opened = Path(f"/proc/self/fd/{descriptor}")
        if roots and opened.is_symlink():
            _check_below(opened.readlink(), roots)
        if roots and status.st_nlink > 1 and not status.st_mode & stat.S_IROTH:
            raise NamedFileError(
                "it has another name elsewhere (a hard link), and not everybody may read it",
                "copy it, instead of linking it",
            )
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
