from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_megatron.slurm.states.job_states import JobState, cancelled_by, parse_state


@pytest.mark.parametrize("state", list(JobState))
def test_full_names(state):
    assert parse_state(state.value) is state
    assert parse_state(f"  {state.value.lower()} ") is state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("CANCELLED+ by 1000", JobState.CANCELLED),
        ("OUT_OF_ME+", JobState.OUT_OF_MEMORY),
        ("NODE_FAIL+", JobState.NODE_FAIL),
        ("COMPLETI+", JobState.COMPLETING),
        ("COMPLETE+", JobState.COMPLETED),
        ("RESV_DEL_+", JobState.RESV_DEL_HOLD),
        ("RUNNING,COMPLETING", JobState.COMPLETING),
        ("PENDING,LAUNCH_FAILED,REQUEUE_HOLD", JobState.REQUEUE_HOLD),
        ("FAILED,UPDATE_DB", JobState.FAILED),
        ("CANCELLED,REVOKED", JobState.REVOKED),
        ("?,COMPLETING", JobState.UNKNOWN),
        ("COMPLETININVALID", JobState.UNKNOWN),  # two columns that ran together
        ("REQUEUE_+", JobState.UNKNOWN),  # REQUEUE_FED or REQUEUE_HOLD
        ("COMP+", JobState.UNKNOWN),
        ("+", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
        ("?", JobState.UNKNOWN),
        ("NEW_STATE_OF_2031", JobState.UNKNOWN),
        ("CG", JobState.COMPLETING),
        ("OOM", JobState.OUT_OF_MEMORY),
        ("F", JobState.FAILED),
        ("S", JobState.SUSPENDED),
        ("ST", JobState.STOPPED),
    ],
)
def test_forms(text, state):
    assert parse_state(text) is state


def test_every_state_is_active_ended_or_unknown():
    ended = {state.value for state in JobState if state.ended}
    assert ended == {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
    for state in JobState:
        assert state.ended + state.active == (state is not JobState.UNKNOWN)


@settings(deadline=None)
@given(st.text())
def test_any_text_gives_a_state(text):
    assert isinstance(parse_state(text), JobState)


@pytest.mark.parametrize(
    ("text", "user"),
    [("CANCELLED by 1000", "1000"), ("CANCELLED+ by 0", "0"), ("CANCELLED", None), ("FAILED", None)],
)
def test_cancelled_by(text, user):
    assert cancelled_by(text) == user
