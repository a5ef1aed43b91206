"""The script of an archive on a full disk, and beside another archive of the same name."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.remote.run_archive import ArchiveError, archive_script, parse_archive
from airflow_megatron.slurm.remote.transport import CommandResult

if TYPE_CHECKING:
    from pathlib import Path


def records() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("airflow-megatron/archive.json")
        entry.size = 4096
        archive.addfile(entry, io.BytesIO(os.urandom(4096)))
    return packed.getvalue()


def ran(root: Path, to: Path, before: str = "") -> CommandResult:
    script = archive_script(str(root), [f"{root}/study"], default=f"{to}", to=str(to), extra=records())
    done = subprocess.run(
        ["sh"], input=before + script, capture_output=True, text=True, check=False, timeout=60
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "study"
    folder.mkdir(parents=True)
    (folder / "log").write_text("x\n" * 1000)
    return folder.parent


def test_a_full_disk_is_named(root: Path, tmp_path: Path) -> None:
    to = tmp_path / "study.tar.gz"
    with pytest.raises(ArchiveError, match=f"space|write|{tmp_path}") as raised:
        parse_archive(ran(root, to, "ulimit -f 0\n"))
    assert "no reason given" not in str(raised.value)
    assert not list(tmp_path.glob(".archive*"))
    assert not to.exists()


def test_an_archive_that_appears_meanwhile_is_kept(root: Path, tmp_path: Path) -> None:
    to, programs = tmp_path / "study.tar.gz", tmp_path / "bin"
    programs.mkdir()
    gzip = programs / "gzip"
    gzip.write_text(
        f'#!/bin/sh\n[ -n "$1" ] || echo other >{to}\nexec /usr/bin/env -i PATH=/usr/bin:/bin gzip "$@"\n'
    )
    gzip.chmod(0o755)
    with pytest.raises(ArchiveError, match="cannot be written"):
        parse_archive(ran(root, to, f"export PATH={programs}:$PATH\n"))
    assert to.read_text() == "other\n"
    assert not list(tmp_path.glob(".archive*"))
