"""Address and credentials of a tracker, from an Airflow connection that the operator permits."""

from __future__ import annotations

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_megatron.spec.trackers.permitted_connections import connection_refusal
from airflow_megatron.spec.trackers.tracker import TrackerAccess, TrackerError


def tracker_access(connection_id: str) -> TrackerAccess:
    """Return the access data of a connection, and mask its password in the logs of this process.

    The address is the host and the port, with ``https`` unless the host or the schema has another scheme.

    :raises TrackerError: if the operator does not permit the connection, or it cannot be looked up
    """
    if (refusal := connection_refusal(connection_id)) is not None:
        raise TrackerError("; ".join(refusal))
    try:
        connection = BaseHook.get_connection(connection_id)
        options = connection.extra_dejson
    except (
        Exception
    ) as error:  # a secrets backend may raise any exception, and its message may contain the secret
        raise TrackerError(
            f"the connection {connection_id} cannot be looked up ({type(error).__name__}); add it to Airflow"
        ) from None
    if connection.password:
        mask_secret(connection.password)
    host = connection.host or ""
    if host and "://" not in host:
        host = f"{connection.schema or 'https'}://{host}"
    if host and connection.port:
        host = f"{host.rstrip('/')}:{connection.port}"
    return TrackerAccess(host, connection.login or "", connection.password or "", options)
