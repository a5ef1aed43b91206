from __future__ import annotations

from dataclasses import replace

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import Observation, QueueRow, Unreachable
from airflow_megatron.spec.model.conditions import Event
from airflow_megatron.supervision.event_watch import EventMemory, EventWatch


def running(time: float, chunk: bytes = b"", state: JobState = JobState.RUNNING) -> Observation:
    return Observation(time=time, queue=QueueRow("7", "x", state), queue_ok=True, log_chunk=chunk)


def test_a_log_event_is_seen_once_by_default_with_its_groups() -> None:
    watch = EventWatch([Event("nan", "log", "cancel", pattern=r"loss: (?P<value>nan)")])
    assert watch.read(running(0, b"loss: 1.0\nloss: n"), progressed=True) == []
    (seen,) = watch.read(running(1, b"an\nloss: nan\n"), progressed=True)
    assert seen.groups == {"value": "nan"}
    assert "loss: nan" in seen.reason
    watch.count(seen.event)
    assert watch.read(running(2, b"loss: nan\n"), progressed=True) == []


def test_reactions_of_an_earlier_trigger_count() -> None:
    watch = EventWatch([Event("nan", "log", "run", pattern="nan", limit=2)], EventMemory({"nan": 1}))
    (seen,) = watch.read(running(0, b"nan\n"), progressed=True)
    watch.count(seen.event)
    assert watch.read(running(1, b"nan\n"), progressed=True) == []
    assert watch.memory().acted == {"nan": 2}


def test_a_state_is_seen_when_it_changes() -> None:
    watch = EventWatch([Event("up", "state", "notify", pattern="RUNNING", limit=None)])
    assert watch.read(running(0, state=JobState.PENDING), progressed=False) == []
    assert len(watch.read(running(1), progressed=False)) == 1
    assert watch.read(running(2), progressed=False) == []


def test_idle_counts_only_the_time_a_job_runs_and_answers_come() -> None:
    watch = EventWatch([Event("hang", "idle", "restart", after=60)])
    assert watch.read(running(0, state=JobState.PENDING), progressed=False) == []
    assert watch.read(running(500, state=JobState.PENDING), progressed=False) == []
    assert watch.read(running(530), progressed=False) == []
    assert watch.read(running(550), progressed=True) == []
    lost = replace(running(1200), unreachable=Unreachable(1100.0, "cut", 3))
    assert watch.read(lost, progressed=False) == []
    assert watch.read(running(1210), progressed=False) == []
    (seen,) = watch.read(running(1275), progressed=False)
    assert "65 s" in seen.what


def test_a_later_trigger_does_not_repeat_a_state_and_continues_the_quiet_time() -> None:
    events = [
        Event("up", "state", "notify", pattern="RUNNING", limit=None),
        Event("quiet", "idle", "restart", after=100),
    ]
    watch = EventWatch(events)
    assert [item.event.name for item in watch.read(running(0), progressed=False)] == ["up"]
    assert watch.read(running(60), progressed=False) == []
    later = EventWatch(events, watch.memory())
    assert [item.event.name for item in later.read(running(110), progressed=False)] == ["quiet"]


def test_a_silent_log_alone_has_no_effect() -> None:
    """A job without new output does not count as frozen unless the spec requests it."""
    watch = EventWatch([])
    assert watch.read(running(0, b"[after training is done]\n"), progressed=True) == []
    for time in (900, 9000, 90000):
        assert watch.read(running(time), progressed=False) == []


def test_each_idle_event_has_its_own_time() -> None:
    events = [
        Event("tell", "idle", "notify", after=60, limit=None),
        Event("hang", "idle", "restart", after=150),
    ]
    watch = EventWatch(events)
    seen = []
    for time in range(0, 181, 30):
        for item in watch.read(running(time), progressed=False):
            seen.append((time, item.event.name, item.what))
            watch.count(item.event)
            # each action ends the trigger
            watch = EventWatch(events, EventMemory.from_json(watch.memory().to_json()))
    assert seen == [
        (60, "tell", "nothing new for 60 s"),
        (120, "tell", "nothing new for 120 s"),
        (150, "hang", "nothing new for 150 s"),
        (180, "tell", "nothing new for 180 s"),
    ]
    assert watch.read(running(181), progressed=True) == []
    assert [item.what for item in watch.read(running(241), progressed=False)] == ["nothing new for 60 s"]


def test_failed_queries_interrupt_the_quiet_time_but_do_not_end_it() -> None:
    watch = EventWatch([Event("hang", "idle", "restart", after=100)])
    assert watch.read(running(0), progressed=True) == []
    assert watch.read(running(60), progressed=False) == []
    failed = replace(running(80), queue=None, queue_ok=False)
    assert watch.read(failed, progressed=False) == []
    assert watch.read(running(90), progressed=False) == []
    assert watch.read(running(120), progressed=False) == []
    assert [item.what for item in watch.read(running(130), progressed=False)] == ["nothing new for 100 s"]


def test_progress_during_a_failed_query_counts() -> None:
    watch = EventWatch([Event("hang", "idle", "restart", after=100)])
    assert watch.read(running(0), progressed=True) == []
    assert watch.read(running(90), progressed=False) == []
    assert watch.read(replace(running(95), queue=None, queue_ok=False), progressed=True) == []
    assert watch.read(running(110), progressed=False) == []
    assert watch.read(running(200), progressed=False) == []
    assert len(watch.read(running(210), progressed=False)) == 1


def test_lines_of_terminals_and_progress_bars_end_with_carriage_returns() -> None:
    watch = EventWatch([Event("done", "log", "finish", pattern=r"^all done$", limit=None)])
    assert len(watch.read(running(0, b"all done\r\n"), progressed=True)) == 1
    bar = b"".join(b"\r%3d%%|#####|" % (number % 100) for number in range(20_000))
    assert watch.read(running(1, bar[:150_000]), progressed=True) == []
    (seen,) = watch.read(running(2, bar[150_000:] + b"\rall done\nmore"), progressed=True)
    assert seen.what == "all done"
    assert watch.read(running(3, b"\rall do"), progressed=True) == []
    assert len(watch.read(running(4, b"ne\r"), progressed=True)) == 1
