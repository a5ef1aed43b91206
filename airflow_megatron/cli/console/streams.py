"""The streams that commands write to: closed ones, full disks, readers that end, encodings that lack characters."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_megatron.spec.documents.project import LOCAL_VARIABLE, NoProjectError, local_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

_OF_WRITING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_NOT_PERMITTED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Let a command write its answer in UTF-8, and report answers and files that cannot be written without a traceback.

    Scripts and JSON are UTF-8 in files too; a terminal of another encoding shows a few characters wrongly.

    :raises SystemExit: with status 1, if the answer cannot be written, or a file not be read or written
    """
    if sys.stdout is None:  # the caller closed it
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if isinstance(error.filename, str):  # an error of a file, which names it
            log.debug("the command ended", exc_info=True)
            print(f"{error.filename}: {error.strerror}{_hint(error)}", file=sys.stderr)
            sys.exit(1)
        if error.errno not in (*_OF_WRITING, errno.EPIPE):
            raise
        _discard_the_rest()
        if error.errno != errno.EPIPE:
            print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _hint(error: OSError) -> str:
    """Return the remedy if this user may not write to the folder of this machine's state, as in another's checkout."""
    with contextlib.suppress(NoProjectError):
        if error.errno in _NOT_PERMITTED and Path(error.filename).is_relative_to(local_dir()):
            return f"; set {LOCAL_VARIABLE} to a folder of your own"
    return ""


def _discard_the_rest() -> None:
    """Send what is still buffered nowhere: the interpreter writes it when it ends, and would fail again."""
    with contextlib.suppress(OSError, ValueError):  # a stream of a test has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
