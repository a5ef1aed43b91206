from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.occurrence import Occurrence
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.restarts import (
    Done,
    Follow,
    GiveUp,
    Restart,
    RestartPolicy,
    deciding,
    excluded_nodes,
    explained,
    given_up,
    judged_with,
    next_step,
    series,
    stopping_verdict,
)
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict
from airflow_megatron.spec.model.schema import RestartSection
from airflow_megatron.supervision.attempt_preparation import policy_of


def ended(outcome: Outcome, iteration: int | None = None, *nodes: str, job_id: str = "7") -> Verdict:
    return Verdict(outcome, "because", iteration=iteration, failed_nodes=nodes, job_id=job_id)


POLICY = RestartPolicy(backoff_s=10, retryable=2, failed=1)


def test_finished():
    assert next_step([], ended(Outcome.FINISHED, 100), POLICY) == Done()


def test_a_roll_over_is_immediate_and_has_no_limit():
    history = [ended(Outcome.ROLLED_OVER, 10 * i) for i in range(1, 100)]
    step = next_step(history, ended(Outcome.ROLLED_OVER, 1000), POLICY)
    assert isinstance(step, Restart)
    assert step.delay_s == 0


@pytest.mark.slow
def test_a_command_that_ends_at_once_without_its_goal_is_not_repeated_at_once():
    policy = RestartPolicy(backoff_s=30, no_progress=0)
    done = replace(ended(Outcome.ROLLED_OVER), state=JobState.COMPLETED, exit_code=0, elapsed=2.0)

    def delay(*attempts: Verdict) -> float:
        step = next_step(attempts[:-1], attempts[-1], policy)
        assert isinstance(step, Restart)
        return step.delay_s

    assert [delay(*[done] * count) for count in (1, 2, 3, 8, 5000)] == [30, 60, 120, 3600, 3600]
    assert delay(done, done, replace(done, elapsed=600.0)) == 0
    assert delay(done, replace(done, elapsed=600.0), done) == 30
    assert delay(done, replace(done, state=JobState.TIMEOUT, elapsed=60.0)) == 0
    assert delay(replace(done, iteration=5), replace(done, iteration=5)) == 0  # a training


def test_budgets_are_per_kind():
    history = [ended(Outcome.RETRYABLE), ended(Outcome.FAILED), ended(Outcome.ROLLED_OVER)]
    assert isinstance(next_step(history, ended(Outcome.RETRYABLE), POLICY), Restart)
    assert isinstance(next_step(history, ended(Outcome.FAILED), POLICY), GiveUp)
    more = [*history, ended(Outcome.RETRYABLE)]
    step = next_step(more, ended(Outcome.RETRYABLE), POLICY)
    assert isinstance(step, GiveUp)
    assert "after 2 restarts" in step.reason


@pytest.mark.parametrize("outcome", [Outcome.RETRYABLE, Outcome.FAILED])
def test_a_training_with_progress_is_restarted_without_limit(outcome):
    policy = RestartPolicy(retryable=0, failed=0, no_progress=0)
    history = [ended(outcome, 10 * i) for i in range(1, 100)]
    assert isinstance(next_step(history, ended(outcome, 1000), policy), Restart)
    step = next_step(history, ended(outcome, 990), policy)
    assert isinstance(step, GiveUp)
    assert "is not restarted" in step.reason


def test_other_ends_count_despite_progress():
    policy = RestartPolicy(out_of_memory=1)
    assert isinstance(next_step([], ended(Outcome.OUT_OF_MEMORY, 10), policy), Restart)
    assert isinstance(
        next_step([ended(Outcome.OUT_OF_MEMORY, 10)], ended(Outcome.OUT_OF_MEMORY, 20), policy), GiveUp
    )


@pytest.mark.parametrize("outcome", [Outcome.OUT_OF_MEMORY, Outcome.CANCELLED])
def test_not_restarted_by_default(outcome):
    step = next_step([], ended(outcome, 10), RestartPolicy())
    assert isinstance(step, GiveUp)
    assert "is not restarted" in step.reason


def test_one_declaration_of_defaults():
    assert policy_of(RestartSection(), training=True) == RestartPolicy()


def test_no_progress():
    stuck = [ended(Outcome.ROLLED_OVER, 50)] * 3
    assert isinstance(next_step(stuck[:2], stuck[2], POLICY), Restart)
    step = next_step(stuck, ended(Outcome.ROLLED_OVER, 50), POLICY)
    assert isinstance(step, GiveUp)
    assert "iteration 50" in step.reason
    never = [ended(Outcome.ROLLED_OVER, 0)] * 2
    assert isinstance(next_step(never, never[0], POLICY), GiveUp)
    assert isinstance(next_step(stuck, ended(Outcome.ROLLED_OVER, 51), POLICY), Restart)
    off = RestartPolicy(no_progress=0)
    assert isinstance(next_step(stuck * 9, stuck[0], off), Restart)


def test_commands_have_no_progress_to_lose():
    history = [ended(Outcome.RETRYABLE)] * 7
    assert isinstance(next_step(history, ended(Outcome.RETRYABLE), RestartPolicy(retryable=10)), Restart)


def test_backoff_doubles_and_is_capped():
    policy = RestartPolicy(backoff_s=10, retryable=None, no_progress=0)
    delays = []
    for failures in range(12):
        step = next_step([ended(Outcome.RETRYABLE)] * failures, ended(Outcome.RETRYABLE), policy)
        assert isinstance(step, Restart)
        delays.append(step.delay_s)
    assert delays[:4] == [10, 20, 40, 80]
    assert delays[-1] == 3600
    after_good = next_step(
        [ended(Outcome.RETRYABLE), ended(Outcome.ROLLED_OVER, 5)], ended(Outcome.RETRYABLE, 6), policy
    )
    assert isinstance(after_good, Restart)
    assert after_good.delay_s == 10


def test_failures_with_progress_do_not_lengthen_the_pause():
    policy = RestartPolicy(backoff_s=10, retryable=None)
    history = [ended(Outcome.RETRYABLE, 10 * number) for number in range(1, 30)]
    on = next_step(history, ended(Outcome.RETRYABLE, 300), policy)
    stuck = next_step(history, ended(Outcome.RETRYABLE, 290), policy)
    assert isinstance(on, Restart)
    assert isinstance(stuck, Restart)
    assert (on.delay_s, stuck.delay_s) == (10, 20)
    unknown = [
        *history,
        ended(Outcome.RETRYABLE),
        ended(Outcome.RETRYABLE),
    ]  # without a query of its checkpoints
    step = next_step(unknown, ended(Outcome.RETRYABLE, 290), policy)
    assert isinstance(step, GiveUp)


def test_failed_nodes_are_excluded():
    history = [ended(Outcome.RETRYABLE, 1, "n1"), ended(Outcome.RETRYABLE, 2, "n2", "n3")]
    step = next_step(history, ended(Outcome.ROLLED_OVER, 3, "n1"), RestartPolicy(max_excluded_nodes=2))
    assert isinstance(step, Restart)
    assert step.exclude_nodes == ("n1", "n2")
    off = next_step(history, ended(Outcome.ROLLED_OVER, 3), RestartPolicy(exclude_failed_nodes=False))
    assert isinstance(off, Restart)
    assert off.exclude_nodes == ()


def test_duplicate_is_followed_and_costs_nothing():
    assert next_step([], ended(Outcome.DUPLICATE, job_id="8"), POLICY) == Follow("8")
    history = [ended(Outcome.DUPLICATE)] * 9
    assert isinstance(next_step(history, ended(Outcome.FAILED, 1), POLICY), Restart)


@pytest.mark.parametrize("outcome", [Outcome.ACTIVE, Outcome.UNKNOWN])
def test_every_step_has_a_verdict(outcome):
    with pytest.raises(ValueError, match="no verdict"):
        next_step([], ended(outcome), POLICY)


@pytest.mark.parametrize(
    ("last", "final"),
    [
        (Outcome.ROLLED_OVER, Outcome.FAILED),
        (Outcome.RETRYABLE, Outcome.FAILED),
        (Outcome.DUPLICATE, Outcome.FAILED),
        (Outcome.FAILED, Outcome.FAILED),
        (Outcome.OUT_OF_MEMORY, Outcome.OUT_OF_MEMORY),
        (Outcome.CANCELLED, Outcome.CANCELLED),
    ],
)
def test_a_given_up_job_is_not_continued(last, final):
    verdict = given_up(ended(last, 10, "n1"), "no more")
    assert (verdict.outcome, verdict.reason) == (final, "no more")
    assert (verdict.iteration, verdict.failed_nodes, verdict.job_id) == (10, ("n1",), "7")


def bad_numbers(before: int | None = None, iteration: int | None = None) -> Verdict:
    return Verdict(
        Outcome.FAILED, "loss spike", rollback=True, before_iteration=before, iteration=iteration, job_id="7"
    )


def test_rollbacks_have_a_budget_of_their_own():
    policy = RestartPolicy(failed=0, rollbacks=2)
    step = next_step([], bad_numbers(), policy)
    assert isinstance(step, Restart)
    assert "earlier checkpoint: loss spike" in step.reason
    # they are not ordinary failures, and no lack of progress
    history = [bad_numbers(iteration=200), bad_numbers(iteration=100)]
    assert isinstance(next_step(history, ended(Outcome.ROLLED_OVER, 100), policy), Restart)
    assert isinstance(next_step([ended(Outcome.FAILED, 10)], bad_numbers(), RestartPolicy(failed=1)), Restart)
    step = next_step(history, bad_numbers(), policy)
    assert isinstance(step, GiveUp)
    assert "again after 2 rollbacks" in step.reason
    assert isinstance(next_step([], bad_numbers(), RestartPolicy(failed=0, rollbacks=0)), GiveUp)


def test_rollbacks_count_since_the_highest_iteration():
    policy = RestartPolicy(rollbacks=1)
    first = bad_numbers(iteration=100)
    assert isinstance(next_step([first], bad_numbers(iteration=100), policy), GiveUp)
    assert isinstance(next_step([first], bad_numbers(iteration=200), policy), Restart)
    further = [first, ended(Outcome.ROLLED_OVER, 200)]
    assert isinstance(next_step(further, bad_numbers(iteration=200), policy), Restart)


def test_a_series_begins_when_a_job_was_given_up():
    def stored_one(outcome: Outcome, **more: object) -> RecordedVerdict | None:
        return RecordedVerdict.from_json({**Verdict(outcome, "because").to_json(), **more})

    values = [
        stored_one(Outcome.RETRYABLE),
        stored_one(Outcome.FAILED, given_up="why"),
        None,
        stored_one(Outcome.ROLLED_OVER),
    ]
    assert [verdict.outcome for verdict in series(values)] == [Outcome.ROLLED_OVER]
    strange = RecordedVerdict.from_json({"outcome": "strange"})
    assert series([stored_one(Outcome.RETRYABLE), None, strange, stored_one(Outcome.FAILED)]) == [
        Verdict(Outcome.RETRYABLE, "because"),
        Verdict(Outcome.FAILED, "because"),
    ]
    assert series([stored_one(Outcome.RETRYABLE), stored_one(Outcome.FINISHED)]) == []


def test_a_node_is_used_again_after_a_while():
    old, new = (Verdict(Outcome.RETRYABLE, "r", failed_nodes=(f"n{i}",), judged=i * 100.0) for i in (1, 2))
    policy = RestartPolicy(exclude_for_s=150)
    assert excluded_nodes([old, new], policy, 220) == ("n2", "n1")
    assert excluded_nodes([old, new], policy, 260) == ("n2",)
    assert excluded_nodes([old, new], policy, 400) == ()
    assert excluded_nodes([old, new], RestartPolicy(exclude_failed_nodes=False), 220) == ()
    many = [Verdict(Outcome.RETRYABLE, "r", failed_nodes=(f"n{i}",)) for i in range(20)]
    assert excluded_nodes(many, RestartPolicy(max_excluded_nodes=2), 0) == ("n19", "n18")


def test_a_detected_event_becomes_a_verdict():
    seen = Occurrence("rollback", "spike", before_iteration=120)
    verdict = stopping_verdict(seen, "7")
    assert verdict.outcome is Outcome.FAILED
    assert (verdict.rollback, verdict.before_iteration, verdict.stopped) == (True, 120, True)
    assert Verdict.from_json(verdict.to_json()) == verdict
    by_pattern = Occurrence("rollback", "spike", groups={"iteration": "0077"})
    assert stopping_verdict(by_pattern, "7").before_iteration == 77
    no_number = Occurrence("rollback", "spike", groups={"iteration": "soon"})
    assert stopping_verdict(no_number, "7").before_iteration is None
    restart = stopping_verdict(Occurrence("restart", "stuck", groups={"iteration": "3"}), None)
    assert (restart.outcome, restart.rollback, restart.before_iteration) == (Outcome.RETRYABLE, False, None)
    assert stopping_verdict(Occurrence("fail", "r", permanent=True), "7").permanent


def test_the_deciding_line_is_reported_once():
    assert explained("it failed", "Xid 79") == "it failed (the log line that decided: Xid 79)"
    assert explained("it failed: Xid 79", "Xid 79") == "it failed: Xid 79"
    assert explained("it failed", None) == "it failed"


@pytest.mark.parametrize(
    ("outcome", "seen", "decides"),
    [
        (Outcome.FAILED, [("log", "restart")], "restart"),
        (Outcome.FAILED, [("log", "notify"), ("log", "run"), ("log", "finish")], None),
        (Outcome.FINISHED, [("log", "restart")], None),
        (Outcome.FINISHED, [("log", "rollback"), ("log", "fail")], "fail"),
        (Outcome.FINISHED, [("state", "restart")], "restart"),
        (Outcome.FAILED, [("state", "cancel"), ("log", "restart")], "cancel"),
    ],
)
def test_an_event_at_the_end_of_a_job_decides(
    outcome: Outcome, seen: list[tuple[str, str]], decides: str | None
) -> None:
    items = [Occurrence(do, "seen", on=on) for on, do in seen]
    found = deciding(items, finished=outcome is Outcome.FINISHED)
    assert (found and found.do) == decides


def test_a_restart_at_the_end_keeps_the_facts_of_the_end() -> None:
    ended = Verdict(Outcome.FAILED, "exit code 1", JobState.FAILED, 1, 40, "7", "n1", permanent=True)
    verdict = judged_with(ended, Occurrence("restart", "event 'boom'", on="log"))
    assert verdict == replace(
        ended, outcome=Outcome.RETRYABLE, reason="event 'boom'; exit code 1", permanent=False
    )
    assert isinstance(next_step([], verdict, RestartPolicy()), Restart)
