"""Estimates, the view of a plan by stages, and the difference of two plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checked_chain import TRUNK, alps, changed, checked

from airflow_megatron.cli.plans.plan_table import print_plan
from airflow_megatron.plan.difference import plan_difference
from airflow_megatron.plan.overview import axes, stage_overviews
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.requirements.queue_estimates import GpuHours, gpu_hours, most_jobs_at_once
from airflow_megatron.spec.spec_files import load_sweep, load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_gpu_hours_are_walltime_times_gpus() -> None:
    plan = checked(TRUNK)
    assert gpu_hours(plan.jobs_of("lr0.001")) == GpuHours(2 * 8 * 6 + 2 * 0.5)
    assert gpu_hours(checked(changed((", time: 6h}", "}"))).jobs) == GpuHours(2.0, 4)
    assert (
        gpu_hours(checked(changed(("gpus_per_node: 4, ", ""), ("gpus_per_node: 1, ", ""))).jobs) == GpuHours()
    )


@pytest.mark.parametrize(
    ("points", "settings", "most"),
    [
        (2, "", 4),  # pretrain or its conversion, and beside it cooldown or its conversion
        (1, "", 2),
        (100, "", 32),
        (100, "max_active_points: 3", 6),
    ],
)
def test_jobs_at_once(points: int, settings: str, most: int) -> None:
    sweep = load_sweep_text(f"{settings}\n{TRUNK}", "s.yaml")
    assert most_jobs_at_once(sweep.tree, points, sweep.settings) == most


@pytest.mark.slow
def test_stages_follow_their_parents() -> None:
    text = changed(
        (
            "start: {checkpoint: 240}",
            'start: {checkpoint: "{{ 180 if lr < 2e-3 else 240 }}"}',
        )
    )
    text = text.replace(
        ' else 240 }}"}\n', ' else 240 }}"}\n    cancel: {any: [{log: nan}, {log: nan, of: pretrain}]}\n'
    )
    text = text.replace(
        "lr_decay_iters: 300\n      lr_wsd_decay_iters: 60",
        "lr_decay_iters: 300\n      lr_wsd_decay_iters: 50",
    )
    sweep = load_sweep_text(text, "s.yaml")
    stages = stage_overviews(checked(text), sweep.tree)
    assert [(stage.instance.name, stage.label, len(stage.jobs), stage.starts) for stage in stages] == [
        ("pretrain", "pretrain", 2, "nothing"),
        ("cooldown", "cooldown", 2, "pretrain checkpoint 180, 240"),
        ("cooldown.convert", "convert", 2, "cooldown finished"),
        ("pretrain.convert", "convert", 2, "pretrain finished"),
    ]
    assert stages[1].cancel == "log nan or log nan of pretrain"
    assert stages[0].gpu_hours == GpuHours(96.0)


def test_resources_that_scripts_request_are_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --gres=gpu:4\n#SBATCH --job-name={name}\ntrue\n"
    )
    (tmp_path / "study.yaml").write_text(
        "template: train.sbatch\nname: 'lr{LR}'\nLR: [1, 2]\noutput_file: '{name}.out'\n"
        "sbatch_script: '{name}.sbatch'\ncmd: 'sbatch {sbatch_script}'\ntermination_str: done\n"
    )
    sweep = load_sweep(tmp_path / "study.yaml")
    plan = check_sweep(sweep, alps(max_gpu_hours=1))
    assert gpu_hours(plan.jobs) == GpuHours(own_scripts=2)
    (warning,) = plan.warnings
    assert warning.message == (
        "2 jobs request resources in scripts of their own, so limits.max_gpu_hours of cluster alps is not checked"
    )
    unlimited = check_sweep(sweep, alps())
    assert unlimited.warnings == ()
    print_plan(unlimited, stage_overviews(unlimited, sweep.tree), 0)
    printed = " ".join(capsys.readouterr().out.split())
    assert "GPU-hours of 2 jobs not known: their own scripts request the resources" in printed
    assert "no GPUs" not in printed


def test_stages_that_are_queued_ahead() -> None:
    text = f"ahead: 1\n{TRUNK}"
    stages = stage_overviews(checked(text), load_sweep_text(text, "s.yaml").tree)
    assert [stage.kind for stage in stages] == [
        "train",
        "train",  # it starts at a checkpoint
        "convert, queued ahead",
        "convert, queued ahead",
    ]


def test_axes_have_each_value_once_in_order() -> None:
    assert axes(checked(TRUNK)) == {"lr": [1e-3, 4e-3]}


class TestDifference:
    def test_of_a_plan_with_itself(self) -> None:
        difference = plan_difference(checked(TRUNK), checked(TRUNK))
        assert not difference
        assert difference.unchanged == 2

    @pytest.mark.slow
    def test_points_and_values(self) -> None:
        new = changed(
            ("[1e-3, 4e-3]", "[1e-3, 2e-3]"),
            ("time: 6h", "time: 7h"),
            ("train_iters: 300\n      lr_decay_iters: 300", "train_iters: 290\n      lr_decay_iters: 290"),
        )
        difference = plan_difference(checked(TRUNK), checked(new))
        assert (difference.appeared, difference.vanished) == (("lr0.002",), ("lr0.004",))
        value_changes = {
            (change.stage, change.name): (change.old, change.new) for change in difference.changes
        }
        assert value_changes[("cooldown", "train_iters")] == (300, 290)
        assert value_changes[("pretrain", "slurm.time")] == (6 * 3600, 7 * 3600)
        assert ("pretrain", "train_iters") not in value_changes
        assert {change.points for change in difference.changes} == {("lr0.001",)}
        assert difference.unchanged == 0

    def test_another_name_alone_changes_nothing(self) -> None:
        extra = 'params: {tokenizer: "{{ sweep_dir }}/tokenizer"}'
        old = changed(("params: {tokenizer: /data/tokenizer}", extra))
        assert not plan_difference(checked(old), checked(changed(("name: trunk", "name: other"), text=old)))

    @pytest.mark.slow
    def test_stages(self) -> None:
        new = changed(("parent: [pretrain, cooldown]", "parent: cooldown"))
        difference = plan_difference(checked(TRUNK), checked(new))
        assert difference.stages_vanished == ("pretrain.convert",)
        assert plan_difference(checked(new), checked(TRUNK)).stages_appeared == ("pretrain.convert",)
