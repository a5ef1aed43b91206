"""``quickstart --set``: the changed spec is a separate sweep with the given settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_line import runner
from example_specs import CHAIN

from airflow_megatron.cli.runs.changed_spec import write_changed_spec
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.model.sweep import Sweep


@pytest.fixture(autouse=True)
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    return tmp_path / "local"


@pytest.mark.slow
def test_the_quick_start_by_the_other_trainer(local: Path) -> None:
    shipped = sweep_specs_dir() / "quickstart.yaml"
    changed = write_changed_spec(shipped, ["trainer=megatron_lm"])
    assert changed.parent == local / "changed-specs"
    plan, expected = (
        check_sweep(load_sweep(changed)),
        check_sweep(load_sweep(shipped, ["trainer=megatron_lm"])),
    )
    assert plan.sweep.startswith("quickstart-")
    assert plan.sweep == changed.stem
    assert plan.points == expected.points
    ours = [[word.replace(plan.sweep, "quickstart") for word in job.command] for job in plan.jobs]
    assert ours == [list(job.command) for job in expected.jobs]
    assert {job.trainer for job in plan.jobs} == {"megatron_lm"}


def test_each_set_of_values_has_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(CHAIN)
    first, again, other, named = (
        write_changed_spec(path, settings)
        for settings in (
            ["trainer=megatron_lm", "max_jobs=2"],
            ["max_jobs=2", "trainer=megatron_lm"],
            ["max_jobs=3"],
            ["max_jobs=3", "name=mine"],
        )
    )
    assert first == again
    assert len({first, other, named}) == 3
    assert named.stem == load_sweep(named).name == "mine"


@pytest.mark.parametrize(
    ("text", "setting"), [(CHAIN, "trainr=megatron_lm"), ("job: {}\nsweep: {}\n", "a=1")]
)
def test_values_that_cannot_be_overridden(text: str, setting: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(SpecError):
        load_sweep(write_changed_spec(path, [setting]))


@pytest.mark.parametrize("setting", ["trainer=megatron_ml", "stages.pretrain.kind=trian", "point=same"])
def test_an_invalid_value_is_named_and_no_file_is_left(setting: str, local: Path, tmp_path: Path) -> None:
    """Airflow would report the file in each later run with other values."""
    path = tmp_path / "chain.yaml"
    path.write_text(CHAIN)
    with pytest.raises(SpecError) as refused:
        write_changed_spec(path, [setting])
    assert "changed-specs" not in str(refused.value)
    assert not local.exists()


@pytest.mark.slow
def test_a_missing_checkout_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(sweep_specs_dir()))  # the command sets its own
    answer = runner(monkeypatch, capsys)("quickstart", "--set", "trainer=megatron_lm")
    assert answer.status == 1
    assert "Megatron-LM/checkout.sh core_v0.16.1 " in answer.stderr


def test_a_spec_that_airflow_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would wait in vain for the DAGs."""
    started: list[str] = []

    def start(sweep: Sweep, *, fresh: bool) -> int:
        started.append(sweep.name)
        return 0

    monkeypatch.setattr("airflow_megatron.cli.runs.quickstart.run_quickstart", start)
    specs = tmp_path / "specs"
    (specs / "me").mkdir(parents=True)
    for path in (specs / "me" / "chain.yaml", tmp_path / "chain.yaml"):
        path.write_text(CHAIN)
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(specs))
    call = runner(monkeypatch, capsys)
    outside = str(tmp_path / "chain.yaml")
    answer = call("quickstart", outside)
    assert answer.status == 1
    assert answer.stderr.strip() == (
        f"{outside}: it is not in {specs}, whose sweeps Airflow runs (move it there, or set"
        f" AIRFLOW_MEGATRON_SWEEP_SPECS={tmp_path})"
    )
    assert not started
    for spec in (
        str(specs / "me" / "chain.yaml"),
        str(tmp_path / "specs" / ".." / "specs" / "me" / "chain.yaml"),
    ):
        assert call("quickstart", spec).status == 0
    assert call("quickstart", outside, "--set", "max_jobs=2").status == 0
    assert len(started) == 3
