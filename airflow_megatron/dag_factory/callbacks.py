"""The callbacks that send notices when tasks end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.notifications.notices import NoticeCallback

if TYPE_CHECKING:
    from airflow_megatron.spec.model.outline import SweepOutline
    from airflow_megatron.spec.model.schema import NoticeKind


def callbacks(sweep: SweepOutline, what: NoticeKind, *, always: bool = False) -> list[NoticeCallback]:
    """Return the callbacks of a task for one kind of notice; the notifiers are those of the run's pin.

    :param sweep: the sweep
    :param what: kind of notice
    :param always: send notices of tasks without a job, too
    """
    return [NoticeCallback(what, sweep.settings.notify, always=always)]
