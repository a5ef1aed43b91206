"""The order in which tests look for upstream Megatron-LM, and the message if there is none."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import pytest
from upstream import ARCHIVE_VARIABLE, CHECKOUT_VARIABLE, UpstreamMissingError, find_upstream, release_of

if TYPE_CHECKING:
    from pathlib import Path

RELEASE = "core_v0.16.1"


def checkout(folder: Path, patch: int = 1) -> Path:
    info = folder / "megatron/core/package_info.py"
    info.parent.mkdir(parents=True)
    info.write_text(f"MAJOR = 0\nMINOR = 16\nPATCH = {patch}\nPRE_RELEASE = ''\n")
    (folder / "pretrain_gpt.py").touch()
    return folder


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "upstream.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(checkout(tmp_path / "packed"), arcname="Megatron-LM")
    return path


@pytest.fixture(autouse=True)
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(CHECKOUT_VARIABLE, raising=False)
    monkeypatch.delenv(ARCHIVE_VARIABLE, raising=False)
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    return tmp_path / "local"


def test_the_order(tmp_path: Path, local: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARCHIVE_VARIABLE, str(archive))
    unpacked = find_upstream(RELEASE)
    assert unpacked == local / "upstream-for-tests" / RELEASE
    assert release_of(unpacked) == RELEASE
    assert find_upstream(RELEASE) == unpacked  # not unpacked again
    assert list(unpacked.parent.iterdir()) == [unpacked]
    own = checkout(local / "Megatron-LM" / RELEASE)
    assert find_upstream(RELEASE) == own
    named = checkout(tmp_path / "named")
    monkeypatch.setenv(CHECKOUT_VARIABLE, str(named))
    assert find_upstream(RELEASE) == named


def test_another_release_is_ignored(tmp_path: Path, local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKOUT_VARIABLE, str(checkout(tmp_path / "other", patch=0)))
    own = checkout(local / "Megatron-LM" / RELEASE)
    assert find_upstream(RELEASE) == own


def test_missing_upstream_is_an_error_with_a_hint(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UpstreamMissingError) as missing:
        find_upstream(RELEASE)
    assert "holds no Megatron-LM; MEGATRON_LM_ARCHIVE is not set. Run Megatron-LM/checkout.sh" in str(
        missing.value
    )
    monkeypatch.setenv(CHECKOUT_VARIABLE, str(checkout(tmp_path / "other", patch=0)))
    monkeypatch.setenv(ARCHIVE_VARIABLE, str(tmp_path / "absent.tar.gz"))
    with pytest.raises(
        UpstreamMissingError, match=r"other holds core_v0\.16\.0; .*absent\.tar\.gz is not a file"
    ):
        find_upstream(RELEASE)
    monkeypatch.setenv(ARCHIVE_VARIABLE, str(archive))
    with pytest.raises(UpstreamMissingError, match=r"upstream\.tar\.gz holds core_v0\.16\.1"):
        find_upstream("core_v0.19.0")
