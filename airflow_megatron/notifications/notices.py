"""Send notices of tasks to the notifiers that their spec names.

Notices of a task's end are sent by the task's callbacks (:class:`NoticeCallback` as ``on_failure_callback`` or
``on_success_callback``), all others immediately.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import get_current_context

from airflow_megatron.notices.notice import Notice
from airflow_megatron.task_runtime.stored_plan import pinned_outline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow.sdk import Context

    from airflow_megatron.spec.model.schema import NoticeKind, NotifySection

log = logging.getLogger(__name__)

NOTIFIER_SECONDS: Final = 60.0
"""Time limit of a notifier in seconds; the next attempt of a job waits for it."""

_KEY = "notice"


def send(sections: Sequence[NotifySection], notice: Notice) -> None:
    """Send a notice of the running task, or leave it to the callbacks if it is about the task's end.

    :param sections: the spec's ``notify``
    :param notice: the notice
    """
    if any(notice.as_wanted(section.on) for section in sections):
        context = get_current_context()
        if notice.what in ("failure", "finished"):
            _values(context)[_KEY] = notice
        else:
            _send(sections, notice, context)


def _send(sections: Sequence[NotifySection], notice: Notice, context: Context) -> None:
    """Send a notice to the notifiers that want its kind.

    The failure of a notifier is only logged: a job does not fail, or wait, because a chat service is down.
    """
    from airflow_megatron.notices.notifier_classes import notifier_class, rendered_arguments

    for section in sections:
        wanted = notice.as_wanted(section.on)
        if wanted is None:
            continue
        values = {**_values(context), _KEY: wanted.to_json()}
        try:
            arguments = rendered_arguments(section.notifier, section.arguments, wanted)
            notifier = notifier_class(section.notifier)
            _within_limit(partial(_notify, notifier, arguments, dict(values)))
        except Exception:
            log.exception("%s failed to send: %s", section.notifier, notice.text)


def _notify(notifier: type, arguments: Mapping[str, Any], values: dict[str, Any]) -> None:
    # notify() instead of a call, because a call would render the arguments, which may contain text of a job, with
    # access to connections and variables
    notifier(**arguments).notify(values)


def _within_limit(sending: Callable[[], object]) -> None:
    """Call a function in a thread, which is left behind at the time limit.

    :raises TimeoutError: at the time limit
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            sending()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
    thread.start()
    thread.join(NOTIFIER_SECONDS)
    if thread.is_alive():
        raise TimeoutError(f"no end within {NOTIFIER_SECONDS:.0f} s")
    for error in errors:
        raise error


class NoticeCallback:
    """A callback of a task that sends a notice of its end.

    :param what: kind of notice
    :param sections: the spec's ``notify``, for a run without a pinned one
    :param always: also send a notice of a task that has announced none
    """

    def __init__(self, what: NoticeKind, sections: Sequence[NotifySection], *, always: bool) -> None:
        self.what = what
        self.sections = tuple(sections)
        self.always = always

    def __call__(self, context: Context) -> None:
        """Send the notice that the task has announced, or one with only the data of the task."""
        announced = _values(context).get(_KEY)
        if not (isinstance(announced, Notice) or self.always):
            return
        pinned = pinned_outline(context)
        sections = pinned.settings.notify if pinned else self.sections
        notice = announced if isinstance(announced, Notice) else _task_notice(self.what, _values(context))
        _send(sections, notice, context)


def _task_notice(what: NoticeKind, values: Mapping[str, Any]) -> Notice:
    """Return the notice of a task whose job is unknown."""
    task = values["ti"]
    error = values.get("exception")
    failed = what == "failure"
    return Notice(
        what=what,
        name=f"{task.dag_id}.{task.task_id}",
        reason=str(error or "").strip() or ("its task failed" if failed else "its task has ended"),
        next_action="clear the task to try again" if failed else "",
        sweep=task.dag_id.removesuffix(".point"),
        point=task.run_id if task.dag_id.endswith(".point") else "",
        stage=task.task_id.rpartition(".")[0],
    )


def _values(context: Context) -> dict[str, Any]:
    return context  # type: ignore[return-value]
