"""The provenance record of an attempt, written by a real shell."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_megatron import __version__
from airflow_megatron.slurm.remote.transport import CommandResult
from airflow_megatron.slurm.submission.provenance import (
    Origins,
    Provenance,
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
VERSIONS = {"my_package": "1.0.dev3", "old": "0.1", "torch": "2.9.0+cpu"}


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_uncommitted_changes(origins: Origins, tmp_path: Path) -> None:
    (Path(origins.checkouts[0]) / "pretrain_gpt.py").write_text("2")
    assert record(origins, tmp_path)["checkouts"][0]["changed"] is True


@pytest.fixture
def in_container(origins: Origins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Origins:
    """A job whose Python exists only in its container; the runtime counts its starts."""
    runtime = tmp_path / "runtime"
    place = Path(origins.python).parents[2]
    hidden = tmp_path / "in the container"
    (place / "venv").rename(hidden)
    runtime.write_text(
        '#!/bin/sh\necho started >> "$(dirname "$0")/starts"\n'
        'while [ "$1" != sh ]; do shift; done\necho "WARNING: image is old"\nexec "$@"\n'
    )
    runtime.chmod(0o755)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    words = (str(runtime), "exec", f"--bind={ODD}")
    return Origins(f"{hidden}/bin/python", (), (), str(place / "image.sif"), words)


@pytest.mark.slow
def test_a_container_and_what_is_installed_in_it(in_container: Origins, tmp_path: Path) -> None:
    found = record(in_container, tmp_path)
    (described,) = found["containers"]
    assert described["image"] == in_container.image
    assert described["sha256_of_first_mib"] == hashlib.sha256(b"SIF").hexdigest()
    environments = tmp_path / "runs" / ".environments"
    assert json.loads((environments / f"{found['environment']}.json").read_text()) == {"packages": PACKAGES}
    # the container is started neither for the next job nor on the login node
    (tmp_path / "attempt" / "provenance.json").unlink()
    assert record(in_container, tmp_path)["environment"] == found["environment"]
    assert (tmp_path / "starts").read_text() == "started\n"
    script = question_script(in_container, str(tmp_path / "runs"))
    done = subprocess.run(["bash", "-s"], input=script, text=True, capture_output=True, check=True)
    assert parse_question(CommandResult(0, done.stdout, done.stderr)).packages == VERSIONS
    Path(str(in_container.image)).write_bytes(b"SIF 2")
    (tmp_path / "attempt" / "provenance.json").unlink()
    record(in_container, tmp_path)
    assert (tmp_path / "starts").read_text() == "started\n" * 2
    assert not (tmp_path / "owned").exists()


@pytest.mark.slow
def test_a_container_that_cannot_be_started(in_container: Origins, tmp_path: Path) -> None:
    (tmp_path / "runtime").write_text("#!/bin/sh\nexit 3\n")
    found = record(in_container, tmp_path)
    assert found["containers"][0]["image"] == in_container.image
    assert found["environment"] is None
    assert list((tmp_path / "runs" / ".environments").iterdir()) == []


@pytest.mark.slow
def test_a_container_whose_runtime_comes_with_a_module(
    in_container: Origins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On many sites ``apptainer`` is on the ``PATH`` only after ``module load``, as here."""
    monkeypatch.setenv(
        "BASH_FUNC_module%%",
        f'() {{ [ "$*" = "load apptainer/1.4" ] && echo loaded && PATH={tmp_path}:$PATH; }}',
    )
    needing = replace(in_container, container=("runtime", *in_container.container[1:]))
    assert record(needing, tmp_path)["environment"] is None
    (tmp_path / "attempt" / "provenance.json").unlink()
    assert record(replace(needing, modules=("apptainer/1.4",)), tmp_path)["environment"] is not None


@pytest.mark.slow
def test_an_image_of_a_registry_is_listed_once_a_day(in_container: Origins, tmp_path: Path) -> None:
    registry = replace(in_container, image="docker://nvcr.io/nvidia/pytorch:25.03")
    starts = tmp_path / "starts"
    for hours, expected in ((0, 1), (23, 1), (25, 2)):
        for kept in (tmp_path / "runs").glob(".environments/image-*"):
            os.utime(kept, (time.time() - hours * 3600,) * 2)
        (tmp_path / "attempt" / "provenance.json").unlink(missing_ok=True)
        assert record(registry, tmp_path)["environment"] is not None
        assert len(starts.read_text().split()) == expected, hours


def test_a_job_continues_if_its_record_cannot_be_written(tmp_path: Path) -> None:
    lines = recording_lines(Origins("/no/python"), "/proc/nowhere", "/proc/nowhere")
    done = subprocess.run(
        ["bash", "-s"], input=f"set -eu\n{lines}\necho going on", text=True, capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == ("going on\n", "")


@pytest.mark.slow
def test_what_a_login_node_would_run_with(origins: Origins, tmp_path: Path) -> None:
    script = question_script(origins, "/nowhere")
    done = subprocess.run(["bash", "-s"], input=script, text=True, capture_output=True, check=True)
    now = parse_question(CommandResult(0, done.stdout, done.stderr))
    assert now.packages == VERSIONS
    before = {**record(origins, tmp_path), "packages": PACKAGES}
    assert differences(Provenance.from_json(before), now) == []
    before |= {"package": "0.0.1", "packages": ["torch==2.8.0", "numpy==1.0"]}
    before["checkouts"][0] |= {"commit": "0" * 40}
    assert differences(Provenance.from_json(before), now) == [
        f"airflow-megatron 0.0.1 → {__version__}",
        f"{origins.checkouts[0]} 000000000000 → {origins.checkouts[0]} {now.checkouts[0].commit[:12]}",
        "my_package not installed → 1.0.dev3",
        "numpy 1.0 → not installed",
        "old not installed → 0.1",
        "torch 2.8.0 → 2.9.0+cpu",
    ]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"package": 3, "checkouts": None, "containers": "x", "packages": {}},
        {"checkouts": [1, None], "containers": [[]], "packages": [2, None], "unknown": 1},
    ],
)
def test_a_damaged_record_is_empty(value: dict[str, object]) -> None:
    assert Provenance.from_json(value) == Provenance()
    assert differences(Provenance.from_json(value), Provenance()) == [
        "the installed packages are not known on both sides"
    ]
