from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from local_cluster import packages

if TYPE_CHECKING:
    from pathlib import Path

ALLOWS = "#!/bin/sh\nexit 0\n"


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "policy-rc.d"
    monkeypatch.setattr(packages, "POLICY_FILE", path)
    monkeypatch.setattr(packages, "SAVED_POLICY_FILE", tmp_path / "policy-rc.d.saved")
    return path


def answer(policy: Path) -> int:
    return subprocess.run([str(policy), "mariadb", "start"], check=False).returncode


def silent(line: str) -> None:
    del line


def test_daemons_are_blocked_only_during_the_installation(policy: Path) -> None:
    with packages._no_daemon_starts((), silent):
        assert answer(policy) == packages.POLICY_FORBIDDEN
    assert not policy.exists()


def test_an_existing_policy_is_restored_after_a_failure(policy: Path) -> None:
    policy.write_text(ALLOWS)
    policy.chmod(0o755)

    def fail() -> None:
        with packages._no_daemon_starts((), silent):
            assert answer(policy) == packages.POLICY_FORBIDDEN
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert policy.read_text() == ALLOWS
    assert os.access(policy, os.X_OK)
    assert not packages.SAVED_POLICY_FILE.exists()


def test_a_policy_that_already_blocks_daemons_is_kept(policy: Path) -> None:
    policy.write_text("#!/bin/sh\n# a container image's own\nexit 101\n")
    policy.chmod(0o755)
    before = policy.stat()
    with packages._no_daemon_starts((), silent):
        assert answer(policy) == packages.POLICY_FORBIDDEN
    assert policy.stat().st_ino == before.st_ino


def test_the_policy_is_restored_after_a_killed_installation(policy: Path) -> None:
    packages.SAVED_POLICY_FILE.write_text(ALLOWS)
    policy.write_text(packages.POLICY_TEXT)
    policy.chmod(0o755)
    with packages._no_daemon_starts((), silent):
        pass
    assert policy.read_text() == ALLOWS

    packages.SAVED_POLICY_FILE.unlink(missing_ok=True)
    policy.write_text(packages.POLICY_TEXT)
    policy.chmod(0o755)
    with packages._no_daemon_starts((), silent):
        pass
    assert not policy.exists()


def test_a_missing_program_names_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for programs in packages.PROGRAMS_BY_PACKAGE.values():
        for name in programs:
            (tmp_path / name).write_text(ALLOWS)
            (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(packages, "SEARCH_PATH", str(tmp_path))
    assert packages.missing_packages() == []
    (tmp_path / "sacctmgr").unlink()
    (tmp_path / "sshd").unlink()
    assert packages.missing_packages() == ["slurm-client", "openssh-server"]
