from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import time
from typing import TYPE_CHECKING

import pytest
from processor_limits import is_usual

from airflow_megatron.slurm.polling import garbage_collection
from airflow_megatron.slurm.polling import poller as poller_module
from airflow_megatron.slurm.polling.poller import Poller
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError, TransportError
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, Unreachable, Watch
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE = "7|RUNNING|1|1|1|1|n1|None|a"


class Opener:
    """A transport factory that counts."""

    def __init__(self, transport):
        self.transport = transport
        self.opened = 0
        self.refuse: str | None = None
        self.contexts: list[str | None] = []

    async def __call__(self):
        self.contexts.append(MARK.get())
        if self.refuse is not None:
            raise OSError(self.refuse)
        self.opened += 1
        return self.transport


MARK: contextvars.ContextVar[str | None] = contextvars.ContextVar("mark", default=None)


@pytest.fixture
def opener(transport):
    return Opener(transport)


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch):
    monkeypatch.setattr(poller_module.random, "uniform", lambda *_: 0.02)


async def take(subscription, timeout: float = 60.0):
    return await asyncio.wait_for(anext(subscription), timeout)


def queue(slurm, *rows):
    slurm.behave("squeue", "cat <<'E'\n{}\nE\nexit 0".format("\n".join(rows)))


@pytest.mark.slow
async def test_one_command_and_one_connection_for_all(slurm, opener):
    queue(slurm, *(f"{number}|RUNNING|1|1|1|1|n1|None|j{number}" for number in range(100)))
    poller = Poller.shared("cluster", opener, interval=0.3)
    assert Poller.shared("cluster", opener, interval=60) is poller
    assert Poller.shared("other", opener, interval=60) is not poller
    subscriptions = [poller.subscribe(Watch(key="same", job_id=str(number))) for number in range(100)]
    seen = await asyncio.gather(*(take(one) for one in subscriptions))
    assert [one.queue.job_id for one in seen] == [str(number) for number in range(100)]
    assert (poller.stats.ticks, poller.stats.commands, opener.opened) == (1, 1, 1)
    await asyncio.gather(*(take(one) for one in subscriptions))
    assert (poller.stats.commands, opener.opened) == (2, 1)
    assert opener.transport.most_running == 1
    for one in subscriptions:
        one.close()


@pytest.mark.slow
async def test_a_newcomer_does_not_wait_for_the_interval(slurm, opener):
    queue(slurm, QUEUE)
    poller = Poller.shared("cluster", opener, interval=60)
    async with poller.subscribe(Watch(key="x", job_id="7")) as first:
        await take(first)
        async with poller.subscribe(Watch(key="x", job_id="7")) as second:
            assert (await take(second, 30)).queue.state is JobState.RUNNING
    assert poller.stats.commands == 2


@pytest.mark.slow
async def test_polls_respect_the_minimum_interval_of_the_site(slurm, opener, monkeypatch):
    queue(slurm, QUEUE)
    begun: list[float] = []
    run = opener.transport.run

    async def noted(script: str, *, timeout: float):
        begun.append(time.monotonic())
        return await run(script, timeout=timeout)

    monkeypatch.setattr(opener.transport, "run", noted)
    commands = SlurmCommands(min_poll_interval=1.0)
    poller = Poller.shared("limited", opener, interval=0.05, commands=commands)
    assert Poller.shared("limited", opener, interval=0.05, commands=commands).interval == 1.0
    began = time.monotonic()
    async with poller.subscribe(Watch(key="x", job_id="7")) as first:
        await take(first)
        async with poller.subscribe(Watch(key="x", job_id="7")) as second:
            await take(second)
            # a poll counts from before its command: the first one opens the connection in between
            assert 0.8 <= begun[1] - begun[0] < 2.5, "also for a newcomer"
            opener.transport.fail_with = "connection reset"
            while (await take(second)).unreachable is None:
                pass
            opener.transport.fail_with = None
            while (await take(second)).unreachable is not None:
                pass
    assert poller.stats.commands - 1 <= time.monotonic() - began


@pytest.mark.slow
async def test_failed_polls_change_nothing_and_recover(slurm, opener, caplog):
    caplog.set_level(logging.INFO)
    queue(slurm, QUEUE)
    poller = Poller.shared("cluster", opener, interval=0.05)
    async with poller.subscribe(Watch(key="x", job_id="7")) as subscription:
        await take(subscription)
        opener.transport.fail_with = "connection reset"
        while (observation := await take(subscription)).unreachable is None:
            pass
        assert observation.unreachable.reason == "connection reset"
        assert (observation.queue_ok, observation.accounting_ok, observation.queue) == (False, False, None)
        since = observation.unreachable.since
        began = time.monotonic()
        while time.monotonic() - began < 0.6:
            observation = await take(subscription)
        assert observation.unreachable.failures >= 2
        assert observation.unreachable.since == pytest.approx(since, abs=0.3)
        assert poller.unreachable is not None
        newcomer = poller.subscribe(Watch(key="y", job_id="7"))
        assert (await take(newcomer, 1)).unreachable is not None
        newcomer.close()
        opener.transport.fail_with = None
        opener.refuse = "refused"
        while observation.unreachable.reason != "refused":
            observation = await take(subscription)
        opener.refuse = None
        while (observation := await take(subscription)).unreachable is not None:
            pass
        assert observation.queue.state is JobState.RUNNING
        assert poller.stats.reconnects == opener.opened - 1
        assert poller.unreachable is None
    assert [record.message for record in caplog.records if "cannot be polled" in record.message] == [
        "cluster cannot be polled: connection reset",
        "cluster cannot be polled: refused",
    ]


@pytest.mark.slow
async def test_every_error_is_a_failed_poll(opener, monkeypatch):
    poller = Poller.shared("cluster", opener, interval=0.05)
    monkeypatch.setattr(poller_module, "parse_poll", lambda *_: 1 / 0)
    async with poller.subscribe(Watch(key="x")) as subscription:
        assert "division" in (await take(subscription)).unreachable.reason
        monkeypatch.undo()
        while (await take(subscription)).unreachable is not None:
            pass


async def test_backoff_is_capped(monkeypatch):
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) > 20:
            raise asyncio.CancelledError

    async def refuse():
        raise OSError("no")

    poller = Poller(refuse, interval=30)
    monkeypatch.setattr(poller_module.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(poller_module.asyncio, "sleep", sleep)
    poller.subscribe(Watch(key="x"))
    task = poller._task
    assert task is not None
    await asyncio.wait([task])
    assert slept[:3] == [3.0, 6.0, 12.0]
    assert max(slept) == 60.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "longest"),
    [
        (TransportError("no route"), 60.0),
        (LoginExpiredError("login refused"), 60.0),
        (LoginRefusedError("permission denied"), 600.0),
    ],
)
async def test_an_outage_of_weeks(monkeypatch, error, longest):
    """A refused login is tried again rarely: sites lock accounts."""
    slept: list[float] = []
    pause = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await pause(0)

    async def refuse():
        raise error

    poller = Poller(refuse, interval=30)
    monkeypatch.setattr(poller_module.asyncio, "sleep", sleep)
    monkeypatch.setattr(poller_module.random, "uniform", lambda low, high: high)
    subscription = poller.subscribe(Watch(key="x"))
    while (await take(subscription)).unreachable.failures < 1100:
        pass
    subscription.close()
    assert slept[-1] == longest


@pytest.mark.slow
async def test_duration_of_an_outage_ignores_clock_changes(opener, monkeypatch):
    opener.transport.fail_with = "no route"
    poller = Poller.shared("cluster", opener, interval=0.05)
    async with poller.subscribe(Watch(key="x")) as subscription:
        await take(subscription)
        clock = time.time
        monkeypatch.setattr(poller_module.time, "time", lambda: clock() + 86400)
        while (observation := await take(subscription)).unreachable.failures < 3:
            pass
        assert 0 <= observation.time - observation.unreachable.since < 5


@pytest.mark.slow
async def test_polls_are_rare_while_nothing_happens_and_frequent_when_it_does(slurm, opener, monkeypatch):
    monkeypatch.setattr("airflow_megatron.slurm.polling.pacing.CALM_SHARE", 100.0)
    queue(slurm, "7|PENDING|1|N/A|N/A|1||Priority|a")
    poller = Poller.shared("cluster", opener, interval=0.1)
    async with poller.subscribe(Watch(key="x", job_id="7")) as subscription:
        for _ in range(3):
            await take(subscription)
        await asyncio.sleep(0.05)
        assert poller.stats.last_pause == pytest.approx(0.4)
        queue(slurm, "7|COMPLETED|1|2|3|1|n1|None|a")
        await take(subscription)
        await take(subscription)
        await asyncio.sleep(0.05)
        assert poller.stats.last_pause == 0.1, "a verdict is due"


@pytest.mark.slow
async def test_newcomers_one_after_the_other_do_not_flood_the_cluster(slurm, opener, monkeypatch):
    monkeypatch.setattr(poller_module, "DEBOUNCE_S", 0.02)
    monkeypatch.setattr(poller_module, "NEWCOMER_SPACING_S", 0.5)
    poller = Poller.shared("cluster", opener, interval=60)
    subscriptions = []
    began = time.monotonic()
    for number in range(30):
        subscriptions.append(poller.subscribe(Watch(key="x", job_id=str(number + 1))))
        await asyncio.sleep(0.05)
    await asyncio.gather(*(take(one) for one in subscriptions))
    assert poller.stats.commands <= 2 + (time.monotonic() - began) / 0.5
    for one in subscriptions:
        one.close()


@pytest.mark.slow
async def test_many_jobs_are_queried_in_several_commands(slurm, opener, monkeypatch):
    monkeypatch.setattr(poller_module, "WATCHES_PER_COMMAND", 40)
    queue(slurm, *(f"{number}|RUNNING|1|1|1|1|n1|None|j{number}" for number in range(100)))
    poller = Poller.shared("cluster", opener, interval=60)
    subscriptions = [poller.subscribe(Watch(key="x", job_id=str(number))) for number in range(100)]
    seen = await asyncio.gather(*(take(one) for one in subscriptions))
    assert [one.queue.name for one in seen] == [f"j{number}" for number in range(100)]
    assert (poller.stats.ticks, poller.stats.commands, opener.opened) == (1, 3, 1)
    for one in subscriptions:
        one.close()


@pytest.mark.slow
async def test_several_clusters_at_once(slurm, opener, transport):
    """One that does not answer holds up no other."""
    queue(slurm, QUEUE)

    async def unreachable():
        await asyncio.sleep(30)
        raise OSError("no route")

    deaf = Poller.shared("deaf", unreachable, interval=0.05)
    well = Poller.shared("well", opener, interval=0.05)
    async with (
        deaf.subscribe(Watch(key="x", job_id="7")),
        well.subscribe(Watch(key="x", job_id="7")) as subscription,
    ):
        for _ in range(3):
            assert (await take(subscription, 30)).queue.state is JobState.RUNNING


@pytest.fixture
def collector() -> Iterator[None]:
    """Put aside for the collector what the tests had put aside, once the poller has given it back."""
    yield
    gc.freeze()


@pytest.mark.slow
@pytest.mark.usefixtures("collector")
async def test_garbage_collections_are_short_while_many_are_watched(slurm, opener, monkeypatch):
    monkeypatch.setattr(poller_module, "LINGER_S", 0.0)
    monkeypatch.setattr(garbage_collection, "MANY", 30)
    queue(slurm, QUEUE)
    gc.unfreeze()
    poller = Poller.shared("cluster", opener, interval=0.02)

    async def put_aside(newcomers: int) -> bool:
        subscriptions = [poller.subscribe(Watch(key="x", job_id="7")) for _ in range(newcomers)]
        await asyncio.gather(*(take(one) for one in subscriptions))
        return all(one is not subscriptions[-1] for one in gc.get_objects())

    assert not await put_aside(29)
    assert await put_aside(11)
    assert not await put_aside(9)  # not a quarter more
    assert await put_aside(1)
    for one in list(poller._subscriptions.values()):
        one.close()
    while gc.get_freeze_count():
        await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_many_jobs_do_not_block_the_event_loop(slurm, opener):
    """5,000 watchers that each have some work to do with their observation; garbage collections are in it."""
    count = 5000
    queue(slurm, *(f"{number}|RUNNING|1|1|1|1|n1|None|j{number}" for number in range(1, count + 1)))
    poller = Poller.shared("cluster", opener, interval=0.5)
    polled = 0

    async def follow(number: int) -> None:
        nonlocal polled
        watch = Watch(
            key="x", job_id=str(number), job_name=f"j{number}", attempt_dir=f"/runs/{number}/.jobs/1"
        )
        async with poller.subscribe(watch) as subscription:
            for _ in range(2):
                observation = await take(subscription, 60)
                assert judge(observation, Expectation("command")).outcome is Outcome.ACTIVE
            polled += 1

    watchers = [asyncio.ensure_future(follow(number)) for number in range(1, count + 1)]
    while poller.stats.ticks < 1:
        await asyncio.sleep(0.01)
    held: list[float] = []
    while polled < count:
        began = time.thread_time()  # of the loop's thread: a busy machine is not the poller's doing
        await asyncio.sleep(0.005)
        held.append(time.thread_time() - began)
    await asyncio.gather(*watchers)
    assert is_usual(max(held), 0.05)
    assert poller.stats.commands <= 3


@pytest.mark.slow
async def test_slow_watcher_loses_no_log_bytes(slurm, opener, tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"one ")
    poller = Poller.shared("cluster", opener, interval=0.05)
    async with poller.subscribe(Watch(key="x", log_file=str(log))) as subscription:
        received = b""
        for number in range(6):
            ticks = poller.stats.ticks
            while poller.stats.ticks < ticks + 2 + number % 3:
                await asyncio.sleep(0.01)
            received += (await take(subscription)).log_chunk
            with log.open("ab") as stream:
                stream.write(b"%d " % number)
        while received.count(b" ") < 7:
            received += (await take(subscription)).log_chunk
    assert received == b"one 0 1 2 3 4 5 "


@pytest.mark.slow
async def test_every_log_gets_its_turn(slurm, opener, tmp_path, monkeypatch):
    monkeypatch.setattr("airflow_megatron.slurm.polling.poll.LOG_BYTES_PER_POLL", 64 * 1024)
    poller = Poller.shared("cluster", opener, interval=0.02)
    subscriptions = []
    for number in range(3):
        (tmp_path / str(number)).write_bytes(b"x" * 10_000_000)
        subscriptions.append(poller.subscribe(Watch(key="x", log_file=str(tmp_path / str(number)))))

    async def read(subscription) -> None:
        while not (await take(subscription)).log_chunk:
            pass

    await asyncio.wait_for(asyncio.gather(*(read(one) for one in subscriptions)), 60)
    for one in subscriptions:
        one.close()


@pytest.mark.slow
async def test_update_follows_the_next_attempt(slurm, opener):
    queue(slurm, QUEUE, "8|PENDING|1|1|1|1|n1|None|b")
    poller = Poller.shared("cluster", opener, interval=60)
    async with poller.subscribe(Watch(key="x", job_id="7")) as subscription:
        assert (await take(subscription)).queue.job_id == "7"
        poller.wake()
        await asyncio.sleep(0)
        subscription.update(job_id="8", log_offset=0)
        assert (await take(subscription, 30)).queue.job_id == "8"


@pytest.mark.slow
async def test_idle_poller_closes_and_starts_again(slurm, opener, monkeypatch):
    monkeypatch.setattr(poller_module, "LINGER_S", 0.1)
    poller = Poller.shared("cluster", opener, interval=0.05)
    subscription = poller.subscribe(Watch(key="x"))
    await take(subscription)
    subscription.close()
    subscription.close()
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)
    while not opener.transport.closed:
        await asyncio.sleep(0.02)
    commands = poller.stats.commands
    await asyncio.sleep(0.2)
    assert poller.stats.commands == commands
    async with poller.subscribe(Watch(key="y")) as again:
        await take(again)
    assert opener.opened == 2


async def test_the_loop_runs_outside_the_watchers_context(opener):
    MARK.set("task log of the first watcher")
    poller = Poller.shared("cluster", opener, interval=0.05)
    async with poller.subscribe(Watch(key="x")) as subscription:
        await take(subscription)
    assert opener.contexts == [None]


@pytest.mark.slow
async def test_cancelled_wait_loses_nothing(slurm, opener, tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"x")
    slurm.behave("squeue", "sleep 0.2")
    poller = Poller.shared("cluster", opener, interval=0.05)
    async with poller.subscribe(Watch(key="x", job_id="7", log_file=str(log))) as subscription:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(subscription), 0.05)
        assert (await take(subscription)).log_chunk == b"x"


@pytest.mark.slow
def test_pollers_end_with_their_loop(opener):
    async def make() -> None:
        Poller.shared("cluster", opener, interval=1)

    before = len(Poller._by_loop)
    asyncio.run(make())
    gc.collect()
    assert len(Poller._by_loop) <= before


async def test_what_blocks_a_poll_is_asked_last(opener):
    poller = Poller.shared("cluster", opener, interval=60)
    each = [poller.subscribe(Watch(key=str(number))) for number in range(6)]
    orders = set()
    for _ in range(40):
        for number, subscription in enumerate(each):
            blocked = Unreachable(1.0, "blocked", 1) if number in (0, 3) else None
            subscription.deliver(Observation(1.0, unreachable=blocked), subscription.version)
        order = [int(subscription.key) - int(each[0].key) for subscription in poller._in_turn()]
        assert sorted(order[:4]) == [1, 2, 4, 5]
        orders.add(tuple(order[4:]))
    assert orders == {(0, 3), (3, 0)}
    for subscription in each:
        subscription.close()
