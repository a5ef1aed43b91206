"""What the jobs of a stage share is worked out once, and does not show in the jobs."""

from __future__ import annotations

import pytest

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text

TEXT = """
point: "lr{{ lr }}"
params: {nodes: 2}
sweep: {params: {lr: [1e-3, 1e-4], cooldown.save_interval: [5, 6]}}
slurm: {time: 1h, cpus_per_task: 3, options: [--exclusive]}
megatron: {train_iters: 100, save_interval: 10}
stages:
  pretrain: {kind: train, slurm: {nodes: "{{ nodes }}", options: ["--comment={{ lr }}"]}}
  cooldown: {kind: train, parent: pretrain, start: {checkpoint: 50}, slurm: {time: "{{ '2' }}h"}}
  convert: {kind: convert, parent: [pretrain, cooldown], params: {tokenizer: "{{ 't' }}"}}
"""
NAMED = TEXT.replace(", cooldown.save_interval: [5, 6]", "")


def test_jobs_do_not_depend_on_the_points_before_them() -> None:
    cluster = load_cluster("local")
    together = load_sweep_text(NAMED, "s.yaml")
    jobs = [job.to_json() for point in together.points for job in together.jobs(point, cluster)]
    alone = []
    for name in ("lr0.001", "lr0.0001"):
        sweep = load_sweep_text(NAMED, "s.yaml")
        alone += [job.to_json() for job in sweep.jobs(sweep.point(name), load_cluster("local"))]
    assert jobs == alone


def test_another_cluster_is_not_answered_from_memory() -> None:
    sweep = load_sweep_text(NAMED, "s.yaml")
    local = load_cluster("local")
    other = local.model_copy(update={"name": "other", "run_root": "/elsewhere"})
    first, second = (sweep.jobs(sweep.points[0], cluster)[0] for cluster in (local, other))
    assert (first.cluster, second.cluster) == ("local", "other")
    assert second.run_dir.startswith("/elsewhere/")


def test_resources() -> None:
    sweep = load_sweep_text(NAMED, "s.yaml")
    jobs = {job.stage: job for job in sweep.jobs(sweep.point("lr0.0001"), load_cluster("local"))}
    assert jobs["pretrain"].slurm.nodes == 2
    assert jobs["pretrain"].slurm.time == 3600
    assert jobs["pretrain"].slurm.options == ["--exclusive", "--comment=0.0001"]
    assert jobs["cooldown"].slurm.time == 7200
    assert jobs["cooldown"].slurm.cpus_per_task == 3
    assert jobs["pretrain.convert"].slurm.options == ["--exclusive"]


def test_a_key_of_one_stage_reaches_that_stage_only() -> None:
    text = TEXT.replace("[5, 6]", "[5]")
    sweep = load_sweep_text(text, "s.yaml")
    jobs = {job.stage: job for job in sweep.jobs(sweep.points[0], load_cluster("local"))}
    assert jobs["cooldown"].params["save_interval"] == 5
    assert jobs["pretrain"].params["save_interval"] == 10


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{time: \"{{ 'soon' }}\"}", "slurm.time: 'soon' is not a duration"),
        ('{nodes: "{{ 1.5 }}"}', "slurm.nodes is 1.5, not a whole number"),
        ('{mem: "{{ 5 }}"}', "slurm.mem is 5"),
        ('{time: "{{ 1e308 * 10 }}"}', "slurm.time: inf is not a duration"),
    ],
)
def test_wrong_resources(section: str, told: str) -> None:
    text = NAMED.replace(
        'slurm: {nodes: "{{ nodes }}", options: ["--comment={{ lr }}"]}', f"slurm: {section}"
    )
    sweep = load_sweep_text(text, "s.yaml")
    with pytest.raises(SpecError, match=told):
        sweep.jobs(sweep.points[0], load_cluster("local"))


def test_restart_of_a_stage_is_merged_key_by_key_with_the_sweeps() -> None:
    text = NAMED.replace("slurm: {time", "restart: {retryable: 3, nodes: [1], failed: 2}\nslurm: {time", 1)
    text = text.replace(
        "start: {checkpoint: 50},", "start: {checkpoint: 50}, restart: {failed: null, backoff: 5s},"
    )
    sweep = load_sweep_text(text, "s.yaml")
    jobs = {job.stage: job.restart for job in sweep.jobs(sweep.points[0], load_cluster("local"))}
    assert (jobs["pretrain"].retryable, jobs["pretrain"].failed, jobs["pretrain"].nodes) == (3, 2, [1])
    cooldown = jobs["cooldown"]
    assert (cooldown.retryable, cooldown.failed, cooldown.backoff, cooldown.nodes) == (3, None, 5, [1])
    # a stage may say what is the default although the sweep says otherwise
    text = NAMED.replace("slurm: {time", "restart: {retryable: 3}\nslurm: {time", 1)
    text = text.replace("start: {checkpoint: 50},", "start: {checkpoint: 50}, restart: {retryable: 10},")
    sweep = load_sweep_text(text, "s.yaml")
    jobs = {job.stage: job.restart for job in sweep.jobs(sweep.points[0], load_cluster("local"))}
    assert (jobs["pretrain"].retryable, jobs["cooldown"].retryable) == (3, 10)


def test_what_follows_a_rollback_is_read_by_trainings_alone() -> None:
    """It may name what a point varies, which a stage of the whole sweep does not know."""
    sweep = load_sweep_text(
        NAMED.replace("stages:", "restart: {after_rollback: {lr: '{{ lr / 2 }}'}}\nstages:")
        + "  prepare: {kind: command, scope: sweep, command: ['true']}\n",
        "s.yaml",
    )
    cluster = load_cluster("local")
    (shared,) = sweep.shared_jobs(cluster)
    assert shared.restart.after_rollback == {}
    jobs = {job.stage: job for job in sweep.jobs(sweep.points[0], cluster)}
    assert jobs["pretrain"].restart.after_rollback == {"lr": 5e-4}
    assert jobs["pretrain.convert"].restart.after_rollback == {}
