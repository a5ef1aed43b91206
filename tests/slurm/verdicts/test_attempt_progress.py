from __future__ import annotations

import json
from dataclasses import replace

import pytest

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.progress import Progress, with_progress
from airflow_megatron.slurm.verdicts.restarts import GiveUp, Restart, RestartPolicy, next_step
from airflow_megatron.slurm.verdicts.verdict import Outcome, Verdict


def timed_out(progress: Progress | None) -> Verdict:
    return Verdict(
        Outcome.FAILED, "the time limit was reached", JobState.TIMEOUT, job_id="7", progress=progress
    )


@pytest.mark.parametrize(
    ("now", "before", "message"),
    [
        (Progress(1, 40), [], "reached iteration 40"),
        (Progress(saved=20), [], "saved iteration 20"),
        (Progress(outputs=("/r/a",)), [], "made /r/a"),
        (Progress(1, 80), [Progress(1, 40)], "reached iteration 80"),
        (Progress(31, 38, 30), [Progress(1, 40, 20)], "saved iteration 30"),
        # a slower attempt that continued from a checkpoint of the previous one
        (Progress(31, 38), [Progress(1, 40)], "continued from iteration 31"),
        (Progress(outputs=("/r/a", "/r/b")), [Progress(outputs=("/r/a",))], "made /r/b"),
        (Progress(), [], None),
        (Progress(1, 40), [Progress(1, 40)], None),  # it begins anew each time
        (Progress(1, 30, 20), [Progress(1, 40, 20)], None),
        (Progress(outputs=("/r/a",)), [Progress(outputs=("/r/a",))], None),
    ],
)
def test_a_walltime_end_with_progress_is_a_roll_over(
    now: Progress, before: list[Progress], message: str | None
) -> None:
    verdict = with_progress(timed_out(now), [timed_out(item) for item in before])
    assert verdict.outcome is (Outcome.ROLLED_OVER if message else Outcome.FAILED)
    assert message is None or message in verdict.reason


def test_verdicts_on_other_ends_do_not_change() -> None:
    crashed = replace(timed_out(Progress(1, 40)), state=JobState.FAILED)
    assert with_progress(crashed, []) == crashed
    assert with_progress(timed_out(None), []) == timed_out(None)
    lasting = replace(timed_out(Progress(1, 40)), permanent=True)
    assert with_progress(lasting, []) == lasting


def test_a_job_is_continued_only_while_it_makes_progress() -> None:
    policy = RestartPolicy(failed=0)
    history: list[Verdict] = []
    for attempt in range(1, 11):
        verdict = with_progress(timed_out(Progress(1, 10 * attempt)), history)
        assert isinstance(next_step(history, verdict, policy), Restart)
        history.append(verdict)
    stuck = with_progress(timed_out(Progress(1, 100)), history)
    assert isinstance(next_step(history, stuck, policy), GiveUp)


def test_the_record_of_a_verdict_keeps_it() -> None:
    verdict = timed_out(Progress(1, 40, 20, ("/r/a",)))
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict
    assert Verdict.from_json({"outcome": "failed", "reason": "x", "progress": "?"}).progress is None
