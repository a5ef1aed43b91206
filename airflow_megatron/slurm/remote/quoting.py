"""Check and quote the paths, job names and ids in shell scripts for Slurm."""

from __future__ import annotations

import re

from airflow_megatron.spec.trust.quoting import QuotingError as QuotingError
from airflow_megatron.spec.trust.quoting import checked_path as checked_path
from airflow_megatron.spec.trust.quoting import checked_text as checked_text
from airflow_megatron.spec.trust.quoting import quote as quote

MAX_JOB_NAME_LENGTH = 200
"""Slurm's database stores 255 bytes of a job name; a search for a longer name finds nothing."""

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+:@-]*")
_JOB_ID = re.compile(r"[0-9]{1,20}(?:[_+][0-9]{1,20})?")
"""Slurm's ids are numbers of 32 bits. A text that is too long for an argument would keep sacct from being asked for the
other jobs of a poll.
"""
_GLOB_PART = re.compile(r"\[[!^]?\]?[A-Za-z0-9_.!-]*\]|[*?]")


def quote_path(path: str) -> str:
    """Return an absolute remote path as one shell word.

    :raises QuotingError: if it is relative or holds a control character (lists of paths are separated by
        newlines).
    """
    return quote(checked_path(path))


def checked_job_name(name: str) -> str:
    """Return *name* if a search in Slurm finds it exactly.

    ``squeue --name`` and ``sacct --name`` split names at commas, and their tables use ``|`` and blanks as separators,
    so a job name may contain only letters, digits and ``._=+:@-``.

    :raises QuotingError: for other characters, an empty name, or more than 200 characters.
    """
    if not _JOB_NAME.fullmatch(name):
        raise QuotingError(
            f"job name {name!r} is not usable in Slurm: "
            "use letters, digits and ._=+:@- and begin with a letter or digit"
        )
    if len(name) > MAX_JOB_NAME_LENGTH:
        raise QuotingError(
            f"job name {name[:40]!r}… has {len(name)} characters; at most {MAX_JOB_NAME_LENGTH} are kept"
        )
    return name


def checked_job_id(job_id: str) -> str:
    """Return *job_id* if it is a Slurm job id (``7``, array task ``7_3``, heterogeneous component ``7+1``).

    :raises QuotingError: if it is not.
    """
    if not _JOB_ID.fullmatch(job_id):
        raise QuotingError(f"{job_id[:80]!r} is not a Slurm job id")
    return job_id


def quote_glob(pattern: str) -> str:
    """Return an absolute path pattern as a shell word in which only ``*``, ``?`` and ``[…]`` keep their
    meaning.

    :raises QuotingError: as :func:`quote_path`.
    """
    checked_path(pattern)
    word, end = "", 0
    for part in _GLOB_PART.finditer(pattern):
        literal = pattern[end : part.start()]
        word += (quote(literal) if literal else "") + part.group()
        end = part.end()
    rest = pattern[end:]
    return word + (quote(rest) if rest else "")
