"""The folder of the installation: what ``make install`` refuses, and what ``make clean`` deletes."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.documents.project import project_root

if TYPE_CHECKING:
    from pathlib import Path


def _make(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {
        name: value
        for name, value in os.environ.items()
        if name not in ("AIRFLOW_MEGATRON_LOCAL", "MAKEFLAGS")
    }
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(
        command,
        cwd=project_root(),
        env={**known, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("target", ["install", "clean"])
def test_files_of_others_stay(target: str, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    done = _make(target, AIRFLOW_MEGATRON_LOCAL=str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_path_that_slurm_does_not_support_is_refused_before_anything_is_installed(tmp_path: Path) -> None:
    done = _make("install", AIRFLOW_MEGATRON_LOCAL=str(tmp_path / "my projects"))
    assert done.returncode == 2
    assert (
        f"{tmp_path}/my projects/cluster: Slurm's configuration files do not support this path" in done.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_clean_deletes_one_folder_whose_name_has_a_blank(tmp_path: Path) -> None:
    (tmp_path / "my").mkdir()
    (tmp_path / "my projects" / "venv-airflow").mkdir(parents=True)
    done = _make("clean", AIRFLOW_MEGATRON_LOCAL=str(tmp_path / "my projects"))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["my"]


def test_a_variable_that_sites_use_is_not_the_folder(tmp_path: Path) -> None:
    shown = _make("--dry-run", "install", LOCAL=str(tmp_path)).stdout
    assert f'install.sh "{project_root()}/.local"' in shown
    shown = _make("--dry-run", "install", AIRFLOW_MEGATRON_LOCAL="somewhere").stdout
    assert f'install.sh "{project_root()}/somewhere"' in shown


@pytest.mark.parametrize("script", ["docker/install.sh", "Megatron-LM/install.sh"])
def test_packages_of_a_sites_modules_do_not_count_as_installed(script: str, tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\nenv >'{tmp_path}/environment'\nexit 1\n")
    interpreter.chmod(0o755)
    words = [str(tmp_path)] if script.startswith("docker") else ["--check-compiler"]
    modules = {"PYTHONPATH": "/site/numpy", "PYTHONHOME": "/site/python", "PIP_USER": "1"}
    subprocess.run(
        [project_root() / script, *words],
        env={**os.environ, **modules, "PYTHON": str(interpreter)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    seen = (tmp_path / "environment").read_text()
    assert "/site/" not in seen
    assert "PIP_USER=0" in seen
