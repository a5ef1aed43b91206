from __future__ import annotations

from airflow_megatron.slurm.states.observation import Observation
from airflow_megatron.slurm.verdicts.unknown_state import ALARM_S, UnknownState
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, Verdict, judge

COMMAND = Expectation("command")


def missing(time: float) -> Observation:
    return Observation(time=time, queue_ok=True, accounting_ok=True)


def test_a_lasting_uncertainty_becomes_a_warning() -> None:
    """A job in neither squeue nor sacct is reported first, then by an alarm every 15 minutes, and never judged."""
    uncertainty = UnknownState()
    alarms = []
    for minute in range(46):
        observation = missing(1000 + 60 * minute)
        verdict = judge(observation, COMMAND)
        assert verdict.outcome is Outcome.UNKNOWN
        alarms.append(uncertainty.alarm(verdict, observation))
    assert alarms[:15] == [None] * 15
    assert len({text for text in alarms if text}) == 3
    assert "for 45 min: the job is in neither squeue nor sacct" in (alarms[45] or "")
    assert "purged" in (alarms[45] or "")


def test_certainty_ends_the_count() -> None:
    uncertainty = UnknownState()
    unknown = Verdict(Outcome.UNKNOWN, "x")
    assert uncertainty.alarm(unknown, missing(0)) is None
    assert uncertainty.alarm(unknown, missing(ALARM_S)) is not None
    assert uncertainty.alarm(Verdict(Outcome.ACTIVE, "it runs"), missing(ALARM_S + 1)) is None
    assert uncertainty.alarm(unknown, missing(ALARM_S + 2)) is None
