"""The callbacks that tell of the ends of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.notifications.notices import NoticeCallback

if TYPE_CHECKING:
    from airflow_megatron.spec.model.outline import SweepOutline
    from airflow_megatron.spec.model.schema import NoticeKind


def callbacks(sweep: SweepOutline, what: NoticeKind, *, always: bool = False) -> list[NoticeCallback]:
    """Return the callbacks of a task for one kind of notice; who is told, a run has pinned.

    :param sweep: the sweep
    :param what: kind of notice
    :param always: tell of tasks that know of no job, too
    """
    return [NoticeCallback(what, sweep.settings.notify, always=always)]
