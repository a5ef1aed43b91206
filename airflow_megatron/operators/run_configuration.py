"""What the configuration of a run may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.spec.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SWEEP_KEYS: Final = ("points", "limit", "cluster", "dry_run", "fresh_start")
"""Of a sweep's run."""
POINT_KEYS: Final = ("point", "cluster", "fresh_start")
"""Of a point's run that a person starts."""
LAUNCHED_POINT_KEYS: Final = (*POINT_KEYS, "pin", "run", "digest", "submitted")
"""Of a point's run that the sweep's run starts: the plan that it works on, and what is submitted already."""


def refuse_unknown_keys(conf: Mapping[str, Any] | None, known: Iterable[str]) -> None:
    """Fail when a run's configuration holds what nothing reads, before anything is submitted.

    :param conf: the configuration
    :param known: the keys that are read
    :raises AirflowFailException: naming the keys, and near names
    """
    names = sorted(known)
    for key in conf or {}:
        if key not in names:
            hint = did_you_mean(str(key), names) or f"known: {', '.join(names)}"
            raise AirflowFailException(f"the run's configuration has an unknown key {key!r}; {hint}")
