"""Bases of all triggers and of the tasks that defer: serialization, the time of the event, and whose event it is."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import time
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.configuration import conf
from airflow.sdk import BaseOperator, TaskInstanceState
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_megatron.spec.trust.plain_text import storable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from datetime import timedelta

    from airflow.sdk import Context

HEARTBEATS_OF_A_WORKER = 1.5
"""Maximum delay in seconds until a worker detects and reports the end of its task's process (one heartbeat)."""
STATE_TIMEOUT_S = 5.0
"""Time limit of a question to Airflow in seconds; it allows ``on_kill`` 30 s."""
_NONCE: Final = "nonce"
"""Key of an event."""
_WAIT: Final = "wait"
"""Keyword argument with which a task defers: path and arguments of its trigger."""


class DeferringTrigger(BaseTrigger):
    """A trigger that stores each argument of its constructor, and its bases', in an attribute of that name.

    If an event arrives before the scheduler has recorded the end of the deferring worker, the resumed task fails:
    "executor reported that the task instance finished with state success, but the task instance's state attribute is
    running". The first event is therefore delayed until then.

    :param nonce: identifies the wait of one task, and comes back in the event; empty in triggers of older versions
    """

    def __init__(self, *, nonce: str = "") -> None:
        super().__init__()
        self.nonce = nonce

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and every argument."""
        names = [
            name
            for base in reversed(type(self).__mro__)
            if issubclass(base, DeferringTrigger) and "__init__" in vars(base)
            for name, parameter in inspect.signature(base.__init__).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {name: getattr(self, name) for name in names}

    def wait(self) -> AsyncGenerator[TriggerEvent]:
        """Wait, and yield the event."""
        raise NotImplementedError

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the event of :meth:`wait`, but not before the worker that deferred has ended.

        The triggerer would end with PostgreSQL's error about an event that cannot be stored, and all triggers with it.
        """
        heartbeat = conf.getint("workers", "min_heartbeat_interval")
        earliest = time.monotonic() + HEARTBEATS_OF_A_WORKER * heartbeat
        async with aclosing(self.wait()) as events:
            async for event in events:
                await asyncio.sleep(max(0.0, earliest - time.monotonic()))
                payload = storable(event.payload)
                yield TriggerEvent({**payload, _NONCE: self.nonce} if self.nonce else payload)

    async def task_still_waits(self) -> bool:
        """Return whether the task still waits, although Airflow stops this trigger as after an action of a user.

        Airflow does so too when another triggerer has taken the trigger over: after heartbeats of this one that came
        late, because its machine was suspended or did not reach the database (``update_triggers`` in
        ``airflow/jobs/triggerer_job_runner.py`` cancels every trigger that is not assigned to this triggerer any more).
        A user's action changes the state of the task. If a cleared task waits again, its new try has seen the job.
        """
        task = self.task_instance
        if task is None:  # in `airflow dags test`
            return False
        request = asyncio.to_thread(
            RuntimeTaskInstance.get_task_states,
            dag_id=task.dag_id,
            task_ids=[task.task_id],
            run_ids=[task.run_id],
            map_index=task.map_index,
        )
        try:
            states = await asyncio.wait_for(request, STATE_TIMEOUT_S)
        except Exception as error:  # a user's action must have its effect
            self.log.warning("Airflow does not tell the state of %s: %r", task.task_id, error)
            return False
        return TaskInstanceState.DEFERRED in states.get(task.run_id, {}).values()


class DeferringTask(BaseOperator):
    """An operator or sensor that defers again if it is sent the event of another task's trigger.

    On SQLite, Airflow gives the number of a deleted trigger to the next one, and then delivers to a task the event of
    another's trigger that it has not stopped yet. Tasks that an older version has deferred, and those in ``airflow dags
    test``, which loses the arguments of ``defer``, accept every event.
    """

    def defer(
        self,
        *,
        trigger: BaseTrigger,
        method_name: str,
        kwargs: dict[str, Any] | None = None,
        timeout: timedelta | int | float | None = None,
    ) -> NoReturn:
        """Defer the task, and remember its trigger."""
        if isinstance(trigger, DeferringTrigger):
            trigger.nonce = uuid.uuid4().hex
            kwargs = {**(kwargs or {}), _WAIT: list(trigger.serialize())}
        super().defer(trigger=trigger, method_name=method_name, kwargs=kwargs, timeout=timeout)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task after its own trigger has fired."""
        given = dict(next_kwargs or {})
        wait, nonce, is_event = given.pop(_WAIT, None), None, "event" in given
        if isinstance(given.get("event"), Mapping):
            given["event"] = dict(given["event"])
            nonce = given["event"].pop(_NONCE, None)
        if wait is not None and is_event:
            path, arguments = wait
            if nonce != arguments[_NONCE]:
                del given["event"]
                self.log.warning("this task was sent the event of another task's trigger; waiting again")
                module, _, name = path.rpartition(".")
                trigger = getattr(importlib.import_module(module), name)(**arguments)
                self.defer(trigger=trigger, method_name=next_method, kwargs=given)
        return super().resume_execution(next_method, given, context)
