"""Output that is either complete or absent."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def new_directory(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to ``target`` if the block succeeds, and is deleted if it fails.

    :param target: the directory to create.
    :param replace: whether an existing directory may be replaced; an empty one always is.
    :raises OSError: if ``target`` exists, is not empty and may not be replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        temporary.chmod(0o777 & ~umask())
        yield temporary
        if replace and target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file by rename.

    :param path: the file.
    :param content: what to write.
    """
    write_text(path, json.dumps(content, indent=2, sort_keys=True, default=str) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a text file by rename.

    :param path: the file.
    :param content: what to write.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)


def umask() -> int:
    """Return the process's umask. Reading it changes it briefly, so call this before threads create files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
