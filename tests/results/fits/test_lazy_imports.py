"""Commands, reports and DAGs import numpy and scipy only for fits."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["airflow_megatron.cli.runs.fit", "airflow_megatron.plan.run_results", "airflow_megatron.cli.app"],
)
def test_nothing_is_loaded_before_a_fit(module: str) -> None:
    code = f"import sys, {module}; print(sorted({{'numpy', 'scipy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
