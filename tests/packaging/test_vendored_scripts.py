"""The third-party scripts of the page: fetched once, and only those in the lock file."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.spec.documents.project import project_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOOK = project_root() / "hatch_build.py"


@pytest.fixture(scope="module")
def fetch() -> Callable[[Path], list[str]]:
    spec = importlib.util.spec_from_file_location("hatch_build", HOOK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fetch  # type: ignore[no-any-return]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree whose lock file refers to an archive beside it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("package/dist/a.js", "package/LICENSE", "../outside.js"):
            tar.addfile(member := tarfile.TarInfo(name), io.BytesIO(b""))
            assert member.size == 0
    archive = tmp_path / "a.tgz"
    archive.write_bytes(buffer.getvalue())
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    files = {"package/dist/a.js": "a/a.js", "package/LICENSE": "a/LICENSE"}
    write_lock(tmp_path, url=archive.as_uri(), integrity=f"sha512-{digest}", files=files)
    return tmp_path


def write_lock(tree: Path, **changed: Any) -> None:
    path = tree / "airflow_megatron" / "ui" / "vendor.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text())["a"] if path.is_file() else {"version": "1"}
    path.write_text(json.dumps({"a": known | changed}))


def test_files_are_fetched_once(fetch: Callable[[Path], list[str]], tree: Path) -> None:
    assert fetch(tree) == ["a"]
    folder = tree / "airflow_megatron" / "ui" / "static" / "vendor"
    assert sorted(path.name for path in folder.rglob("*.*")) == ["a.js", "versions.json"]
    (tree / "a.tgz").unlink()
    assert fetch(tree) == []
    (folder / "a" / "LICENSE").unlink()
    with pytest.raises(OSError, match=r"a\.tgz"):
        fetch(tree)


def test_an_archive_with_another_checksum_is_refused(fetch: Callable[[Path], list[str]], tree: Path) -> None:
    with (tree / "a.tgz").open("ab") as file:
        file.write(b"more")
    with pytest.raises(ValueError, match="is not a 1: its checksum is sha512-"):
        fetch(tree)
    assert not (tree / "airflow_megatron" / "ui" / "static").exists()


def test_the_lock_file_names_checksum_and_licence() -> None:
    lock = json.loads((project_root() / "airflow_megatron" / "ui" / "vendor.json").read_text())
    for package in lock.values():
        assert package["integrity"].startswith("sha512-")
        assert any(name.endswith("LICENSE") for name in package["files"])
        assert package["version"] in package["url"]
