"""One poll loop per cluster, shared by every watcher of the process."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
import time
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_megatron.slurm.polling.garbage_collection import PAUSES
from airflow_megatron.slurm.polling.pacing import left_out, news, patience, pause
from airflow_megatron.slurm.polling.poll import LOG_BYTES_PER_JOB, LOG_BYTES_PER_POLL, parse_poll, poll_script
from airflow_megatron.slurm.remote.profile import DEFAULT_COMMANDS, SlurmCommands
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.states.observation import Observation, Unreachable, Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence

    from airflow_megatron.slurm.remote.transport import Transport

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.3
"""How long a newcomer's poll waits for others that arrive with it."""

NEWCOMER_SPACING_S = 2.0
"""From the beginning of one poll to that of the next when newcomers keep coming: a launch brings hundreds, and
slurmctld's limiter allows a user two requests a second.
"""

WATCHES_PER_COMMAND = 5_000
"""More are asked for in several commands: a script has some 260 bytes for each, and a time-out."""

DELIVERIES_AT_ONCE = 20
"""Watchers woken before others get their turn in the event loop; each may write a line to its task's log."""

LEAST_REST = 0.25
"""Part of the interval that lies between two polls however long they take."""

MAX_BACKOFF_S = 60.0
MAX_REFUSED_BACKOFF_S = 600.0
"""For a refused login: sites lock accounts after some of them."""

LINGER_S = 30.0
"""How long the connection is kept without watchers: a stage's successor often comes within seconds."""


@dataclass
class PollerStats:
    """Counters since the poller was made.

    :param ticks: polls begun.
    :param commands: remote commands run, successful or not.
    :param reconnects: transports opened after the first.
    :param failures: polls that failed.
    :param last_duration: seconds that the last successful poll took.
    :param last_script_bytes: size of the last poll's scripts.
    :param last_answer_bytes: size of the last poll's answers.
    :param last_pause: seconds from the last poll's beginning to the next one's, as planned.
    """

    ticks: int = 0
    commands: int = 0
    reconnects: int = 0
    failures: int = 0
    last_duration: float = 0.0
    last_script_bytes: int = 0
    last_answer_bytes: int = 0
    last_pause: float = 0.0


class Subscription:
    """A watcher's end: an async iterator of observations that always yields the newest one.

    A watcher that is slow misses observations but no log bytes: the log's offset moves on only when an
    observation is taken. Use it as an async context manager, or call :meth:`close`.
    """

    def __init__(self, poller: Poller, watch: Watch, key: str) -> None:
        self._poller = poller
        self._watch = replace(watch, key=key)
        self._version = 0
        self._newest: Observation | None = None
        self._arrived = asyncio.Event()
        self._closed = False
        self._asked = float("-inf")
        self._news: Hashable = None
        self._changed = time.monotonic()
        self._patience = 0.0
        self._left_out = False

    @property
    def watch(self) -> Watch:
        """What is watched now."""
        return self._watch

    def update(self, **changes: Any) -> None:
        """Change what is watched (fields of :class:`Watch`); an observation of the former watch is dropped.

        :param changes: for example ``job_id="8", log_file=…, log_offset=0`` for a new attempt.
        """
        self._watch = replace(self._watch, **changes)
        self._version += 1
        self._patience = 0.0
        self._newest = None
        self._arrived.clear()
        self._poller.wake()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Observation:
        """Return the newest observation not seen yet; cancelling the wait loses nothing."""
        while self._newest is None:
            if self._closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        observation, self._newest = self._newest, None
        if observation.log_chunk:
            self._watch = replace(self._watch, log_offset=observation.log_offset + len(observation.log_chunk))
        return observation

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching; closing twice does no harm."""
        if not self._closed:
            self._closed = True
            self._arrived.set()
            self._poller.unsubscribe(self)

    @property
    def key(self) -> str:
        """The subscription's own key in a poll."""
        return self._watch.key

    @property
    def version(self) -> int:
        """Grows with every :meth:`update`."""
        return self._version

    @property
    def patience(self) -> float:
        """Seconds that the next observation may take."""
        return self._patience

    @property
    def left_out(self) -> bool:
        """The newest poll brought nothing of the log's news: others' logs had filled it."""
        return self._left_out

    def question(self) -> Watch:
        """Return what to ask in the poll that begins now; for the poller."""
        watch = self._watch
        if not watch.commands or not watch.command_interval:
            return watch
        if time.monotonic() - self._asked < watch.command_interval:
            return replace(watch, commands=())
        self._asked = time.monotonic()
        return watch

    def deliver(self, observation: Observation, version: int) -> None:
        """Hand over what a poll found; for the poller.

        :param observation: the newest one.
        :param version: the subscription's version when the poll was begun.
        """
        if version != self._version or self._closed:
            return
        seen_now = news(observation)
        if seen_now != self._news:
            self._news, self._changed = seen_now, time.monotonic()
        self._patience = patience(self._watch, observation, time.monotonic() - self._changed)
        self._left_out = left_out(observation)
        # Bytes taken while this poll was under way are in it again.
        seen = self._watch.log_offset - observation.log_offset
        if seen > 0 and observation.log_chunk:
            observation = replace(
                observation, log_offset=self._watch.log_offset, log_chunk=observation.log_chunk[seen:]
            )
        self._newest = observation
        self._arrived.set()


class Poller:
    """Asks one cluster once per tick on behalf of all its watchers.

    Lives in one event loop; :meth:`shared` gives the one for a key. A failed poll changes nothing: the loop
    reconnects with growing, jittered pauses for as long as somebody watches, and reports to the watchers since
    when and why.
    """

    _by_loop: ClassVar[weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, Poller]]] = (
        weakref.WeakKeyDictionary()
    )

    def __init__(
        self,
        transport_factory: Callable[[], Awaitable[Transport]],
        *,
        interval: float,
        commands: SlurmCommands = DEFAULT_COMMANDS,
        command_timeout: float = 60.0,
        name: str = "",
    ) -> None:
        """Make a poller; it starts with its first watcher.

        :param transport_factory: opens a connection to the login node.
        :param interval: seconds from the beginning of one poll to that of the next, up to four times as many
            while nothing happens (:mod:`airflow_megatron.slurm.polling.pacing`).
        :param commands: how Slurm's commands are called there.
        :param command_timeout: seconds a poll may take.
        :param name: for log messages.
        """
        self.interval = interval
        self.stats = PollerStats()
        self._factory = transport_factory
        self._commands = commands
        self._command_timeout = command_timeout
        self._name = name
        self._subscriptions: dict[str, Subscription] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._transport: Transport | None = None
        self._opened = 0
        self._unreachable: Unreachable | None = None
        self._unreachable_from = 0.0
        self._refused = False
        self._began = float("-inf")
        self._next_key = 0

    @classmethod
    def shared(
        cls,
        key: Hashable,
        transport_factory: Callable[[], Awaitable[Transport]],
        *,
        interval: float,
        commands: SlurmCommands = DEFAULT_COMMANDS,
        command_timeout: float = 60.0,
    ) -> Poller:
        """Return the running event loop's poller for *key*, made at the first call.

        :param key: what identifies the connection, for example its id and the slurm_bin directory.
        :param transport_factory: used by the first caller's poller only.
        :param interval: the shortest one asked for so far counts.
        :param commands: as *transport_factory*.
        :param command_timeout: as *transport_factory*.
        """
        pollers = cls._by_loop.setdefault(asyncio.get_running_loop(), {})
        poller = pollers.get(key)
        if poller is None:
            poller = pollers[key] = cls(
                transport_factory,
                interval=interval,
                commands=commands,
                command_timeout=command_timeout,
                name=str(key),
            )
        poller.interval = min(poller.interval, interval)
        return poller

    @property
    def unreachable(self) -> Unreachable | None:
        """Since when and why polls fail, None while they succeed."""
        return self._unreachable

    def subscribe(self, watch: Watch) -> Subscription:
        """Watch a job from now on; the first observation comes without waiting for the next tick."""
        self._next_key += 1
        subscription = Subscription(self, watch, str(self._next_key))
        self._subscriptions[subscription.key] = subscription
        if self._unreachable is not None:
            subscription.deliver(self._nothing(), subscription.version)
        if self._task is None:
            # An empty context: log lines of the loop must not land in the task log of the first watcher.
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"slurm-poller {self._name}", context=contextvars.Context()
            )
        self.wake()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Forget a watcher."""
        self._subscriptions.pop(subscription.key, None)

    def wake(self) -> None:
        """Poll soon: something new is to be watched."""
        self._wake.set()

    async def _run(self) -> None:
        try:
            idle_since: float | None = None
            while True:
                if self._subscriptions:
                    idle_since = None
                    await self._tick()
                else:
                    idle_since = idle_since or time.monotonic()
                    if time.monotonic() - idle_since > LINGER_S:
                        return
                await self._pause()
        finally:
            # From here on a newcomer starts a loop of its own.
            self._task = None
            PAUSES.end()
            transport, self._transport = self._transport, None
            if transport is not None:
                await self._close(transport)

    async def _pause(self) -> None:
        if self._unreachable is not None:
            # Newcomers do not hurry a cluster that does not answer.
            longest = MAX_REFUSED_BACKOFF_S if self._refused else MAX_BACKOFF_S
            # a float does not hold the doublings of a weekend
            doubled = 2.0 ** min(self._unreachable.failures, 16)
            await asyncio.sleep(min(longest, doubled * random.uniform(0.5, 1.5)))
            return
        watchers = self._subscriptions.values()
        self.stats.last_pause = pause(self.interval, (each.patience for each in watchers))
        if any(each.left_out for each in watchers):
            self.stats.last_pause = min(self.interval, NEWCOMER_SPACING_S)
        try:
            took = time.monotonic() - self._began
            # not wait_for: in Python 3.11 it swallows a cancellation that comes together with the event
            async with asyncio.timeout(max(self.stats.last_pause - took, LEAST_REST * self.interval)):
                await self._wake.wait()
        except TimeoutError:
            return
        spacing = self._began + min(NEWCOMER_SPACING_S, self.interval) - time.monotonic()
        await asyncio.sleep(max(spacing, min(DEBOUNCE_S, self.interval)))

    async def _tick(self) -> None:
        self._wake.clear()
        self.stats.ticks += 1
        subscriptions = self._in_turn()
        versions = [subscription.version for subscription in subscriptions]
        watches = [subscription.question() for subscription in subscriptions]
        self._began = time.monotonic()
        try:
            observations = await self._poll(watches)
        except Exception as error:
            # whatever it is, the next poll may succeed: nobody's job is given up for it
            await self._failed(error)
            observations = {each.key: self._nothing(each.watch.log_offset) for each in subscriptions}
            await self._deliver(subscriptions, versions, observations)
            return
        PAUSES.shorten(len(subscriptions))
        self.stats.last_duration = time.monotonic() - self._began
        if self._unreachable is not None:
            log.info("%s answers again after %d failed polls", self._name, self._unreachable.failures)
            self._unreachable = None
        await self._deliver(subscriptions, versions, observations)

    async def _deliver(
        self,
        subscriptions: Sequence[Subscription],
        versions: Sequence[int],
        observations: Mapping[str, Observation],
    ) -> None:
        """Wake the watchers, some at a time: each has work to do, and all share the event loop with others."""
        for number, (subscription, version) in enumerate(zip(subscriptions, versions, strict=True), 1):
            subscription.deliver(observations[subscription.key], version)
            if number % DELIVERIES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _in_turn(self) -> list[Subscription]:
        """Return all subscriptions, those first whose logs were left out; the others begin with others each tick.

        A poll sends a limited amount of log.
        """
        subscriptions = list(self._subscriptions.values())
        first = self.stats.ticks * (LOG_BYTES_PER_POLL // LOG_BYTES_PER_JOB) % max(len(subscriptions), 1)
        turned = subscriptions[first:] + subscriptions[:first]
        return sorted(turned, key=lambda subscription: not subscription.left_out)

    async def _poll(self, watches: Sequence[Watch]) -> dict[str, Observation]:
        observations: dict[str, Observation] = {}
        sent = received = 0
        for first in range(0, len(watches), WATCHES_PER_COMMAND):
            part = watches[first : first + WATCHES_PER_COMMAND]
            # Thousands of watches make a script of more than 1 MB: not in the event loop's time.
            script = await asyncio.to_thread(poll_script, part, self._commands)
            if self._transport is None:
                self._transport = await self._factory()
                self.stats.reconnects += self._opened > 0
                self._opened += 1
            self.stats.commands += 1
            result = await self._transport.run(script, timeout=self._command_timeout)
            observations |= await asyncio.to_thread(parse_poll, part, result)
            sent += len(script)
            received += len(result.stdout)
        self.stats.last_script_bytes, self.stats.last_answer_bytes = sent, received
        return observations

    async def _failed(self, error: Exception) -> None:
        self.stats.failures += 1
        reason = str(error) or type(error).__name__
        before = self._unreachable
        if before is None:
            self._unreachable_from = time.monotonic()
        self._refused = isinstance(error, TransportError) and error.permanent
        self._unreachable = Unreachable(
            # right by this machine's clock of now, whatever that clock did in between
            since=time.time() - (time.monotonic() - self._unreachable_from),
            reason=reason,
            failures=before.failures + 1 if before else 1,
        )
        if before is None or before.reason != reason:
            log.warning("%s cannot be polled: %s", self._name, reason)
        transport, self._transport = self._transport, None
        if transport is not None:
            await self._close(transport)

    async def _close(self, transport: Transport) -> None:
        try:
            await transport.close()
        except Exception:
            log.debug("closing the connection to %s failed", self._name, exc_info=True)

    def _nothing(self, log_offset: int = 0) -> Observation:
        return Observation(time=time.time(), unreachable=self._unreachable, log_offset=log_offset)
