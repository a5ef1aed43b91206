"""Decisions of the project's policy code for each incident, and the effect of the policies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import simpy

from airflow_megatron.simulation.run import simulate
from airflow_megatron.simulation.site.cluster import SimulatedCluster
from airflow_megatron.simulation.site.incidents import Incident, Services, incidents, stream
from airflow_megatron.simulation.site.ledger import Ledger
from airflow_megatron.simulation.site.observations import observe
from airflow_megatron.simulation.site.site import DAY, HOUR, MINUTE, Outages, Person, Site
from airflow_megatron.simulation.site.training import Training, TrainingPlan
from airflow_megatron.simulation.supervisors.manual_checks import next_check, reaction_to_alarm
from airflow_megatron.simulation.supervisors.policies import POLICIES, SPEC_DEFAULTS
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.verdict import Expectation, Outcome, judge

BY_NAME = {policy.name: policy for policy in POLICIES}
BASE = BY_NAME["no budgets"]
PLAN = TrainingPlan("job", 4, 10**6, 10.0, 100, 40.0, 24 * HOUR)
EXPECTATION = Expectation("train", PLAN.train_iters, complete=lambda files: True)


def stricken(kind, luck=0.3, after=700.0):
    """Return a cluster and an attempt some time after an incident."""
    environment, ledger = simpy.Environment(), Ledger()
    site = Site(nodes=6, incidents_per_1000_node_days=0.0, outages={}, lemon_share=0.0)
    cluster = SimulatedCluster(environment, site, 1, DAY, ledger)
    attempt = cluster.submit(Training(PLAN, ledger, 0.0, stream(1, "job")))
    environment.run(until=2 * HOUR)
    cluster._apply_incident(Incident(2 * HOUR, 2, kind, luck), cluster.nodes[2])
    environment.run(until=2 * HOUR + after)
    return cluster, attempt


@pytest.mark.parametrize(
    ("kind", "state", "outcome", "failed_nodes"),
    [
        ("gpu", JobState.FAILED, Outcome.RETRYABLE, ("n00002",)),
        ("node_down", JobState.NODE_FAIL, Outcome.RETRYABLE, ("n00002",)),
        ("network", JobState.FAILED, Outcome.RETRYABLE, ()),
        ("software", JobState.FAILED, Outcome.FAILED, ()),
        ("bug", JobState.FAILED, Outcome.FAILED, ()),
        ("nan", JobState.FAILED, Outcome.FAILED, ()),
        ("file_system", JobState.FAILED, Outcome.RETRYABLE, ("n00002",)),
        ("preemption", JobState.PREEMPTED, Outcome.RETRYABLE, ()),
        ("hang", JobState.FAILED, Outcome.RETRYABLE, ()),
    ],
)
def test_verdict_on_an_incident_is_the_same_as_on_a_real_cluster(kind, state, outcome, failed_nodes):
    cluster, attempt = stricken(kind)
    verdict = judge(observe(cluster, attempt), EXPECTATION, log_tail=attempt.log)
    assert (verdict.state, verdict.outcome) == (state, outcome), verdict.reason
    assert verdict.failed_nodes == failed_nodes
    assert verdict.iteration == 600  # 2 h less 5 min of start, 10 s an iteration, saved every 100


def test_slow_nodes_and_hangs_leave_the_job_running():
    for kind in ("slow", "hang"):
        cluster, attempt = stricken(kind, luck=0.9)
        assert judge(observe(cluster, attempt), EXPECTATION).outcome is Outcome.ACTIVE
        assert attempt.stalled is (kind == "hang")


def test_an_outage_is_not_a_verdict():
    outage = {"controller": Outages(1000.0, (30 * MINUTE,))}
    assert any(
        Services(Site(4, outages=outage), 1, DAY).outage("controller", hour * HOUR) for hour in range(24)
    )
    for kind in ("controller", "login"):
        cluster, attempt = stricken("node_down")
        always = Site(nodes=6, outages={kind: Outages(1e9, (DAY,))})
        cluster.services = Services(always, 1, DAY)
        assert judge(observe(cluster, attempt), EXPECTATION, log_tail=attempt.log).outcome is Outcome.UNKNOWN


def test_all_policies_have_the_same_incidents():
    site = Site(nodes=64)
    assert list(incidents(site, 9, 30 * DAY)) == list(incidents(site, 9, 30 * DAY))
    assert list(incidents(site, 9, 10 * DAY)) == [
        i for i in incidents(site, 9, 30 * DAY) if i.time < 10 * DAY
    ]


def run(policy, seed=3, days=30, **site):
    return simulate(
        Site(nodes=40, lemon_share=0.1, **site), [replace(PLAN, nodes=32)], policy, seed, days * DAY
    )


@pytest.mark.slow
def test_hang_detection_saves_the_time_until_a_person_checks():
    hangs = {"mix": {"hang": 1.0}, "incidents_per_1000_node_days": 30.0, "nccl_watchdog_share": 0.0}
    seen, unseen = run(BASE, **hangs), run(BY_NAME["no hang detection"], **hangs)
    assert seen.interventions == seen.false_alarms == 0 < unseen.interventions
    assert seen.wasted["stalled"] < unseen.wasted["stalled"] / 5
    each = seen.wasted["stalled"] / (8 * 32) * HOUR / seen.incidents["hang"]
    assert each == pytest.approx(30 * MINUTE, abs=MINUTE)


@pytest.mark.slow
def test_a_hang_limit_shorter_than_the_startup_causes_false_alarms():
    outcome = run(replace(BASE, idle_s=4 * MINUTE))
    assert outcome.false_alarms > 0


def test_excluding_failed_nodes_avoids_nodes_that_fail_repeatedly():
    sick = {"mix": {"gpu": 1.0}, "incidents_per_1000_node_days": 20.0, "gpu_named": 1.0, "gpu_lasting": 1.0}
    off, on = run(BY_NAME["no node exclusion"], **sick), run(BASE, **sick)
    assert on.attempts < off.attempts / 1.5
    assert on.ettr > off.ettr


def test_quarantine_saves_interventions():
    damaged = {"damaged_checkpoints": 0.3, "incidents_per_1000_node_days": 30.0, "mix": {"network": 1.0}}
    for seed in range(20):
        taken = run(BASE, seed=seed, days=5, **damaged)
        if taken.quarantines == 1:
            break
    kept = run(BY_NAME["no quarantine"], seed=seed, days=5, **damaged)
    assert (taken.interventions, kept.interventions) == (0, 1)
    assert kept.failures > taken.failures


@pytest.mark.slow
def test_default_budgets_do_not_end_a_training_that_makes_progress():
    many = {"incidents_per_1000_node_days": 60.0, "mix": {"network": 1.0}}
    assert SPEC_DEFAULTS.retryable is not None
    outcome = run(BY_NAME["spec defaults"], **many)
    assert outcome.failures > 5 * SPEC_DEFAULTS.retryable
    assert outcome.interventions == run(BASE, **many).interventions


@pytest.mark.slow
def test_poll_interval_determines_the_detection_time():
    often = {"incidents_per_1000_node_days": 60.0, "mix": {"network": 1.0}, "outages": {}}
    each = {}
    for name in ("no budgets", "poll every 5 min"):
        outcome = run(BY_NAME[name], **often)
        each[name] = outcome.waited["noticing"] / (8 * 32) * HOUR / outcome.failures
    assert 5 < each["no budgets"] < 25
    assert 100 < each["poll every 5 min"] < 200


def test_a_loop_that_regards_an_outage_as_an_end_submits_twice():
    site = Site(nodes=16, outages={"controller": Outages(20.0, (HOUR,))}, incidents_per_1000_node_days=0.0)
    loop = simulate(site, [replace(PLAN, nodes=4)], BY_NAME["relaunch loop"], 1, 10 * DAY)
    ours = simulate(site, [replace(PLAN, nodes=4)], BASE, 1, 10 * DAY)
    assert loop.overlaps > 0
    assert loop.wasted["duplicate"] > 0
    assert ours.overlaps == 0


def test_working_hours():
    person = Person()
    friday_evening, saturday = 4 * DAY + 20 * HOUR, 5 * DAY + 11 * HOUR
    monday = 7 * DAY + 9 * HOUR
    assert (
        reaction_to_alarm(person, friday_evening)
        == reaction_to_alarm(person, saturday)
        == monday + 30 * MINUTE
    )
    assert reaction_to_alarm(person, 10 * HOUR) == 10.5 * HOUR
    assert next_check(person, 10.2 * HOUR) == 11 * HOUR
    assert next_check(person, 17.5 * HOUR) == DAY + 9 * HOUR
    assert next_check(person, friday_evening) == monday
    assert reaction_to_alarm(replace(person, on_call=True), saturday) == saturday + 30 * MINUTE
