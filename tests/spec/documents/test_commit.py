"""The commit of a checkout, compared with git."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.documents.commit import commit_of

if TYPE_CHECKING:
    from pathlib import Path


def git(folder: Path, *words: str) -> str:
    options = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=trunk")
    answer = subprocess.run(["git", *options, *words], cwd=folder, check=True, capture_output=True, text=True)
    return answer.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "deep" / "er").mkdir(parents=True)
    git(folder, "init", "--quiet")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "one")
    return folder


def test_branch_packed_detached_and_other_work_tree(checkout: Path, tmp_path: Path) -> None:
    first = git(checkout, "rev-parse", "HEAD")
    assert commit_of(checkout) == commit_of(checkout / "deep" / "er") == first
    git(checkout, "pack-refs", "--all")
    assert commit_of(checkout) == first
    git(checkout, "worktree", "add", "--quiet", str(tmp_path / "other"), "-b", "branch")
    git(tmp_path / "other", "commit", "--quiet", "--allow-empty", "-m", "two")
    assert commit_of(tmp_path / "other") == git(tmp_path / "other", "rev-parse", "HEAD") != first
    git(checkout, "checkout", "--quiet", "--detach")
    assert commit_of(checkout) == first


@pytest.mark.parametrize("head", ["", "ref: refs/heads/none", "nonsense", "ref: ../../../etc/passwd"])
def test_no_commit(head: str, checkout: Path, tmp_path: Path) -> None:
    assert commit_of(tmp_path / "elsewhere") == ""
    (checkout / ".git" / "HEAD").write_text(head)
    assert commit_of(checkout) == ""
