"""Secrets of Airflow for jobs: looked up at each submission, masked in logs, never stored."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook, Variable
from airflow.sdk.log import mask_secret

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.requirements.permitted_secrets import secret_refusal
from airflow_megatron.slurm.remote.secret_delivery import SecretValueError, checked_value
from airflow_megatron.spec.model.schema import EXTRA_FIELD
from airflow_megatron.spec.model.secret_sources import source_text
from airflow_megatron.supervision.attempts import SubmissionRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.jobs import Job


class SecretLookupError(AirflowMegatronError):
    """A secret is not available; the message does not contain its value."""


def secret_values(job: Job) -> dict[str, str]:
    """Return the secrets that Airflow delivers to a job, variable → value, and mask them in this process's logs.

    :raises SubmissionRefusedError: if the operator does not permit a secret, if it does not exist, or if its value is
        invalid in an environment variable
    """
    values: dict[str, str] = {}
    for name, source in job.delivered.items():
        try:
            values[name] = _masked_value(source)
        except SecretLookupError as error:
            raise SubmissionRefusedError(f"{job.name}: secret {name}: {error}") from None
    return values


def mask_secrets(sources: Mapping[str, Mapping[str, str]]) -> None:
    """Mask secrets in the logs of a process that shows lines of a job's log; missing secrets are ignored.

    :param sources: as a job's ``delivered``
    """
    for source in sources.values():
        try:
            _masked_value(source)
        except SecretLookupError:
            continue  # the job has the values from the time of its submission


def _masked_value(source: Mapping[str, str]) -> str:
    if (refusal := secret_refusal(source)) is not None:
        raise SecretLookupError("; ".join(refusal))
    where = source_text(source)
    try:
        found = _value(source)
    except (
        Exception
    ) as error:  # a secrets backend may raise any exception, and its message may contain the secret
        reason = f"{where} cannot be looked up ({type(error).__name__}); add it to Airflow"
        raise SecretLookupError(reason) from None
    try:
        value = checked_value(found)
    except SecretValueError as error:
        raise SecretLookupError(f"{where} {error}; correct it in Airflow") from None
    for form in {value, value.strip(), base64.b64encode(value.encode()).decode("ascii")}:
        mask_secret(form)
    return value


def _value(source: Mapping[str, str]) -> str:
    """Return a value from Airflow; empty if a connection has no such field."""
    if "variable" in source:
        return str(Variable.get(source["variable"]))
    connection = BaseHook.get_connection(source["connection"])
    field = source["field"]
    if field.startswith(EXTRA_FIELD):
        found = connection.extra_dejson.get(field.removeprefix(EXTRA_FIELD))
    else:
        found = getattr(connection, field)
    return "" if found is None else str(found)
