"""The removal of run directories follows no links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.remote.run_folders import folders_script, parse_folders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("of_jobs", [False, True])
@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("root", ["runs", "link to runs"])
def test_a_link_that_takes_the_place_of_a_checked_folder(
    slurm, tmp_path: Path, root: str, remove: bool, of_jobs: bool
) -> None:
    """Another user who may write into a sweep's folder swaps it between the check and the removal."""
    point, other = tmp_path / "runs" / "sweep" / "point", tmp_path / "other" / "point"
    for folder in (point, other):
        (folder / "checkpoints").mkdir(parents=True)
    (tmp_path / "link to runs").symlink_to("runs")
    path = f"{tmp_path}/{root}/sweep/point"
    script = folders_script(f"{tmp_path}/{root}", [path], remove=remove, of_jobs=of_jobs)
    swap = (
        'cd() { case "$*" in *sweep) mv sweep sweep.old; ln -s ../other sweep ;; esac; command cd "$@"; }\n'
        "am_folder 0"
    )
    assert script.count("am_folder 0") == 1
    (answer,) = parse_folders([path], slurm.run(script.replace("am_folder 0", swap)))
    assert answer.problem == f"{tmp_path}/runs/sweep is a symbolic link"
    assert (other / "checkpoints").is_dir()
    (answer,) = parse_folders([path], slurm.run(script))
    assert answer.problem == f"{tmp_path}/runs/sweep is a symbolic link"


SOME_FILES = ("notes.txt", "a\nb", "a?b", "=", "-rf", "data/x/y/tokens.bin")


def folder_of_a_sweep(tmp_path: Path) -> Path:
    sweep = tmp_path / "runs" / "sweep"
    for folder in ("point/.jobs/work/1", "deep/branch/.jobs/work/1", ".arrays/work.1/1", ".data_cache/x"):
        (sweep / folder).mkdir(parents=True)
    (sweep / "point" / "big").write_bytes(bytes(1 << 20))
    return sweep


def of_jobs(slurm, sweep: Path, *, remove: bool):
    script = folders_script(str(sweep.parent), [str(sweep)], remove=remove, of_jobs=True)
    (answer,) = parse_folders([str(sweep)], slurm.run(script))
    return answer


def test_files_that_no_job_has_made_are_kept(slurm, tmp_path: Path) -> None:
    sweep = folder_of_a_sweep(tmp_path)
    for name in SOME_FILES:
        (sweep / name).parent.mkdir(parents=True, exist_ok=True)
        (sweep / name).write_bytes(bytes(8 << 20))
    (sweep / "link").symlink_to("point")
    kept = ("-rf", "=", "a?b", "a?b", "data", "link", "notes.txt")
    answer = of_jobs(slurm, sweep, remove=False)
    assert (answer.exists, answer.kept) == (True, kept)
    assert 1 << 10 <= answer.kibibytes < 2 << 10
    answer = of_jobs(slurm, sweep, remove=True)
    assert (answer.removed, answer.problem, answer.kept) == (True, "", kept)
    assert {str(path.relative_to(sweep)) for path in sweep.rglob("*") if not path.is_dir()} == {
        *SOME_FILES,
        "link",
    }
    again = of_jobs(slurm, sweep, remove=True)
    assert (again.removed, again.exists, again.kept) == (False, False, kept)


def test_the_folder_of_a_sweep_without_other_files_is_removed(slurm, tmp_path: Path) -> None:
    sweep = folder_of_a_sweep(tmp_path)
    answer = of_jobs(slurm, sweep, remove=True)
    assert (answer.removed, answer.problem, answer.kept) == (True, "", ())
    assert not sweep.exists()
    assert not of_jobs(slurm, sweep, remove=True).removed


def test_an_interrupted_removal_is_repeated(slurm, tmp_path: Path) -> None:
    """A folder is known by its records, which therefore go last."""
    sweep = folder_of_a_sweep(tmp_path)
    (sweep / "notes.txt").touch()
    script = folders_script(str(sweep.parent), [str(sweep)], remove=True, of_jobs=True)
    slurm.run(script.replace("xargs -0 -r rm -rf", "false"))
    assert not (sweep / "point" / "big").exists()
    assert of_jobs(slurm, sweep, remove=True).removed
    assert [path.name for path in sweep.iterdir()] == ["notes.txt"]


def test_a_folder_is_measured_and_removed(slurm, tmp_path: Path) -> None:
    path = f"{tmp_path}/runs/sweep/point"
    (tmp_path / "runs" / "sweep" / "point" / "checkpoints").mkdir(parents=True)
    (answer,) = parse_folders([path], slurm.run(folders_script(f"{tmp_path}/runs", [path])))
    assert (answer.exists, answer.problem) == (True, "")
    (answer,) = parse_folders([path], slurm.run(folders_script(f"{tmp_path}/runs", [path], remove=True)))
    assert (answer.exists, answer.problem) == (False, "")
    assert list((tmp_path / "runs" / "sweep").iterdir()) == []
