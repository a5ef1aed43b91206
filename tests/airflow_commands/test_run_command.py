"""Airflow commands in processes that collect garbage seldom."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_megatron.dag_factory.spec_files import build_sweep_dags

REPOSITORY = Path(__file__).resolve().parents[2]
AIRFLOW = """
import gc, sys
def main():
    print(gc.get_threshold()[0], *sys.argv[1:])
    class Kept:
        def __del__(self):
            print("visited at the end")
    kept = Kept()
    kept.itself = kept
    sys.exit(3)
"""


@pytest.mark.slow
def test_a_command_runs_as_in_airflow(tmp_path: Path) -> None:
    package = tmp_path / "airflow"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(AIRFLOW)
    ended = subprocess.run(
        [sys.executable, "-m", "airflow_megatron.airflow_commands.run_command", "dags", "list"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "50000 dags list\n", "")


@pytest.mark.parametrize(("words", "seldom"), [(["dags", "test", "chain"], True), (["scheduler"], False)])
def test_only_dags_test_collects_seldom(
    words: list[str], seldom: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = gc.get_threshold()
    monkeypatch.setattr(sys, "argv", ["airflow", *words])
    gc.set_threshold(700)
    try:
        build_sweep_dags(tmp_path)
        assert gc.get_threshold()[0] == (50_000 if seldom else 700)
    finally:
        gc.set_threshold(*before)
