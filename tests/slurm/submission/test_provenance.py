"""The record of what an attempt has run with, written by a real shell."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_megatron import __version__
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.slurm.submission.provenance import (
    Origins,
    differences,
    parse_question,
    question_script,
    recording_lines,
)

ODD = "a b'\"$(touch owned)`\\é"


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@y", *words],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def origins(tmp_path: Path) -> Origins:
    """An environment, a checkout, an index and an image, in a folder with an odd name."""
    place = tmp_path / ODD
    python = place / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    packages = place / "venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    for name in (
        "torch-2.9.0+cpu.dist-info",
        "my_package-1.0.dev3.dist-info",
        "old-0.1-py3.11.egg-info",
        "x",
    ):
        (packages / name).mkdir()
    (place / "venv" / "lib64").symlink_to("lib")
    checkout = place / "Megatron-LM"
    checkout.mkdir()
    (checkout / "pretrain_gpt.py").write_text("1")
    git(checkout, "init", "-q")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "x")
    (place / "data.idx").write_bytes(b"MMIDIDX" + bytes(3 << 20))
    (place / "image.sif").write_bytes(b"SIF")
    return Origins(str(python), (str(checkout), "/nowhere"), (str(place / "data.idx"), "/gone.idx"))


def record(origins: Origins, tmp_path: Path) -> dict[str, Any]:
    attempt = tmp_path / "attempt"
    attempt.mkdir(exist_ok=True)
    script = f"set -eu\n{recording_lines(origins, str(attempt), str(tmp_path / 'runs'))}\nwait $am_provenance_job\n"
    subprocess.run(["bash", "-s"], input=script, text=True, check=True, cwd=tmp_path)
    return json.loads((attempt / "provenance.json").read_text())


PACKAGES = ["my_package==1.0.dev3", "old==0.1", "torch==2.9.0+cpu"]


def test_everything_is_recorded(origins: Origins, tmp_path: Path) -> None:
    found = record(origins, tmp_path)
    assert found["package"] == __version__
    checkout, nowhere = found["checkouts"]
    commit = git(Path(origins.checkouts[0]), "rev-parse", "HEAD")
    assert checkout == {"path": origins.checkouts[0], "commit": commit, "changed": False}
    assert nowhere == {"path": "/nowhere", "commit": None}
    index, gone = found["indexes"]
    content = Path(origins.indexes[0]).read_bytes()
    assert index["bytes"] == len(content)
    assert index["sha256_of_first_mib"] == hashlib.sha256(content[: 1 << 20]).hexdigest()
    assert gone == {"path": "/gone.idx", "bytes": None}
    environment = tmp_path / "runs" / ".environments" / f"{found['environment']}.json"
    assert json.loads(environment.read_text()) == {"packages": PACKAGES}
    assert not (tmp_path / "owned").exists()


def test_it_is_written_once(origins: Origins, tmp_path: Path) -> None:
    """A requeued job leaves the record; equal environments share a file."""
    first = record(origins, tmp_path)
    environment = tmp_path / "runs" / ".environments" / f"{first['environment']}.json"
    (tmp_path / "attempt" / "provenance.json").write_text('{"kept": 1}')
    environment.write_text("kept")
    assert record(origins, tmp_path) == {"kept": 1}
    (tmp_path / "attempt" / "provenance.json").unlink()
    assert record(origins, tmp_path)["environment"] == first["environment"]
    assert environment.read_text() == "kept"


def test_uncommitted_changes(origins: Origins, tmp_path: Path) -> None:
    (Path(origins.checkouts[0]) / "pretrain_gpt.py").write_text("2")
    assert record(origins, tmp_path)["checkouts"][0]["changed"] is True


def test_a_container_identifies_its_packages(origins: Origins, tmp_path: Path) -> None:
    image = Path(origins.indexes[0]).parent / "image.sif"
    found = record(Origins(origins.python, (), (), str(image)), tmp_path)
    (described,) = found["containers"]
    assert described["image"] == str(image)
    assert described["sha256_of_first_mib"] == hashlib.sha256(b"SIF").hexdigest()
    assert found["environment"] is None


def test_a_job_goes_on_whatever_becomes_of_the_record(tmp_path: Path) -> None:
    lines = recording_lines(Origins("/no/python"), "/proc/nowhere", "/proc/nowhere")
    done = subprocess.run(
        ["bash", "-s"], input=f"set -eu\n{lines}\necho going on", text=True, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == ("going on\n", "")


def test_what_a_login_node_would_run_with(origins: Origins, tmp_path: Path) -> None:
    script = question_script(origins)
    done = subprocess.run(["bash", "-s"], input=script, text=True, capture_output=True, check=True)
    now = parse_question(CommandResult(0, done.stdout, done.stderr))
    assert now["packages"] == PACKAGES
    before = {**record(origins, tmp_path), "packages": PACKAGES}
    assert differences(before, now) == []
    before |= {"package": "0.0.1", "packages": ["torch==2.8.0", "numpy==1.0"]}
    before["checkouts"][0] |= {"commit": "0" * 40}
    assert differences(before, now) == [
        f"airflow-megatron 0.0.1 → {__version__}",
        f"{origins.checkouts[0]} 000000000000 → {origins.checkouts[0]} {now['checkouts'][0]['commit'][:12]}",
        "my_package not installed → 1.0.dev3",
        "numpy 1.0 → not installed",
        "old not installed → 0.1",
        "torch 2.8.0 → 2.9.0+cpu",
    ]
