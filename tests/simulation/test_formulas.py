"""The simulation against closed formulas and published figures."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from airflow_megatron.simulation.incidents import incidents, lemon_nodes
from airflow_megatron.simulation.policies import POLICIES
from airflow_megatron.simulation.run import simulate
from airflow_megatron.simulation.scenarios import scenario
from airflow_megatron.simulation.site import DAY, HOUR, META_JOB_FACTOR, PUBLISHED_RATES, Site
from airflow_megatron.simulation.statistics import mean, quantile
from airflow_megatron.simulation.theory import best_save_interval, expected_ettr, failures_per_second
from airflow_megatron.simulation.training import TrainingPlan

NO_PAUSE = next(policy for policy in POLICIES if policy.name == "no pause")


def plain(nodes: int, rate: float) -> Site:
    """A site with nothing but crashes from which the next attempt recovers at once."""
    return Site(
        nodes=nodes,
        incidents_per_1000_node_days=rate,
        mix={"network": 1.0},
        lemon_share=0.0,
        startup_s=300.0,
        startup_sigma=0.0,
        damaged_checkpoints=0.0,
        ambiguous_sbatch=0.0,
        outages={},
    )


@pytest.mark.parametrize(
    ("nodes", "rate", "interval_s"), [(128, 6.5, 2400.0), (128, 26.0, 1200.0), (128, 104.0, 600.0)]
)
def test_metas_formula_holds_where_nothing_else_happens(nodes, rate, interval_s):
    """Only the product of nodes and rate matters: 104 on 128 nodes fails as often as 6.5 on 2,048."""
    site = plain(nodes, rate)
    plan = TrainingPlan("job", nodes, 10**8, 1.0, int(interval_s), 40.0, 1e9)
    outcomes = [simulate(site, [plan], NO_PAUSE, seed, 60 * DAY) for seed in range(3)]
    # noticed within a poll or two, then Airflow, Slurm and the start-up
    restart = 1.0 * NO_PAUSE.poll_s + site.airflow_s + site.scheduling_s + site.startup_s
    expected = expected_ettr(failures_per_second(nodes, rate), restart, interval_s, plan.save_s)
    assert statistics.fmean(outcome.ettr for outcome in outcomes) == pytest.approx(expected, rel=0.015)


def test_mean_time_to_failure_is_metas():
    """arXiv 2410.21680: 1.8 h at 16,384 GPUs, 0.23 h at 131,072; at 1,024 it was measured 3.7 times shorter."""
    rate = PUBLISHED_RATES["meta-rsc1"]
    assert 1 / failures_per_second(16384 // 8, rate) / HOUR == pytest.approx(1.8, abs=0.05)
    assert 1 / failures_per_second(131072 // 8, rate) / HOUR == pytest.approx(0.23, abs=0.01)
    assert 1 / failures_per_second(1024 // 8, rate * META_JOB_FACTOR) / HOUR == pytest.approx(7.9, abs=0.2)
    plan = TrainingPlan("job", 2048, 10**8, 1.0, 600, 40.0, 1e9)
    outcome = simulate(plain(2048, rate), [plan], NO_PAUSE, 1, 60 * DAY)
    running = (outcome.used / 8 / 2048) / outcome.failures
    # an incident while the job is down for its restart strikes nobody
    assert running == pytest.approx(1.8, rel=0.1)


def test_llama_3_would_meet_as_many_incidents_as_it_did():
    site = Site(nodes=2048, incidents_per_1000_node_days=PUBLISHED_RATES["llama3"])
    counts = [sum(1 for _ in incidents(site, seed, 54 * DAY)) for seed in range(20)]
    assert statistics.fmean(counts) == pytest.approx(419, rel=0.03)


def test_lemon_nodes_have_their_share_of_the_hardware_incidents():
    site = Site(nodes=1000)
    lemons = lemon_nodes(site, 3)
    hardware = [incident for incident in incidents(site, 3, 365 * DAY) if incident.kind in {"gpu", "hang"}]
    assert len(lemons) == 50
    share = sum(incident.node in lemons for incident in hardware) / len(hardware)
    assert share == pytest.approx(site.lemon_failures, abs=0.03)


def test_youngs_interval_is_the_best_of_its_neighbours():
    rate = failures_per_second(2048, 6.5)
    best = best_save_interval(40.0, rate)
    assert best == pytest.approx(720, abs=5)
    ratio = [expected_ettr(rate, 300.0, best * factor, 40.0) for factor in (0.5, 1.0, 2.0)]
    assert ratio[1] == max(ratio)
    shorter, own, longer = (replace(NO_PAUSE, save_interval_factor=factor) for factor in (0.25, 1.0, 4.0))
    setting = scenario("training", 1024, days=20, rate=104.0)
    ettr = {
        policy.save_interval_factor: simulate(
            plain(128, 104.0), setting.plans(policy), policy, 5, setting.seconds
        ).ettr
        for policy in (shorter, own, longer)
    }
    assert ettr[1.0] == max(ettr.values())


def test_confidence_interval_is_students():
    assert mean([1.0, 2.0, 3.0, 4.0, 5.0]).margin == pytest.approx(1.963, abs=0.01)  # 2.776 · √(2.5 / 5)
    assert mean([7.0]).value == 7.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
