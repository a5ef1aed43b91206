"""Files in specs: only regular files below the spec's folder or a configured folder are read."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from typing import TYPE_CHECKING

import pytest
from probed_specs import AUTOEXPERIMENT, NATIVE, OELLM, TEMPLATE, errors_of, shown

from airflow_megatron.spec.documents.named_files import MAX_BYTES, SETTING, NamedFileError, read_named_file

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SECRET = "k3ep-th1s-0ut-of-s1ght"
CONTENTS = {
    "words": f"{SECRET}\n",
    "yaml": f"{SECRET}: {SECRET}\n",
    "broken": f"a: [{SECRET}\n\t{SECRET}: x: y",
    "script": f"#!/bin/bash\necho {{{SECRET}}} {SECRET}\n",
}
PLACES = {
    "extends": NATIVE + 'extends: "@"\n',
    "extends one of many": NATIVE + 'extends: ["@"]\n',
    "template": AUTOEXPERIMENT.replace("job.sbatch", '"@"'),
    "template of an option": AUTOEXPERIMENT.replace("template: job.sbatch", 'mode: [{a: {template: "@"}}]'),
    "nodes": OELLM.replace("hello", '"${oc.exclude_nodes:@}"'),
    "excluded": OELLM.replace("account: abc", 'exclude: "${oc.exclude_nodes:@}"'),
    "name": OELLM.replace("name: study", 'name: "${oc.exclude_nodes:@,_}"'),
    "filter": OELLM.replace("sweep: {", 'sweep: {filter: "${oc.exclude_nodes:@}", '),
}


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of specs with a private file beside it, and harmless-looking paths to that file."""
    home = tmp_path / "home"
    folder = tmp_path / "specs"
    (folder / "deep").mkdir(parents=True)
    home.mkdir()
    (folder / "job.sbatch").write_text(TEMPLATE)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(folder))
    monkeypatch.delenv(SETTING, raising=False)
    return folder


def private(specs: Path, content: str) -> list[str]:
    """Write the private file and return paths that lead to it."""
    home = specs.parent / "home"
    for name in ("private.yaml", "private"):
        (home / name).write_text(content)
    links = {"link.yaml": home / "private.yaml", "link": home / "private", "folder": home}
    for name, target in links.items():
        (specs / name).unlink(missing_ok=True)
        (specs / name).symlink_to(target)
    (specs / "twice.yaml").unlink(missing_ok=True)
    (specs / "twice.yaml").symlink_to("link.yaml")
    ways = ["link.yaml", "link", "twice.yaml", "folder/private.yaml", "./deep/../link.yaml"]
    ways += [
        "../home/private.yaml",
        "../home/private",
        "deep/../../home/private.yaml",
        "folder/../home/private",
    ]
    ways += [str(home / "private.yaml"), f"//{home}/private", "~/private.yaml", "~/private"]
    return [
        *ways,
        f"{specs}/../home/private.yaml",
        f"/proc/self/root{home}/private.yaml",
        "file://private.yaml",
    ]


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("place", PLACES)
def test_no_private_file_is_read(place: str, content: str, specs: Path) -> None:
    for way in private(specs, CONTENTS[content]):
        path = specs / "study.yaml"
        path.write_text(PLACES[place].replace("@", way))
        assert SECRET not in shown(path), way


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400, 0o660])
@pytest.mark.parametrize("place", PLACES)
def test_no_private_file_is_read_under_another_name(place: str, mode: int, specs: Path) -> None:
    """A hard link needs no permission to read on the machines that do not protect them (``fs.protected_hardlinks``)."""
    for content in CONTENTS.values():
        for name in ("hard.yaml", "hard", "deep/hard.yaml"):
            (specs.parent / "home" / "private").unlink(missing_ok=True)
            (specs.parent / "home" / "private").write_text(content)
            (specs.parent / "home" / "private").chmod(mode)
            (specs / name).unlink(missing_ok=True)
            (specs / name).hardlink_to(specs.parent / "home" / "private")
            path = specs / "study.yaml"
            path.write_text(PLACES[place].replace("@", name))
            assert SECRET not in shown(path), name


HIDDEN = (
    *(".git/config", ".env", ".netrc", ".ssh/id_ed25519", ".ssh/config.yaml", ".config/gh/hosts.yml"),
    *("deep/.git/config", "./.env", "deep/../.netrc", ".git/../.env", ".a/b/c.yaml", ".x"),
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_no_hidden_file_is_read(place: str, elsewhere: bool, specs: Path) -> None:
    """A folder of specs is a work tree of git, or a person's home: its hidden files hold tokens."""
    folder = specs.parent / "elsewhere" if elsewhere else specs
    for name in HIDDEN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(CONTENTS["broken" if "extends" in place else "words"])
        (folder / "link.yaml").unlink(missing_ok=True)
        (folder / "link.yaml").symlink_to(name)
        for way in (name, str(folder / name), "link.yaml"):
            path = folder / "study.yaml"
            path.write_text(PLACES[place].replace("@", way))
            assert SECRET not in shown(path), way


@pytest.mark.parametrize(
    "name", [".base.yaml", "deep/.base.yml", "..data/base.yaml", "..2026_11_25/base.yaml"]
)
def test_hidden_yaml_files_and_mounted_folders_are_read(name: str, specs: Path) -> None:
    (specs / name).parent.mkdir(exist_ok=True)
    (specs / name).write_text(NATIVE)
    (specs / "study.yaml").write_text(f"extends: {name}\nname: mine\n")
    assert errors_of(specs / "study.yaml") == ""


@pytest.mark.parametrize("mode", [0o644, 0o664, 0o444])
def test_files_with_two_names_that_everybody_may_read_are_read(mode: int, specs: Path) -> None:
    (specs / "base.yaml").write_text(NATIVE)
    (specs / "base.yaml").chmod(mode)
    (specs / "copy.yaml").hardlink_to(specs / "base.yaml")
    (specs / "study.yaml").write_text("extends: copy.yaml\nname: mine\n")
    assert errors_of(specs / "study.yaml") == ""


@pytest.mark.parametrize("place", PLACES)
def test_anything_but_a_regular_file_is_not_read(place: str, specs: Path) -> None:
    os.mkfifo(specs / "pipe.yaml")
    (specs / "directory.yaml").mkdir()
    (specs / "gone.yaml").symlink_to(specs / "nowhere.yaml")
    (specs / "ring.yaml").symlink_to(specs / "ring.yaml")
    (specs / "zero.yaml").symlink_to("/dev/zero")
    (specs / "large.yaml").write_bytes(b"a: 1\n" * (MAX_BYTES // 5 + 1))
    (specs / "bytes.yaml").write_bytes(b"\xff\xfe\x00" * 9)
    server = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(specs):  # a socket's path is short
        server.bind("socket.yaml")
    names = ["pipe.yaml", "directory.yaml", "gone.yaml", "ring.yaml", "zero.yaml", "large.yaml", "bytes.yaml"]
    names += [
        "socket.yaml",
        "",
        ".",
        "..",
        "/",
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/environ",
        "/proc/self/mem",
    ]
    names += ["x" * 5000, "a/" * 3000, "\\0.yaml"]
    for name in names:
        path = specs / "study.yaml"
        path.write_text(PLACES[place].replace("@", name))
        text = shown(path)
        if "extends" in place:
            assert "study.yaml:" in text
    server.close()


@pytest.mark.parametrize(
    "kind", ["pipe", "directory", "zero", "outside", "words outside", "hard link", "hidden"]
)
def test_a_spec_is_a_regular_file_in_its_folder(kind: str, specs: Path) -> None:
    path = specs / "study.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "hard link":
        private(specs, CONTENTS["broken"])
        (specs.parent / "home" / "private").chmod(0o600)
        path.hardlink_to(specs.parent / "home" / "private")
    elif kind == "hidden":
        (specs / ".env").write_text(CONTENTS["broken"])
        path.symlink_to(".env")
    else:
        private(specs, CONTENTS["yaml" if kind == "outside" else "words"])
        path.symlink_to(specs.parent / "home" / "private.yaml")
    text = shown(path)
    assert "cannot be read" in text
    assert SECRET not in text


@pytest.mark.parametrize(
    ("spec", "base"),
    list(
        itertools.chain(
            itertools.product(["study.yaml"], ["base.yaml", "deep/base.yaml", "./deep/../base.yaml"]),
            itertools.product(
                ["deep/study.yaml"], ["../base.yaml", "base.yaml", "../deep/base.yaml", "@/base.yaml"]
            ),
        )
    ),
)
def test_files_below_the_folder_of_specs_are_read(spec: str, base: str, specs: Path) -> None:
    for folder in (specs, specs / "deep"):
        (folder / "base.yaml").write_text(NATIVE)
    (specs / spec).write_text(f"extends: {base.replace('@', str(specs))}\nname: mine\n")
    assert errors_of(specs / spec) == ""


def test_links_within_the_folder_are_followed(specs: Path) -> None:
    (specs / "deep" / "base.yaml").write_text(NATIVE)
    (specs / "base.yaml").symlink_to("deep/base.yaml")
    (specs / "study.yaml").write_text("extends: base.yaml\nname: mine\n")
    assert errors_of(specs / "study.yaml") == ""


def test_a_configured_folder_is_read(specs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private(specs, NATIVE)
    (specs / "study.yaml").write_text("extends: ../home/private.yaml\nname: mine\n")
    assert SETTING in errors_of(specs / "study.yaml")
    monkeypatch.setenv(SETTING, f"/nowhere:{specs.parent / 'home'}")
    assert errors_of(specs / "study.yaml") == ""


def test_a_spec_elsewhere_names_files_of_its_own_folder(specs: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "sub").mkdir(parents=True)
    (own / "base.yaml").write_text("extends: sub/more.yaml\n")
    (own / "sub" / "more.yaml").write_text("extends: ../last.yaml\n")
    (own / "last.yaml").write_text(NATIVE)
    (own / "study.yaml").write_text("extends: base.yaml\nname: mine\n")
    assert errors_of(own / "study.yaml") == ""
    (own / "sub" / "more.yaml").write_text("extends: ../../home/private.yaml\n")
    private(specs, NATIVE)
    assert SETTING in errors_of(own / "study.yaml")


def test_existing_and_missing_files_get_the_same_message(specs: Path) -> None:
    texts = set()
    for path in (*private(specs, "")[9:12], "/nowhere/at/all.yaml"):
        with pytest.raises(NamedFileError) as caught:
            read_named_file(path, str(specs / "study.yaml"))
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_a_chain_of_many_files_is_refused(specs: Path) -> None:
    for level in range(10):
        names = ", ".join([f"l{level + 1}.yaml"] * 9)
        (specs / f"l{level}.yaml").write_text(f"extends: [{names}]\n")
    (specs / "l10.yaml").write_text(NATIVE)
    (specs / "study.yaml").write_text("extends: l0.yaml\n")
    assert "specs are put together" in shown(specs / "study.yaml")


def test_replacing_many_values_is_quick(specs: Path) -> None:
    many = "params:\n" + "".join(f"  k{number}: [1, 2]\n" for number in range(8000))
    (specs / "base.yaml").write_text(NATIVE + many)
    (specs / "study.yaml").write_text(f"extends: base.yaml\n{many}")
    assert errors_of(specs / "study.yaml") == ""
