"""Folders of the reports of runs."""

from __future__ import annotations

from airflow_megatron.plan.run_results import FEWER, run_results_dir


def test_a_long_id_of_a_run_has_a_folder_of_its_own() -> None:
    """Airflow's ids have 250 characters, and some of them are quoted."""
    ids = ["a" * 250, f"{'a' * 249}b", "é" * 250, f"{'é' * 249}x"]
    names = [run_results_dir("x", run_id).name for run_id in ids]
    assert len(set(names)) == len(ids)
    assert max(len(name.encode()) for name in names) + len(FEWER) <= 255


def test_usual_ids_keep_their_names() -> None:
    usual = "manual__2026-11-22T08:20:13.939576+00:00"
    assert run_results_dir("x", usual).name == usual
