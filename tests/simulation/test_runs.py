"""Invariants of all simulated runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_megatron.simulation.run import simulate
from airflow_megatron.simulation.site.site import DAY, HOUR, Site
from airflow_megatron.simulation.site.training import TrainingPlan
from airflow_megatron.simulation.supervisors.policies import POLICIES

BY_NAME = {policy.name: policy for policy in POLICIES}
BASE = BY_NAME["no budgets"]


def plan(name="job", nodes=8, hours=30.0, save_s=40.0, interval=50) -> TrainingPlan:
    return TrainingPlan(name, nodes, round(hours * HOUR / 10), 10.0, interval, save_s, 12 * HOUR)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 10**6),
    rate=st.sampled_from([0.0, 20.0, 500.0]),
    preemptions=st.sampled_from([0.0, 100.0]),
    damage=st.sampled_from([0.0, 0.05]),
    spares=st.integers(0, 6),
    jobs=st.integers(1, 4),
    interval=st.integers(1, 400),
    save_s=st.sampled_from([0.0, 40.0]),
    speed=st.sampled_from([0.3, 0.9]),
)
def test_gpu_hours_are_conserved(
    policy, seed, rate, preemptions, damage, spares, jobs, interval, save_s, speed
):
    site = Site(
        nodes=8 + spares,
        incidents_per_1000_node_days=rate,
        preemptions_per_1000_node_days=preemptions,
        damaged_checkpoints=damage,
        slow_speed=speed,
    )
    plans = [plan(f"job{index}", nodes=4, hours=8, save_s=save_s, interval=interval) for index in range(jobs)]
    outcome = simulate(site, plans, policy, seed, 10 * DAY)
    assert outcome.used == pytest.approx(outcome.useful + sum(outcome.wasted.values()), rel=1e-9, abs=1e-6)
    assert all(hours >= -1e-6 for hours in (*outcome.wasted.values(), *outcome.waited.values()))
    assert 0 <= outcome.ettr <= 1 + 1e-9
    assert outcome.lemon <= outcome.used
    assert outcome.attempts >= outcome.finished
    if policy.supervisor != "relaunch loop":
        assert outcome.overlaps == 0
        assert outcome.wasted.get("duplicate", 0.0) == 0
    whole = 4 * 8 * 8.0  # nodes, GPUs, hours
    if outcome.finished == jobs:
        assert outcome.useful == pytest.approx(jobs * whole, rel=1e-6)
    else:
        assert outcome.elapsed == 10 * DAY
        assert outcome.useful < jobs * whole


@pytest.mark.parametrize("name", ["no budgets", "spec defaults", "no hang detection", "poll every 5 min"])
def test_time_of_a_finished_job_is_allocated_or_a_wait_with_a_cause(name):
    site = Site(nodes=10, incidents_per_1000_node_days=500.0)
    outcome = simulate(site, [plan()], BY_NAME[name], 11, 60 * DAY)
    assert outcome.finished == 1
    assert outcome.failures > 3
    hours = outcome.elapsed / HOUR * 8 * 8
    assert outcome.used + sum(outcome.waited.values()) == pytest.approx(hours, rel=1e-6)


def test_a_seed_always_gives_the_same_outcome():
    site = Site(nodes=10, incidents_per_1000_node_days=300.0)
    first, again, other = (simulate(site, [plan()], BASE, seed, 20 * DAY) for seed in (4, 4, 5))
    assert first == again
    assert first != other


def test_without_incidents_only_startups_and_checkpoints_waste_time():
    site = Site(
        nodes=8, incidents_per_1000_node_days=0.0, startup_sigma=0.0, outages={}, ambiguous_sbatch=0.0
    )
    outcome = simulate(site, [plan(hours=30)], BASE, 1, 60 * DAY)
    assert outcome.attempts == 3  # 30 h in walltimes of 12 h
    assert outcome.failures == outcome.interventions == 0
    assert all(hours < 1e-6 for cause, hours in outcome.wasted.items() if cause not in {"startup", "saving"})
    assert outcome.wasted["startup"] == pytest.approx(3 * 300 / 3600 * 64)


def test_jobs_with_the_same_name_are_refused():
    with pytest.raises(ValueError, match="same name"):
        simulate(Site(nodes=8), [plan(), plan()], BASE, 1, DAY)


@pytest.mark.parametrize(("nodes", "freed"), [(8, False), (200, True)])
def test_excluded_nodes_do_not_block_a_job(nodes, freed):
    """The policy limits the exclusion if it can list the partition; in a larger partition a person removes it."""
    site = Site(
        nodes=nodes,
        incidents_per_1000_node_days=2400.0 / nodes,
        mix={"gpu": 1.0},
        gpu_named=1.0,
        gpu_lasting=0.0,
    )
    outcome = simulate(site, [plan(nodes=nodes)], BASE, 2, 60 * DAY)
    assert outcome.finished == 1
    assert outcome.failures > 1
    assert (outcome.interventions > 0) == freed
