"""From logs to fits: sizes × learning rates with cooldowns, written and read as on a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml
from run_tree import RunTree, take_snapshot

from airflow_megatron.results.fits.next_spec import next_spec
from airflow_megatron.results.fits.refusals import FitRefusedError
from airflow_megatron.results.fits.sweep_fits import display_tables, fit_sweep, to_json, trunks_of
from airflow_megatron.results.fits.sweep_runs import SweepRuns, groups_of, sweep_runs
from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.report.report import write_report
from airflow_megatron.results.tables.trainings import result_table
from airflow_megatron.spec.documents.yaml_document import load_yaml_text

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.results.fits.sweep_fits import FamilyFits

pytestmark = pytest.mark.slow

RATES = [3.75e-4, 7.5e-4, 1.5e-3, 3e-3, 6e-3, 1.2e-2, 2.4e-2]
SIZES = [(64, 300_000), (128, 1_200_000), (256, 5_000_000)]


def read(tree: RunTree) -> SweepRuns:
    jobs = read_jobs(tree.jobs)
    return sweep_runs(result_table(take_snapshot(run_directories(jobs)), jobs))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> SweepRuns:
    """Three sizes × seven learning rates, the highest of the largest diverged."""
    tree = RunTree(tmp_path_factory.mktemp("fits"))
    for hidden, parameters in SIZES:
        size = {"num_layers": hidden // 32, "hidden_size": hidden, "num_attention_heads": hidden // 32}
        for rate in RATES:
            diverges = 200 if hidden == 256 and rate == RATES[-1] else None
            tree.add_point(size, parameters, rate, train_iters=100, diverges_at=diverges and 50)
    return read(tree)


def only(runs: SweepRuns, **options: object) -> FamilyFits:
    (family,) = fit_sweep(runs, **options).families  # type: ignore[arg-type]
    return family


def test_runs_are_read_from_logs(runs: SweepRuns) -> None:
    assert len(runs.runs) == 20
    assert runs.loss == "validation"
    assert runs.left_out == ("1 run without a finite loss at the end",)
    run = runs.runs[0]
    assert (run.lr, run.tokens, run.batch) == (3.75e-4, 100 * 16 * 256, 16 * 256)
    assert run.parameters == {"unpadded": 300_000, "non-embedding": None, "total": 300_000}


def test_the_optimum_and_its_law_are_found(runs: SweepRuns) -> None:
    family = only(runs)
    for row, (_, parameters) in zip(family.rows["optimum"], SIZES, strict=True):
        rate = row.estimates["lr"]
        assert rate.low <= 3e-3 * (1e6 / parameters) ** 0.3 <= rate.high
    (law,) = family.rows["optimum-law"]
    assert law.name == "lr(N)"
    exponent = law.estimates["exponent of N"]
    assert exponent.low <= -0.3 <= exponent.high
    assert exponent.value == pytest.approx(-0.3, abs=0.1)


def test_what_is_not_determined_is_refused_in_its_row(runs: SweepRuns) -> None:
    (row,) = only(runs).rows["loss-law"]
    assert row.refusal == "3 losses are too few: a law in N has 3 parameters and needs 5"


def test_one_size_has_an_optimum_and_no_law(runs: SweepRuns) -> None:
    one = replace(runs, runs=runs.runs[:7])
    family = only(one)
    assert not family.rows["optimum"][0].refusal
    assert family.rows["optimum-law"][0].refusal == (
        "there is 1 optimum away from the edge: a power law in N needs 3 sizes or budgets"
    )
    assert "all runs have the same N" in family.rows["loss-law"][0].refusal


def test_an_optimum_at_the_edge_has_no_part_in_the_law(runs: SweepRuns) -> None:
    low = replace(
        runs,
        runs=tuple(
            run
            for run in runs.runs
            if (run.lr is not None and run.lr <= 3e-3) or run.point.startswith("h256")
        ),
    )
    family = only(low)
    refusals = [row.refusal for row in family.rows["optimum"]]
    assert "4 values of lr have finished" in refusals[0]
    assert "there is 1 optimum" in family.rows["optimum-law"][0].refusal


def test_unknown_parameters_are_named(runs: SweepRuns) -> None:
    with pytest.raises(FitRefusedError, match="20 runs whose non-embedding parameters are not known"):
        fit_sweep(runs, counts="non-embedding")


def test_optimizers_without_a_common_learning_rate_are_separate_families(tmp_path: Path) -> None:
    tree = RunTree(tmp_path)
    size = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
    for rate in RATES[:6]:
        tree.add_point(size, 300_000, rate, train_iters=100)
    for job in tree.jobs:
        swept = job["sweep_params"]
        swept["optimizer"] = "adam" if swept["lr"] < RATES[3] else "muon"
        swept["name"] = f"lr{swept['lr']}"
    assert {run.family for run in read(tree).runs} == {"optimizer=adam", "optimizer=muon"}


def test_another_swept_parameter_makes_families(runs: SweepRuns) -> None:
    both = [
        replace(run, swept={**run.swept, "optimizer": name}, family=f"optimizer={name}")
        for name in ("adam", "muon")
        for run in runs.runs
    ]
    fits = fit_sweep(replace(runs, runs=tuple(both)))
    assert [family.family for family in fits.families] == ["optimizer=adam", "optimizer=muon"]
    assert display_tables(fits)[0][0] == "Optimum per size, optimizer=adam"


def test_forms(runs: SweepRuns) -> None:
    fits = fit_sweep(runs, kinds=["optimum"])
    data = json.loads(json.dumps(to_json(fits)))
    assert list(data["families"][0]["fits"]) == ["optimum"]
    assert set(data["families"][0]["fits"]["optimum"][0]["estimates"]["lr"]) == {"value", "low", "high"}
    ((title, _, lines),) = display_tables(fits)
    assert title == "Optimum per size"
    assert lines[0] == ["", "lr", "loss", "remark"]
    assert lines[1][0] == "N 300k, D 410k"
    assert len(lines) == 4


def test_cooldowns_are_runs_of_their_own_tokens(tmp_path: Path) -> None:
    tree = RunTree(tmp_path)
    for hidden, parameters in SIZES:
        size = {"num_layers": 2, "hidden_size": hidden}
        tree.add_point(size, parameters, 3e-3, budgets={"1M": 250, "1.6M": 400})
    runs = read(tree)
    assert sorted({run.tokens for run in runs.runs}) == [250 * 16 * 256, 400 * 16 * 256]
    trunks = [run for run in runs.runs if run.branch == "pretrain"]
    assert len(trunks) == 3  # these logs have the peak rate in all branches, so no branch counts as annealed


def test_the_loss_law_knows_the_trunks_of_cooldowns(tmp_path: Path) -> None:
    tree = RunTree(tmp_path)
    for hidden, parameters in SIZES:
        size = {"num_layers": 2, "hidden_size": hidden}
        tree.add_point(size, parameters, 3e-3, budgets={"1M": 250, "1.6M": 400, "4M": 1000})
    runs = read(tree)
    assert trunks_of(only(runs, kinds=["optimum"]).cells) == [2, 2, 2, 5, 5, 5, 8, 8, 8]
    apart = replace(runs, runs=tuple(replace(run, point=f"{number}") for number, run in enumerate(runs.runs)))
    assert trunks_of(only(apart, kinds=["optimum"]).cells) == list(range(9))


def test_equal_values_are_one_group() -> None:
    assert groups_of([100, 101, 150, 99.5]) == {99.5: 99.5, 100: 99.5, 101: 99.5, 150: 150}


SPEC = "name: toy\nstages: {pretrain: {kind: train}}\nsweep: {type: product, groups: []}\n"


def test_the_next_spec_extends_the_sweep(runs: SweepRuns, tmp_path: Path) -> None:
    document = load_yaml_text(SPEC, str(tmp_path / "toy.yaml"))
    text = next_spec("toy", document, fit_sweep(runs), 4, tmp_path / "next.yaml")
    spec = yaml.safe_load(text)
    assert spec["extends"] == "toy.yaml"
    assert spec["name"] == "toy_x4"
    assert spec["sweep"]["type"] is None
    assert spec["sweep"]["groups"] is None
    (config,) = spec["sweep"]["configs"]
    assert config["hidden_size"] == 32 * config["num_attention_heads"]
    grown = config["num_layers"] / 8 * (config["hidden_size"] / 256) ** 2
    assert grown == pytest.approx(4, rel=0.1)
    assert config["lr"] == pytest.approx(3e-3 * (1e6 / 20e6) ** 0.3, rel=0.15)


def test_no_next_spec_without_a_law(runs: SweepRuns, tmp_path: Path) -> None:
    document = load_yaml_text(SPEC, str(tmp_path / "toy.yaml"))
    one = fit_sweep(replace(runs, runs=runs.runs[:7]))
    with pytest.raises(
        FitRefusedError, match="no law of the learning rate to take the next one from: there is 1"
    ):
        next_spec("toy", document, one, 4, tmp_path / "next.yaml")


def test_only_native_specs_are_extended(runs: SweepRuns, tmp_path: Path) -> None:
    document = load_yaml_text("a: 1\n", str(tmp_path / "toy.yaml"))
    with pytest.raises(FitRefusedError, match="only a native spec"):
        next_spec("toy", document, fit_sweep(runs), 4, tmp_path / "next.yaml")


def test_the_report_holds_the_fits(tmp_path: Path) -> None:
    tree = RunTree(tmp_path / "runs")
    for hidden, parameters in SIZES:
        for rate in RATES:
            size = {"num_layers": hidden // 32, "hidden_size": hidden}
            tree.add_point(size, parameters, rate, train_iters=100)
    snapshot = take_snapshot(run_directories(read_jobs(tree.jobs)))
    report = write_report(snapshot, tree.jobs, tmp_path / "report")
    page = report.page.read_text()
    assert "<h2>Laws of the optimum</h2>" in page
    assert "lr(N)" in page
    names = {path.name for path in report.paths}
    assert {"fits.json", "fits.png", "fits.svg"} <= names
    svg = (tmp_path / "report" / "fits.svg").read_text()
    assert "best learning rate" in svg
    assert "StepLaw" in svg
    assert "our law" in svg
