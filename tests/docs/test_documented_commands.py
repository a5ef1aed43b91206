"""Every command in the documentation is accepted by its program."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest
from blocks import commands
from typer.main import get_command

from airflow_megatron.cli.app import app
from airflow_megatron.cli.command_line import add_commands
from airflow_megatron.spec.documents.project import project_root

if TYPE_CHECKING:
    from pathlib import Path

ALL = commands()
OURS = [(place, words) for place, words in ALL if "airflow-megatron" in words]
PLACEHOLDERS = {"SPEC…": "quickstart", "SPEC": "quickstart", "OLD": "a.yaml", "NEW": "b.yaml"}


def of(*programs: str) -> list[tuple[str, list[str]]]:
    return [(place, words) for place, words in ALL if words[0] in programs]


def parsed(words: list[str]) -> None:
    """Let the command line parse words, down to the command that they name, and run nothing.

    :raises SystemExit, click.UsageError: when it would not take them
    """
    command: Any = get_command(app)
    add_commands(command)
    arguments = words
    context = None
    while True:
        context = command.make_context(command.name, list(arguments), parent=context)
        rest = [*context._protected_args, *context.args] if hasattr(command, "commands") else []
        if not rest:
            return
        _, command, arguments = command.resolve_command(context, rest)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "words"), OURS, ids=[place for place, _ in OURS])
def test_our_own(place: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = [PLACEHOLDERS.get(word, word) for word in words[words.index("airflow-megatron") + 1 :]]
    given = (
        [
            "x" if given[index - 1].startswith("--") else None if word == "…" else word
            for index, word in enumerate(given)
        ]
        if "…" in given
        else given
    )
    given = [word for word in given if word]
    variants = [given]
    for index, word in enumerate(given):
        if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word):
            variants = [[*given[:index], one, *given[index + 1 :]] for one in word.split("|")]
    for variant in variants:
        parsed(variant)


@pytest.mark.parametrize(
    ("place", "words"),
    [(place, words) for place, words in of("make") if "-C" not in words],  # there it is another program's
)
def test_make(place: str, words: list[str]) -> None:
    makefile = (project_root() / "Makefile").read_text()
    for target in (word for word in words[1:] if "=" not in word):  # else a variable
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), place


@pytest.mark.parametrize(("place", "words"), of("airflow"))
def test_airflow(place: str, words: list[str]) -> None:
    from airflow.cli import cli_parser

    with contextlib.redirect_stderr(None):
        cli_parser.get_parser().parse_args(words[1:])


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (place, words)
        for place, words in ALL
        if re.fullmatch(r"[\w./-]+\.(sh|py)", words[0]) or words[0] == "python"
    ],
)
def test_programs_of_this_project(place: str, words: list[str]) -> None:
    program = words[1] if words[0] == "python" else words[0]
    if not program.endswith((".py", ".sh")):
        return
    folders = [project_root(), project_root() / "Megatron-LM", project_root() / "docker"]
    assert any((folder / program).is_file() for folder in folders) or program.startswith("tools/"), place


def test_there_are_some() -> None:
    assert len(OURS) >= 20
    assert {words[0] for _, words in ALL} >= {"make", "airflow", "airflow-megatron"}
