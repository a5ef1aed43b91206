"""Megatron's tracker file, which names the newest checkpoint of a folder."""

from __future__ import annotations

from airflow_megatron.spec.trust.json_records import whole


def tracked_iteration(tracker: str | None) -> int | None:
    """Parse the content of the tracker file.

    :param tracker: its text, or None if there is none.
    :returns: its iteration; None without a tracker, for ``release`` and for text that is not a number.
    """
    found = whole(tracker)
    return found if found is not None and found >= 0 else None
