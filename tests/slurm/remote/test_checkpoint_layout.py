"""The layout of checkpoints on Lustre, with a stand-in for ``lfs``: no Lustre runs here."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.shell_files import shell_file

if TYPE_CHECKING:
    from pathlib import Path


def laid_out(folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    script = f'set -e\n{shell_file("checkpoint_layout")}\nam_set_layout "$1" --stripe-count 8\necho went on'
    path = f"{programs}:{os.environ['PATH']}"
    words = ["bash", "-c", script, "bash", str(folder)]
    return subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=True)


def lfs(programs: Path, text: str) -> None:
    programs.mkdir()
    (programs / "lfs").write_text(f"#!/bin/sh\n{text}\n")
    (programs / "lfs").chmod(0o755)


def test_a_new_directory_gets_the_layout_once(tmp_path: Path) -> None:
    lfs(tmp_path / "bin", f'echo "$*" >>{tmp_path}/asked')
    folder = tmp_path / "a run" / "checkpoints"
    for _ in range(2):
        assert laid_out(folder, tmp_path / "bin").stderr == ""
    assert (tmp_path / "asked").read_text() == f"setstripe --stripe-count 8 {folder}\n"
    assert folder.is_dir()


def test_a_cluster_without_lustre(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    assert laid_out(folder, tmp_path / "none").stdout == "went on\n"
    assert not folder.exists()
    lfs(tmp_path / "bin", 'echo "Inappropriate ioctl for device" >&2; exit 25')
    ended = laid_out(folder, tmp_path / "bin")
    assert ended.stdout == "went on\n"
    warning = f"airflow-megatron: warning: lfs setstripe --stripe-count 8 {folder}: Inappropriate ioctl for device\n"
    assert ended.stderr == warning
