"""Evaluation of a condition at each poll of a cluster, while a trigger waits."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_megatron.supervision.condition_watch import ConditionResult, ConditionWatch, OwnAttempt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from airflow_megatron.slurm.polling.poller import Poller, Subscription
    from airflow_megatron.spec.model.conditions import Condition


MOST_WORK: Final = 10_000
"""Maximum number of bytes that are searched in the event loop; a pattern takes at most 4 µs per byte."""
_THREADS: Final = 2
"""Threads for more work; polls of clusters have separate threads, so that no job delays them."""
_Result = TypeVar("_Result")


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="beside-the-loop")


async def beside_the_loop(work: int, function: Callable[[], _Result]) -> _Result:
    """Call a function, in a thread if it may block the event loop, which polls all jobs.

    :param work: number of bytes that it searches, once for each pattern, or an equivalent amount of other work
    """
    if work <= MOST_WORK:
        return function()
    return await asyncio.get_running_loop().run_in_executor(_threads(), function)


class ConditionFollower:
    """A condition with the subscriptions for its observations; without a condition there are none, and no result.

    :param watch: the condition's state, or None
    :param subscriptions: one for each of its leaves
    """

    def __init__(self, watch: ConditionWatch | None, subscriptions: list[Subscription]) -> None:
        self._watch = watch
        self._subscriptions = subscriptions
        self._logs = [question.log_file for question in watch.watches()] if watch else []

    async def look(self) -> ConditionResult | None:
        """Wait for the next observations and return the result; None without a condition."""
        if self._watch is None:
            return None
        # one poll answers all subscriptions, so waiting for them in turn takes no extra time
        found = [await anext(subscription) for subscription in self._subscriptions]
        truth = await beside_the_loop(self._watch.work(found), functools.partial(self._watch.read, found))
        for index, question in enumerate(self._watch.watches()):
            if question.log_file != self._logs[index]:  # the next attempt has a separate log
                self._logs[index] = question.log_file
                changes = {"log_file": question.log_file, "check_files": question.check_files}
                self._subscriptions[index].update(log_offset=0, **changes)
        return truth

    @property
    def is_behind(self) -> bool:
        """Whether logs of the condition have unread lines."""
        return self._watch is not None and self._watch.is_behind

    @property
    def line(self) -> str:
        """The last line that matched, stripped; empty if none did."""
        return self._watch.line if self._watch else ""

    def missing(self) -> str:
        """Return the parts that do not hold as readable text."""
        return self._watch.missing() if self._watch else ""


@asynccontextmanager
async def followed(
    poller: Poller,
    condition: Condition | None,
    attempts: Mapping[str, int],
    check_interval: float = 0.0,
    own: OwnAttempt | None = None,
) -> AsyncIterator[ConditionFollower]:
    """Evaluate a condition at each poll of a cluster while the context is open.

    :param condition: the condition, or None
    :param attempts: stage directory → first attempt whose verdict counts
    :param check_interval: seconds between two runs of a command
    :param own: the attempt whose condition it is
    """
    watch = ConditionWatch(condition, attempts, check_interval, own) if condition is not None else None
    async with AsyncExitStack() as stack:
        subscriptions = [
            await stack.enter_async_context(poller.subscribe(question))
            for question in (watch.watches() if watch else ())
        ]
        yield ConditionFollower(watch, subscriptions)
