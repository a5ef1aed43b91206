"""Which files of a folder are specs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec import spec_files as files
from airflow_megatron.spec.spec_files import crowded_folders, in_turn, misnamed_files, spec_files

if TYPE_CHECKING:
    from collections.abc import Iterable
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


def _make(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


class TestManyFiles:
    """Files in one sub-folder cannot keep those of the others from being read."""

    def test_too_many_specs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "MOST_FILES", 5)
        _make(tmp_path, ["a.yaml", "bo/b.yaml", *(f"eve/{number}.yaml" for number in range(6))])
        assert spec_files(tmp_path) == [tmp_path / "a.yaml", tmp_path / "bo" / "b.yaml"]
        (problem,) = crowded_folders(tmp_path)
        assert str(problem) == (
            f"{tmp_path / 'eve'}: it holds 6 YAML files of one user, and none of them is read "
            "(at most 5: remove those that are no specs)"
        )

    def test_all_folders_together(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "MOST_FILES_IN_ALL", 5)
        _make(tmp_path, ["a.yaml", *(f"{folder}/{number}.yaml" for folder in "xyz" for number in range(3))])
        assert [path.parent.name for path in spec_files(tmp_path)] == [tmp_path.name, "x", "x", "x"]
        assert len(crowded_folders(tmp_path)) == 2

    @pytest.mark.parametrize("names", [[f"eve/{n}.txt" for n in range(11)], [f"eve/{n}/s" for n in range(6)]])
    def test_too_many_files_of_any_kind(
        self, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "MOST_LISTED", 10)
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        _make(tmp_path, ["a.yaml", "eve/e.yaml"])
        assert spec_files(tmp_path) == [tmp_path / "a.yaml"]
        (problem,) = crowded_folders(tmp_path)
        assert str(problem).startswith(f"{tmp_path / 'eve'}: it holds more than 10 files")

    def test_every_folder_has_its_turn(self, tmp_path: Path) -> None:
        _make(tmp_path, ["z.yaml", "eve/1.yaml", "eve/2.yaml", "eve/3.yaml", "zoe/4.yaml"])
        order = [path.name for path in in_turn(tmp_path, spec_files(tmp_path))]
        assert sorted(order[:3]) == ["1.yaml", "4.yaml", "z.yaml"]
        assert order[3:] == ["2.yaml", "3.yaml"]
