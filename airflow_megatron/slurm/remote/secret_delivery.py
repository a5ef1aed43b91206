"""Deliver the values of secrets to an attempt, as files that only the job's user can read.

The values are part of the script that submits the attempt (:mod:`airflow_megatron.slurm.submission.single_job`), which
reaches the login node on the standard input of its shell. The submission that holds the attempt's claim writes them
with mode 0600 to ``<attempt>/secrets`` (mode 0700), and the job script reads them at its start
(``shell/job_secret.sh``). A job that ends with status 0 removes the directory (``shell/job_guard.sh``); after any other
end, when Slurm may start the job again, the directory stays until the attempt has a verdict.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.layout.run_layout import secrets_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.slurm.remote.transport import CommandResult

MAX_BYTES: Final = 120_000
"""Linux limits an environment variable with its name to 128 KiB."""


class SecretValueError(AirflowMegatronError, ValueError):
    """A value that no environment variable can have; the message does not contain the value."""


def delivered_file(attempt_dir: str, name: str) -> str:
    """Return the path from which an attempt's script reads a delivered secret."""
    return f"{secrets_of(attempt_dir)}/{name}"


def checked_value(value: str) -> str:
    """Return the value without final line breaks, if an environment variable can have it.

    :raises SecretValueError: if it holds only line breaks, is too long, or contains NUL or an unpaired surrogate
    """
    if not value.strip("\n"):
        raise SecretValueError("is empty")
    if "\0" in value:
        raise SecretValueError("holds a NUL character, which a variable cannot")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise SecretValueError("is not a text that UTF-8 can hold") from None
    if size > MAX_BYTES:
        raise SecretValueError(f"is longer than {MAX_BYTES} bytes, more than a variable can hold")
    return value


def delivery_words(secrets: Mapping[str, str]) -> str:
    """Return secrets as arguments of ``am_deliver_secrets``: names, and values in base64.

    :param secrets: variable → value, see :func:`checked_value`
    """
    words = (
        (quote(name), base64.b64encode(value.encode()).decode("ascii")) for name, value in secrets.items()
    )
    return " ".join(word for pair in words for word in pair)


def removal_script(attempt_dir: str) -> str:
    """Return the remote script that removes the delivered secrets of an attempt; it is idempotent."""
    folder = quote_path(secrets_of(attempt_dir))
    return framed(f"am_said=$(rm -rf {folder} 2>&1) || printf 'failed %s\\n' \"$am_said\"")


def parse_removal(result: CommandResult) -> None:
    """Check the output of a removal script.

    :raises TransportError: if the removal failed or the output is incomplete
    """
    for line in unframed(result):
        if line.startswith("failed "):
            raise TransportError(f"secrets of a job could not be removed: {line.removeprefix('failed ')}")
