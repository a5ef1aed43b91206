"""Secrets that Airflow keeps and hands to jobs: looked up for a submission, masked in logs, stored nowhere."""

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
    """A secret that cannot be had; the message holds no value."""


def secret_values(job: Job) -> dict[str, str]:
    """Return the secrets that Airflow hands to a job: variable → value; all are masked in logs from now on.

    :raises SubmissionRefusedError: when the operator does not permit one, there is none, or no variable can hold it
    """
    values: dict[str, str] = {}
    for name, source in job.delivered.items():
        try:
            values[name] = _masked_value(source)
        except SecretLookupError as error:
            raise SubmissionRefusedError(f"{job.name}: secret {name}: {error}") from None
    return values


def mask_secrets(sources: Mapping[str, Mapping[str, str]]) -> None:
    """Mask secrets in the logs of a process that shows lines of a job's log, as far as they are found.

    :param sources: as a job's ``delivered``
    """
    for source in sources.values():
        try:
            _masked_value(source)
        except SecretLookupError:
            continue  # the job has what was found when it was submitted


def _masked_value(source: Mapping[str, str]) -> str:
    if (refusal := secret_refusal(source)) is not None:
        raise SecretLookupError("; ".join(refusal))
    where = source_text(source)
    try:
        found = _value(source)
    except Exception as error:  # a secrets backend raises what it likes, with what it likes in the message
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
    """Return a value as Airflow has it, empty where a connection has no such field."""
    if "variable" in source:
        return str(Variable.get(source["variable"]))
    connection = BaseHook.get_connection(source["connection"])
    field = source["field"]
    if field.startswith(EXTRA_FIELD):
        found = connection.extra_dejson.get(field.removeprefix(EXTRA_FIELD))
    else:
        found = getattr(connection, field)
    return "" if found is None else str(found)
