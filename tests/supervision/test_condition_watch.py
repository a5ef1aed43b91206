from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from airflow_megatron.slurm.states.observation import CommandAnswer, Observation, Unreachable
from airflow_megatron.slurm.verdicts.verdict import SETTLE_S, Outcome, Verdict
from airflow_megatron.spec.model.conditions import Condition, Event
from airflow_megatron.supervision.condition_watch import (
    AttemptConditions,
    ConditionResult,
    ConditionWatch,
    new_checkpoints,
    wanted_iterations,
    with_finish,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPLETE = {".metadata": 10, "metadata.json": 10, "common.pt": 10, "__0_0.distcp": 10}


def verdict_file(stage_dir: str, outcome: str, attempt: int = 1) -> dict[str, Any]:
    return {"files": {f"{stage_dir}/verdict.json": json.dumps({"outcome": outcome, "attempt": attempt})}}


def seen(**values: Any) -> Observation:
    return Observation(time=100.0, queue_ok=True, **values)


def truth(
    condition: Condition, *observations: Observation, attempts: Mapping[str, int] | None = None
) -> ConditionResult:
    watch = ConditionWatch(condition, attempts)
    assert len(watch.watches()) == len(observations)
    return watch.read(list(observations))


FINISHED = Condition("finished", path="/r/.jobs/pretrain")


@pytest.mark.parametrize(
    ("outcome", "attempt", "expected"),
    [
        ("finished", 2, ConditionResult.YES),
        ("failed", 2, ConditionResult.NEVER),
        ("finished", 1, ConditionResult.NO),  # of an earlier run of the stage
    ],
)
def test_a_verdict_counts_from_the_attempt_that_this_run_submitted(
    outcome: str, attempt: int, expected: ConditionResult
) -> None:
    observation = seen(**verdict_file("/r/.jobs/pretrain", outcome, attempt))
    assert truth(FINISHED, observation, attempts={"/r/.jobs/pretrain": 2}) is expected


def test_ended_holds_however_the_job_ended() -> None:
    condition = Condition("ended", path="/r/.jobs/pretrain")
    assert truth(condition, seen(**verdict_file("/r/.jobs/pretrain", "failed"))) is ConditionResult.YES


def test_a_checkpoint_must_be_complete_and_of_exactly_the_iteration() -> None:
    condition = Condition("checkpoint", path="/r/checkpoints", iteration=100, producer="/r/.jobs/pretrain")
    other = seen(checkpoint_files={"iter_0001100": COMPLETE})
    assert truth(condition, other) is ConditionResult.NO
    torn = seen(checkpoint_files={"iter_0000100": {"__0_0.distcp": 10}})
    assert truth(condition, torn) is ConditionResult.NO
    whole = seen(checkpoint_files={"iter_0000100": COMPLETE}, tracker="100")
    assert truth(condition, whole) is ConditionResult.YES
    gone = seen(**verdict_file("/r/.jobs/pretrain", "finished"))
    assert truth(condition, gone) is ConditionResult.NEVER


def test_a_log_line_is_found_although_it_comes_in_pieces_and_stays_found() -> None:
    watch = ConditionWatch(Condition("log", path="/r/x.out", pattern="training is done"))
    assert watch.read([seen(log_chunk=b"[after training ")]) is ConditionResult.NO
    assert watch.read([seen(log_chunk=b"is done]\n")]) is ConditionResult.YES
    assert watch.read([seen()]) is ConditionResult.YES


def test_a_line_of_a_log_may_end_with_a_carriage_return() -> None:
    watch = ConditionWatch(Condition("log", path="/l", pattern="^all done$"))
    assert watch.read([seen(log_chunk=b" 10%|#\r 20%|##\rnot all done\r\n")]) is ConditionResult.NO
    assert watch.read([seen(log_chunk=b" 99%|##\rall do")]) is ConditionResult.NO
    assert watch.read([seen(log_chunk=b"ne\r\n")]) is ConditionResult.YES
    assert watch.line == "all done"


def test_a_log_is_followed_over_attempts_that_have_left_none() -> None:
    condition = Condition("log", path="/r/x-{attempt}.out", pattern="loss", producer="/r/.jobs/x")
    watch = ConditionWatch(condition)
    assert watch.read([seen(log_chunk=b"attempt 1\n", log_size=10)]) is ConditionResult.NO
    # attempts 2 to 4 were cancelled in the queue
    there = {"existing": {"/r/x-5.out": True}}
    assert watch.read([seen(log_offset=10, log_size=10, **there)]) is ConditionResult.NO
    assert watch.watches()[0].log_file == "/r/x-5.out"
    assert watch.read([seen(log_chunk=b"loss\n", log_size=5, **there)]) is ConditionResult.YES


def test_a_command_condition_holds_by_exit_code_or_output() -> None:
    by_code = Condition("command", command="test -e x")
    assert truth(by_code, seen(answers={"test -e x": CommandAnswer(0, "")})) is ConditionResult.YES
    assert truth(by_code, seen(answers={"test -e x": CommandAnswer(1, "")})) is ConditionResult.NO
    by_output = Condition("command", command="c", prints="1")
    assert truth(by_output, seen(answers={"c": CommandAnswer(0, " 1\n")})) is ConditionResult.YES
    assert truth(by_output, seen(answers={"c": CommandAnswer(0, "0\n")})) is ConditionResult.NO


@pytest.mark.parametrize("output", ["", "no", "1.0", "1 0", "\ufffd", "sh: 1: c: not found"])
def test_a_command_that_fails_or_prints_anything_else_does_not_hold(output: str) -> None:
    by_code, by_output = Condition("command", command="c"), Condition("command", command="c", prints="1")
    for condition in (by_code, by_output):
        assert truth(condition, seen(answers={"c": CommandAnswer(127, output)})) is ConditionResult.NO
    assert truth(by_output, seen(answers={"c": CommandAnswer(0, output)})) is ConditionResult.NO


def test_a_command_that_is_not_due_keeps_its_answer() -> None:
    watch = ConditionWatch(Condition("command", command="c"), check_interval=60)
    assert watch.watches()[0].command_interval == 60
    watch.read([seen(answers={"c": CommandAnswer(0, "")})])
    assert watch.read([seen()]) is ConditionResult.YES


def test_files_and_globs() -> None:
    assert truth(Condition("file", path="/r/x"), seen(existing={"/r/x": True})) is ConditionResult.YES
    assert truth(Condition("file", path="/r/*.done"), seen(matches={"/r/*.done": ()})) is ConditionResult.NO
    assert (
        truth(Condition("file", path="/r/*.done"), seen(matches={"/r/*.done": ("/r/1.done",)}))
        is ConditionResult.YES
    )


def test_all_any_not() -> None:
    stop = Condition("file", path="/r/stop")
    both = Condition("all", parts=(FINISHED, Condition("not", parts=(stop,))))
    done = seen(**verdict_file("/r/.jobs/pretrain", "finished"))
    failed = seen(**verdict_file("/r/.jobs/pretrain", "failed"))
    free, stopped = seen(existing={"/r/stop": False}), seen(existing={"/r/stop": True})
    assert truth(both, done, free) is ConditionResult.YES
    assert truth(both, done, stopped) is ConditionResult.NO
    assert truth(both, failed, free) is ConditionResult.NEVER
    either = Condition("any", parts=(FINISHED, stop))
    assert truth(either, failed, stopped) is ConditionResult.YES
    assert truth(either, failed, free) is ConditionResult.NO  # the file may still come


def test_an_unreachable_cluster_changes_nothing() -> None:
    watch = ConditionWatch(FINISHED)
    watch.read([seen(**verdict_file("/r/.jobs/pretrain", "finished"))])
    nothing = replace(seen(), unreachable=Unreachable(0.0, "cut", 1))
    assert watch.read([nothing]) is ConditionResult.YES


FRESH = Condition(
    "new_checkpoint",
    path="/r/checkpoints",
    done="/r/converted/iter_{iteration}.done",
    iteration=20,
    spacing=20,
)


def test_new_checkpoints_are_complete_wanted_and_not_done() -> None:
    observation = seen(
        checkpoint_files={
            "iter_0000010": COMPLETE,
            "iter_0000020": COMPLETE,
            "iter_0000030": COMPLETE,
            "iter_0000040": COMPLETE,
            "iter_0000060": {"__0_0.distcp": 10},
        },
        tracker="40",
        matches={"/r/converted/iter_*.done": ("/r/converted/iter_20.done",)},
    )
    assert new_checkpoints(FRESH, observation) == [40]


def test_a_half_deleted_checkpoint_is_not_processed_or_used() -> None:
    """The remaining files look like another format; only ``metadata.json`` of the others shows the format."""
    half = {".metadata": 9, "__0_0.distcp": 9}
    whole = {**half, "metadata.json": 9}
    found: dict[str, object] = {
        "checkpoint_files": {"iter_0000040": half, "iter_0000050": whole},
        "tracker": "50",
    }
    observation = seen(**found)
    assert new_checkpoints(FRESH, observation) == []  # the list of processed checkpoints is unknown
    assert new_checkpoints(FRESH, seen(**found, matches={"/r/converted/iter_*.done": ()})) == [50]
    watch = ConditionWatch(Condition("checkpoint", path="/r/checkpoints", iteration=40))
    assert watch.read([observation]) is ConditionResult.NO
    alone = seen(checkpoint_files={"iter_0000040": half}, tracker="50")
    assert watch.read([alone]) is ConditionResult.YES


def test_work_named_by_a_pattern() -> None:
    leaf = Condition(
        "new_checkpoint", path="/r/c/iter_{iteration}.done", done="/r/e/iter_{iteration}/results.json"
    )
    observation = seen(
        matches={
            "/r/c/iter_*.done": ("/r/c/iter_20.done", "/r/c/iter_100.done", "/r/c/iter_x.done"),
            "/r/e/iter_*/results.json": ("/r/e/iter_20/results.json",),
        }
    )
    assert new_checkpoints(leaf, observation) == [100]


def test_the_last_checkpoint_is_processed_for_any_spacing() -> None:
    leaf = msgspec.structs.replace(FRESH, iteration=0, spacing=50, last=110)
    assert wanted_iterations([10, 50, 60, 100, 110], leaf) == [10, 60, 110]


def test_a_finish_condition_decides_over_the_kind_s_own_rule() -> None:
    good, bad = Verdict(Outcome.FINISHED, "ended"), Verdict(Outcome.FAILED, "exit code 1")
    assert with_finish(good, None, "", 0) is good
    assert with_finish(bad, ConditionResult.YES, "", 0).outcome is Outcome.FINISHED
    assert (
        with_finish(good, ConditionResult.NO, "log x does not hold yet", SETTLE_S).outcome
        is Outcome.ROLLED_OVER
    )
    assert with_finish(bad, ConditionResult.NO, "", SETTLE_S).outcome is Outcome.FAILED


@pytest.mark.parametrize("outcome", [Outcome.FINISHED, Outcome.FAILED])
def test_a_finish_condition_may_hold_later(outcome: Outcome) -> None:
    """A network file system shows a job's last files late; an attempt too many would follow."""
    early = with_finish(
        Verdict(outcome, "ended"), ConditionResult.NO, "file done does not hold yet", SETTLE_S - 1
    )
    assert not early.outcome.is_verdict
    assert "file done" in early.reason
    never = with_finish(Verdict(Outcome.FINISHED, "ended"), ConditionResult.NEVER, "", 0)
    assert never.outcome is Outcome.ROLLED_OVER


def test_conditions_and_events_survive_json() -> None:
    condition = Condition("any", parts=(FRESH, Condition("not", parts=(FINISHED,))))
    assert Condition.from_json(json.loads(json.dumps(condition.to_json()))) == condition
    event = Event("nan", "log", "cancel", pattern="nan", condition=condition, limit=None)
    assert Event.from_json(json.loads(json.dumps(event.to_json()))) == event


def test_conditions_of_an_attempt_are_read_as_written() -> None:
    event = Event("nan", "log", "cancel", pattern="nan", condition=Condition("file", path="/r/x"))
    conditions = AttemptConditions(
        Condition("file", path="/r/stop"),
        "stop",
        Condition("file", path="/r/done"),
        (event,),
        60.0,
        {"/r/a": 2},
    )
    for each in (conditions, AttemptConditions()):
        assert AttemptConditions.from_json(json.loads(json.dumps(each.to_json()))) == each
    assert AttemptConditions().to_json() == {}
    assert AttemptConditions.from_json({"check_interval": None, "from_the_future": 1}) == AttemptConditions()
