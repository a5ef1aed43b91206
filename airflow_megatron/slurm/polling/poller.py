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
from airflow_megatron.slurm.polling.job_ends import (
    MOST_RECORDS,
    AwaitedRecord,
    awaited_record,
    is_ending,
    job_ends_script,
    parse_job_ends,
)
from airflow_megatron.slurm.polling.pacing import left_out, news, patience, pause
from airflow_megatron.slurm.polling.poll import LOG_BYTES_PER_JOB, LOG_BYTES_PER_POLL, parse_poll, poll_script
from airflow_megatron.slurm.remote.profile import DEFAULT_COMMANDS, SlurmCommands
from airflow_megatron.slurm.remote.transport import LoginRefusedError, SessionRefusedError
from airflow_megatron.slurm.states.observation import Observation, Unreachable, Watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence

    from airflow_megatron.slurm.remote.transport import Transport

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.3
"""Seconds that a poll for a new watcher waits for further new watchers."""

NEWCOMER_SPACING_S = 2.0
"""Minimum seconds between the starts of two polls while new watchers arrive: a launch adds hundreds, and slurmctld's
limiter allows a user two requests per second.
"""

WATCHES_PER_COMMAND = 5_000
"""Maximum number of watches per command: the script grows by about 260 bytes per watch and has a time-out."""

DELIVERIES_AT_ONCE = 20
"""Number of watchers woken before the event loop runs other tasks; each may write a line to its task's log."""

LEAST_REST = 0.25
"""Minimum pause between two polls, as a part of the interval, however long a poll takes."""

MAX_BACKOFF_S = 60.0
MAX_REFUSED_BACKOFF_S = 600.0
"""Pause after a refused login, in seconds: sites lock accounts after repeated refusals."""

LEAST_WAIT = 2
"""Minimum seconds until the next poll for which the login node waits for the ends of jobs."""

ENDING_S = 10.0
"""Seconds for which polls follow quickly after a job has recorded its end, until Slurm notices it."""

LINGER_S = 30.0
"""Seconds for which the connection stays open without watchers: the next stage often starts within seconds."""


@dataclass
class PollerStats:
    """Counters since the creation of the poller.

    :param ticks: polls begun.
    :param commands: remote commands run, successful or not.
    :param reconnects: transports opened after the first.
    :param failures: polls that failed.
    :param last_duration: seconds that the last successful poll took.
    :param last_script_bytes: size of the last poll's scripts.
    :param last_answer_bytes: size of the last poll's answers.
    :param last_pause: seconds from the last poll's beginning to the next one's, as planned.
    :param waits: waits for the ends of jobs begun.
    """

    ticks: int = 0
    commands: int = 0
    reconnects: int = 0
    failures: int = 0
    last_duration: float = 0.0
    last_script_bytes: int = 0
    last_answer_bytes: int = 0
    last_pause: float = 0.0
    waits: int = 0


class Subscription:
    """The observations of one watch: an async iterator that yields the newest observation.

    A slow watcher misses observations but no log bytes: the log offset advances only when the watcher takes an
    observation. Use it as an async context manager, or call :meth:`close`.
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
        self._unread = False
        self._ending = False
        self._awaited_record: AwaitedRecord | None = None

    @property
    def watch(self) -> Watch:
        """The current watch."""
        return self._watch

    def update(self, **changes: Any) -> None:
        """Change fields of the :class:`Watch`; a pending observation of the former watch is dropped.

        :param changes: for example ``job_id="8", log_file=…, log_offset=0`` for a new attempt.
        """
        self._watch = replace(self._watch, **changes)
        self._version += 1
        self._patience = 0.0
        self._ending = False
        self._awaited_record = None
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
        """Stop watching; repeated calls have no effect."""
        if not self._closed:
            self._closed = True
            self._arrived.set()
            self._poller.unsubscribe(self)

    @property
    def key(self) -> str:
        """The unique key of the subscription in a poll."""
        return self._watch.key

    @property
    def version(self) -> int:
        """Incremented by every :meth:`update`."""
        return self._version

    @property
    def patience(self) -> float:
        """Seconds that the watcher can wait for the next observation."""
        return self._patience

    @property
    def left_out(self) -> bool:
        """Whether the newest poll had no room for the new bytes of this log."""
        return self._left_out

    @property
    def unread(self) -> bool:
        """Whether the newest poll could not read the files of this watch."""
        return self._unread

    @property
    def ending(self) -> bool:
        """Whether the job has recorded its end a moment ago, and Slurm has not noticed it."""
        return self._ending and time.monotonic() - self._changed < ENDING_S

    @property
    def awaited_record(self) -> AwaitedRecord | None:
        """The file in which the job, which runs or may soon run, will record its end."""
        return self._awaited_record

    def question(self) -> Watch:
        """Return the watch for the poll that starts now; called by the poller."""
        watch = self._watch
        if not watch.commands or not watch.command_interval:
            return watch
        if time.monotonic() - self._asked < watch.command_interval:
            return replace(watch, commands=())
        self._asked = time.monotonic()
        return watch

    def deliver(self, observation: Observation, version: int) -> None:
        """Deliver the observation of a poll; called by the poller.

        :param observation: the newest one.
        :param version: the subscription's version when the poll started.
        """
        if version != self._version or self._closed:
            return
        seen_now = news(observation)
        if seen_now != self._news:
            self._news, self._changed = seen_now, time.monotonic()
        quiet = time.monotonic() - self._changed
        self._patience = patience(self._watch, observation, quiet)
        self._left_out = left_out(observation)
        self._unread = observation.unreachable is not None
        self._ending = is_ending(observation)
        self._awaited_record = awaited_record(self._watch, observation, quiet)
        # The observation may repeat bytes that the watcher took while this poll was running.
        seen = self._watch.log_offset - observation.log_offset
        if seen > 0 and observation.log_chunk:
            observation = replace(
                observation, log_offset=self._watch.log_offset, log_chunk=observation.log_chunk[seen:]
            )
        self._newest = observation
        self._arrived.set()


class Poller:
    """Polls one cluster for all its watchers.

    A poller belongs to one event loop; :meth:`shared` returns the poller of a key. After a failed poll, the loop
    reconnects with growing, jittered pauses while there are watchers, and reports the failure's start and reason to
    them.
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
        """Create a poller; it starts with its first watcher.

        :param transport_factory: opens a connection to the login node.
        :param interval: seconds from the beginning of one poll to that of the next, up to four times as many while
            nothing happens (:mod:`airflow_megatron.slurm.polling.pacing`).
        :param commands: how Slurm's commands are called there, and the shortest interval.
        :param command_timeout: time limit of a poll in seconds.
        :param name: for log messages.
        """
        self.interval = max(interval, commands.min_poll_interval)
        self.stats = PollerStats()
        self._factory = transport_factory
        self._commands = commands
        self._command_timeout = command_timeout
        self._name = name
        self._subscriptions: dict[str, Subscription] = {}
        self._task: asyncio.Task[None] | None = None
        self._waiter: asyncio.Task[None] | None = None
        self._has_session_for_waits = not commands.login_budget  # of which all processes share one connection
        self._seen_records: set[str] = set()
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
        """Return the running event loop's poller for *key*; the first call creates it.

        :param key: identifies the connection, for example its id and the slurm_bin directory.
        :param transport_factory: used only by the call that creates the poller.
        :param interval: in seconds; the poller uses the shortest interval of all calls.
        :param commands: used only by the call that creates the poller.
        :param command_timeout: in seconds; used only by the call that creates the poller.
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
        poller.interval = max(min(poller.interval, interval), commands.min_poll_interval)
        return poller

    @property
    def unreachable(self) -> Unreachable | None:
        """Start and reason of the current failures; None while polls succeed."""
        return self._unreachable

    def subscribe(self, watch: Watch) -> Subscription:
        """Start to watch a job; the first observation does not wait for the next regular poll."""
        self._next_key += 1
        subscription = Subscription(self, watch, str(self._next_key))
        self._subscriptions[subscription.key] = subscription
        if self._unreachable is not None:
            subscription.deliver(self._nothing(), subscription.version)
        if self._task is None:
            # An empty context keeps the loop's log messages out of the first watcher's task log.
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"slurm-poller {self._name}", context=contextvars.Context()
            )
        self.wake()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Remove a watcher."""
        self._subscriptions.pop(subscription.key, None)

    def wake(self) -> None:
        """Poll soon, because a watch is new or changed."""
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
            # From here on a new watcher starts a new loop.
            self._task = None
            if self._waiter is not None:
                self._waiter.cancel()
            PAUSES.end()
            transport, self._transport = self._transport, None
            if transport is not None:
                await self._close(transport)

    async def _pause(self) -> None:
        if self._unreachable is not None:
            # New watchers do not shorten the pause while the cluster does not answer.
            longest = MAX_REFUSED_BACKOFF_S if self._refused else MAX_BACKOFF_S
            # bounded: the doublings of a long outage would overflow a float
            doubled = 2.0 ** min(self._unreachable.failures, 16)
            backoff = min(longest, doubled * random.uniform(0.5, 1.5))
            await asyncio.sleep(max(backoff, self._commands.min_poll_interval))
            return
        watchers = self._subscriptions.values()
        self.stats.last_pause = pause(self.interval, (each.patience for each in watchers))
        least = LEAST_REST * self.interval
        if any(each.left_out for each in watchers):
            self.stats.last_pause = self._spacing()
        if any(each.ending for each in watchers):
            self.stats.last_pause = self._spacing()
            least = LEAST_REST * self._spacing()
        rest = max(self.stats.last_pause - (time.monotonic() - self._began), least)
        self._wait_for_ends(int(rest))
        try:
            # not wait_for: in Python 3.11 it suppresses a cancellation that arrives together with the event
            async with asyncio.timeout(rest):
                await self._wake.wait()
        except TimeoutError:
            return
        spacing = self._began + self._spacing() - time.monotonic()
        await asyncio.sleep(max(spacing, min(DEBOUNCE_S, self.interval)))

    def _wait_for_ends(self, seconds: int) -> None:
        """Let the login node wait for the end of a job, and poll soon after it.

        A site that permits few sessions keeps them for commands.
        """
        if self._transport is None or not self._has_session_for_waits or seconds < LEAST_WAIT:
            return
        if self._waiter is not None and not self._waiter.done():
            return
        awaited = {record for each in self._subscriptions.values() if (record := each.awaited_record)}
        self._seen_records &= {record.path for record in awaited}
        new = sorted(record for record in awaited if record.path not in self._seen_records)
        paths = [record.path for record in new[:MOST_RECORDS]]
        if paths:
            self._waiter = asyncio.get_running_loop().create_task(
                self._wait_on_login_node(self._transport, paths, seconds),
                name=f"slurm-ends {self._name}",
                context=contextvars.Context(),
            )

    async def _wait_on_login_node(self, transport: Transport, paths: Sequence[str], seconds: int) -> None:
        self.stats.waits += 1
        try:
            # not cancelled by a poll: transports give up the connection of a command that is
            result = await transport.run(
                job_ends_script(paths, seconds), timeout=seconds + self._command_timeout
            )
            found = parse_job_ends(paths, result)
        except Exception as error:
            log.debug("%s cannot be asked for the ends of jobs: %s", self._name, error)  # a poll reports it
            return
        if found is not None:
            self._seen_records.add(found)  # not once more if it turns out to be damaged
            self.wake()

    async def _poll_beside_wait(self, watches: Sequence[Watch]) -> dict[str, Observation]:
        """Poll; if the wait has the only session that sshd permits, end it first and begin no other."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return await self._poll(watches)
        try:
            return await self._poll(watches)
        except SessionRefusedError as error:
            log.info("%s; from now on only polls notice the ends of jobs", error)
        self._has_session_for_waits = False
        waiter.cancel()
        await asyncio.wait([waiter])
        return await self._poll(watches)

    def _spacing(self) -> float:
        """Return the minimum seconds between the starts of two polls, also when watchers arrive."""
        return max(min(NEWCOMER_SPACING_S, self.interval), self._commands.min_poll_interval)

    async def _tick(self) -> None:
        self._wake.clear()
        self.stats.ticks += 1
        subscriptions = self._in_turn()
        versions = [subscription.version for subscription in subscriptions]
        watches = [subscription.question() for subscription in subscriptions]
        self._began = time.monotonic()
        try:
            observations = await self._poll_beside_wait(watches)
        except Exception as error:
            # any error: the next poll may succeed, so no watcher is stopped
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
        """Wake the watchers in groups, so that other tasks of the event loop run in between."""
        for number, (subscription, version) in enumerate(zip(subscriptions, versions, strict=True), 1):
            subscription.deliver(observations[subscription.key], version)
            if number % DELIVERIES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _in_turn(self) -> list[Subscription]:
        """Return all subscriptions: first those whose logs did not fit into the last poll, then the others, rotated.

        The order matters because a poll transfers a limited number of log bytes. Those whose files were not read come
        last, in random order, because one of them may block the reading of those after it.
        """
        subscriptions = list(self._subscriptions.values())
        first = self.stats.ticks * (LOG_BYTES_PER_POLL // LOG_BYTES_PER_JOB) % max(len(subscriptions), 1)
        turned = subscriptions[first:] + subscriptions[:first]
        unread = [subscription for subscription in turned if subscription.unread]
        random.shuffle(unread)
        read = [subscription for subscription in turned if not subscription.unread]
        return sorted(read, key=lambda subscription: not subscription.left_out) + unread

    async def _poll(self, watches: Sequence[Watch]) -> dict[str, Observation]:
        observations: dict[str, Observation] = {}
        sent = received = 0
        for first in range(0, len(watches), WATCHES_PER_COMMAND):
            part = watches[first : first + WATCHES_PER_COMMAND]
            # For thousands of watches the script exceeds 1 MB: build it in a thread, not in the event loop.
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
        self._refused = isinstance(error, LoginRefusedError)
        self._unreachable = Unreachable(
            # relative to the current time of this machine's clock, in case that clock was set in between
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
