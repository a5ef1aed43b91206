"""The callbacks that a spec's ``notify`` asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.notifications.notices import NoticeCallback

if TYPE_CHECKING:
    from airflow_megatron.spec.outline import SweepOutline
    from airflow_megatron.spec.schema import NoticeKind


def callbacks(sweep: SweepOutline, what: NoticeKind, *, always: bool = False) -> list[NoticeCallback]:
    """Return the callbacks of a task for one kind of notice, none where nobody wants it.

    :param sweep: the sweep
    :param what: kind of notice
    :param always: tell of tasks that know of no job, too
    """
    sections = [section for section in sweep.settings.notify if what in section.on]
    return [NoticeCallback(what, sections, always=always)] if sections else []
