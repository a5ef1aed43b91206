"""The removal of run directories follows no links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.remote.run_folders import folders_script, parse_folders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("remove", [False, True])
@pytest.mark.parametrize("root", ["runs", "link to runs"])
def test_a_link_that_takes_the_place_of_a_checked_folder(
    slurm, tmp_path: Path, root: str, remove: bool
) -> None:
    """Another user who may write into a sweep's folder swaps it between the check and the removal."""
    point, other = tmp_path / "runs" / "sweep" / "point", tmp_path / "other" / "point"
    for folder in (point, other):
        (folder / "checkpoints").mkdir(parents=True)
    (tmp_path / "link to runs").symlink_to("runs")
    path = f"{tmp_path}/{root}/sweep/point"
    script = folders_script(f"{tmp_path}/{root}", [path], remove=remove)
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


def test_a_folder_is_measured_and_removed(slurm, tmp_path: Path) -> None:
    path = f"{tmp_path}/runs/sweep/point"
    (tmp_path / "runs" / "sweep" / "point" / "checkpoints").mkdir(parents=True)
    (answer,) = parse_folders([path], slurm.run(folders_script(f"{tmp_path}/runs", [path])))
    assert (answer.exists, answer.problem) == (True, "")
    (answer,) = parse_folders([path], slurm.run(folders_script(f"{tmp_path}/runs", [path], remove=True)))
    assert (answer.exists, answer.problem) == (False, "")
    assert list((tmp_path / "runs" / "sweep").iterdir()) == []
