"""Decide which of several spec files keeps a sweep name that they share."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.spec.documents.project import sweep_specs_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_RIVALS: Final = 5
"""Maximum number of files with a shared name in an error."""


def record_owner(sweep: str, file: str, store: PinStore) -> None:
    """Record the file from which a sweep is planned; copies of the file cannot take over its name afterwards."""
    store.set_owner(sweep, _within_specs(file))


def owning_file(sweep: str, files: Iterable[str], store: PinStore | None = None) -> str | None:
    """Return the spec file that owns the name of a sweep.

    That is the only file with the name, or the file from which the sweep was planned; None if several files have the
    name and none was planned.

    :param files: all files that define a sweep of this name
    """
    known = list(files)
    if len(known) == 1:
        return known[0]
    owner = (store or PinStore()).owner(sweep)
    return next((file for file in known if _within_specs(file) == owner), None)


def repeated_name(sweep: str, file: str, files: Sequence[str], kept: str | None) -> tuple[str, str]:
    """Return the error and the hint for a file with the sweep name of another file.

    :param files: all files with the name
    :param kept: the file that owns the name, see :func:`owning_file`
    """
    if kept is None:
        others = itertools.islice((other for other in files if other != file), MOST_RIVALS)
        listed = ", ".join(sorted(map(_within_specs, others)))
        more = len(files) - 1 - MOST_RIVALS
        if more > 0:
            message = f"{listed} and {more:,} more files define a sweep {sweep!r} too: all are refused"
        else:
            message = (
                f"{listed} defines a sweep {sweep!r} too, and neither has been planned: both are refused"
            )
    else:
        message = (
            f"{_within_specs(kept)} defines a sweep {sweep!r} too, and keeps the name: it was planned first"
        )
    return message, "give it another name"


def _within_specs(file: str) -> str:
    """Return a file's path below the folder of specs, the same on every machine; an absolute path for other files."""
    path, folder = Path(file).absolute(), sweep_specs_dir().absolute()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
