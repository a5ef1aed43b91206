"""Other users of the machine have no access to files and pages of the local services."""

from __future__ import annotations

import itertools
import json
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.cli.local.local_airflow import LocalAirflow
from airflow_megatron.cli.local.private_files import make_private

if TYPE_CHECKING:
    from pathlib import Path

KEPT = (
    *(
        "simple_auth_manager_passwords.json.generated",
        "airflow.db",
        "airflow.db-wal",
        "airflow.cfg",
        "components.log",
    ),
    *("connections.json", "logs", "jwt_secret"),
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("name", "open_mode"), itertools.product(KEPT, (0o644, 0o666, 0o755, 0o640, 0o604)))
def test_permissions_of_existing_files_are_restricted(name: str, open_mode: int, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = home / name
    if name == "logs":
        path.mkdir()
    else:
        path.write_text("secret")
    path.chmod(open_mode)
    home.chmod(0o755)
    make_private(home)
    assert mode(home) == 0o700
    assert mode(path) == open_mode & 0o700


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o002, 0o077])
def test_new_folders(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        make_private(tmp_path / "home")
    finally:
        os.umask(before)
    assert mode(tmp_path / "home") == 0o700


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "other").write_text("x")
    (tmp_path / "other").chmod(0o644)
    (tmp_path / "home" / "link").symlink_to(tmp_path / "other")
    make_private(tmp_path / "home")
    assert mode(tmp_path / "other") == 0o644


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_anything_but_a_file_is_unchanged(kind: str, tmp_path: Path) -> None:
    (os.mkfifo if kind == "pipe" else lambda path: os.mknod(path, 0o140644))(tmp_path / "x")
    make_private(tmp_path)
    assert (tmp_path / "x").exists()


def test_the_page_listens_on_this_machine_only_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW__API__HOST", raising=False)
    assert LocalAirflow(tmp_path).environment()["AIRFLOW__API__HOST"] == "127.0.0.1"
    monkeypatch.setenv("AIRFLOW__API__HOST", "0.0.0.0")
    assert LocalAirflow(tmp_path).environment()["AIRFLOW__API__HOST"] == "0.0.0.0"


@pytest.mark.integration  # creates Airflow's database
def test_a_home_that_airflow_fills(tmp_path: Path) -> None:
    """Airflow writes its configuration, with its keys, and its database."""
    home = tmp_path / "airflow"
    home.mkdir()
    (home / "components.log").write_text("password: x")
    (home / "components.log").chmod(0o644)
    ssh = {"host": "127.0.0.1", "port": 1, "user": "me", "key_file": "/x", "host_key": "ssh-ed25519 AAAA"}
    program = (
        "import json, pathlib, sys\n"
        "from airflow_megatron.cli.local.local_airflow import LocalAirflow\n"
        "LocalAirflow(pathlib.Path(sys.argv[1])).prepare({'ssh': json.loads(sys.argv[2])})\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(home), json.dumps(ssh)],
        check=True,
        preexec_fn=lambda: os.umask(0o022),
    )
    found = {path.name: mode(path) for path in home.rglob("*")}
    assert {"airflow.db", "connections.json", "components.log"} <= found.keys()
    assert mode(home) == 0o700
    assert {name for name, each in found.items() if each & 0o077} == set()
