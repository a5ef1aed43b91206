"""Keys of a run's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.model.cluster_profile import is_cluster_name
from airflow_megatron.spec.trust.plain_text import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

SWEEP_KEYS: Final = ("points", "limit", "cluster", "dry_run", "fresh_start")
"""Keys of a sweep's run."""
POINT_KEYS: Final = ("point", "cluster", "fresh_start")
"""Keys of a point's run that a user starts."""
LAUNCHED_POINT_KEYS: Final = (*POINT_KEYS, "pin", "run", "digest", "submitted")
"""Keys of a point's run that the sweep's run starts: its plan, and the attempts that are already submitted."""
_KEYS_BEFORE_PINS: Final = {"point", "digest", "cluster", "fresh_start", "jobs", "submitted"}


_MAX_TEXT: Final = 20_000
"""Maximum number of characters of a text."""
MOST_POINTS: Final = 10**6
"""Maximum of ``limit``."""
_DEEPEST: Final = 40
"""Maximum number of lists and objects around a value; Airflow's processes exchange at most some 250."""
_SENDABLE: Final = range(-(2**63), 2**64)
"""Numbers in messages between Airflow's processes."""
_MAX_DIGITS: Final = 1000
_TOO_DEEP: Final = "(nested too deeply)"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


def _is_cluster(value: Any) -> bool:
    return isinstance(value, str) and is_cluster_name(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_POINTS


def _are_attempts(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(key) and _is_count(one) for key, one in value.items())


_VALUES: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "points": (_is_text, "text: names, patterns or an expression"),
    "point": (_is_text, "the name of a point"),
    "limit": (_is_count, "a number of points"),
    "cluster": (_is_cluster, "the name of a cluster profile: letters, digits, '_' and '-'"),
    "dry_run": (_is_switch, "true or false"),
    "fresh_start": (_is_switch, "true or false"),
    "pin": (_is_text, "the digest of a stored plan"),
    "digest": (_is_text, "the digest of a point's jobs"),
    "run": (_is_text, "the id of a run"),
    "submitted": (_are_attempts, "numbers of attempts by their stages"),
}


def sendable(value: Any, depth: int = _DEEPEST) -> Any:
    """Return a run's configuration without values that Airflow's processes cannot send to each other.

    A task of a run with such a value does not start. Airflow then sends the task's callback with the configuration to
    the DAG processor, which would end, also after each restart. Larger numbers become text, lone surrogates become
    escapes, and deeper values a remark: :func:`refuse_unknown_keys` then names their keys.

    :param value: the configuration, or a part of it
    :param depth: permitted number of lists and objects around its values
    """
    if isinstance(value, int):
        return value if value in _SENDABLE else _digits(value)
    if not isinstance(value, dict | list):
        return storable(value) if isinstance(value, str) else value
    if depth == 0:
        return _TOO_DEEP
    if isinstance(value, dict):
        return {storable(key): sendable(item, depth - 1) for key, item in value.items()}
    return [sendable(item, depth - 1) for item in value]


def _digits(value: int) -> str:
    return str(value) if abs(value) < 10**_MAX_DIGITS else f"(a number of more than {_MAX_DIGITS} digits)"


def is_from_before_pins(conf: Mapping[str, Any], run: Any) -> bool:
    """Return whether a version of this package launched a point's run that wrote the jobs into its configuration.

    Such a run may be queued during an upgrade of the package. A user cannot start one, because only runs that a task
    has started are ``operator_triggered``.

    :param run: the run from the task's context
    """
    launched = getattr(run, "run_type", None) == "operator_triggered"
    return launched and set(conf) == _KEYS_BEFORE_PINS and isinstance(conf["jobs"], dict)


def refuse_unknown_keys(conf: Mapping[str, Any] | None, known: Iterable[str]) -> None:
    """Fail before any submission if a run's configuration has an unknown key or a value of a wrong type.

    :param conf: the configuration
    :param known: the keys that are read; ``None`` is the value of a missing key
    :raises AirflowFailException: with the key, and similar names or the expected value
    """
    names = sorted(known)
    for key in conf or {}:
        if key not in names:
            hint = did_you_mean(str(key), names) or f"known: {', '.join(names)}"
            raise AirflowFailException(f"the run's configuration has an unknown key {key!r}; {hint}")
    for key, value in (conf or {}).items():
        is_right, expected = _VALUES[key]
        if value is not None and not is_right(value):
            raise AirflowFailException(
                f"{key!r} of the run's configuration is no such value; write {expected}"
            )
