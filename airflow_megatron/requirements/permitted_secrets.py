"""Airflow connections and variables that specs may pass to jobs: those that the operator names, none by default.

Every author of a spec can let a job print its secrets, so a name in these lists is available to all authors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.spec.model.secret_sources import source_text
from airflow_megatron.spec.trust.operator_lists import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

CONNECTIONS: Final = "AIRFLOW_MEGATRON_SECRET_CONNECTIONS"
"""Environment variable with the Airflow connections whose fields jobs may get, separated by commas."""
VARIABLES: Final = "AIRFLOW_MEGATRON_SECRET_VARIABLES"
"""Environment variable with the Airflow variables whose values jobs may get, separated by commas."""


def secret_refusal(source: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the problem and the hint for a secret's source in Airflow; None if it is permitted.

    :param source: from :func:`~airflow_megatron.spec.model.secret_sources.secret_sources`
    """
    kind = "connection" if "connection" in source else "variable"
    setting = CONNECTIONS if kind == "connection" else VARIABLES
    if source[kind] in listed(setting):
        return None
    return (
        f"specs on this Airflow may not read {source_text(source)}",
        f"the operator of Airflow adds {source[kind]} in {setting}; or write {{file: PATH}}, on the cluster",
    )
