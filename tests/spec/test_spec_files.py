"""Which files of a folder are specs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.spec_files import misnamed_files, spec_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", ["study.YAML", "study.Yml", "study.yaml.txt", "study.yml.TXT"])
def test_a_file_that_was_meant_as_a_spec_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert spec_files(tmp_path) == []
    (problem,) = misnamed_files(tmp_path)
    assert str(problem) == (
        f"{tmp_path / name}: it is not read, because specs end in .yaml or .yml (rename it to study.yaml)"
    )


@pytest.mark.parametrize(
    "name", ["study.yaml", "study.yml", "notes.txt", "job.sbatch", "study.yaml~", ".a.YAML"]
)
def test_other_files_are_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert misnamed_files(tmp_path) == []
