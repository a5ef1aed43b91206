"""Airflow connections that specs may name for trackers: those that the operator lists, none by default.

The connection contains both the address and the credentials, so no spec can redirect them.
"""

from __future__ import annotations

from typing import Final

from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.trust.operator_lists import listed

CONNECTIONS: Final = "AIRFLOW_MEGATRON_TRACKER_CONNECTIONS"
"""Environment variable with the Airflow connections that ``trackers:`` of specs may name, separated by commas."""


def connection_refusal(connection: str) -> tuple[str, str] | None:
    """Return the problem and the hint for a connection; None if it is permitted."""
    permitted = listed(CONNECTIONS)
    if connection in permitted:
        return None
    near = did_you_mean(connection, permitted, alike=0.8)
    hint = f"the operator of Airflow adds connections in {CONNECTIONS}"
    return (
        f"{connection!r:.80} is not a connection that trackers of specs may use on this Airflow",
        f"{near} or {hint}" if near else hint,
    )
