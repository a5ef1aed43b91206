"""The YAML and command blocks of the documentation, with their positions."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.spec.documents.project import project_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^(?: {4,}\S.*| *)\n)+", re.MULTILINE)
_OPTIONAL = re.compile(r"\[(--[^]]*)\]")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    :param page: relative to the project
    :param line: of its first line
    :param text: without the page's indentation
    """

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return the pages that people read."""
    root = project_root()
    return [
        root / "README.md",
        *sorted((root / "docs").rglob("*.md")),
        root / "Megatron-LM" / "README.md",
        root / "benchmarks" / "README.md",
    ]


def yaml_blocks() -> list[Block]:
    """Return the fenced YAML of all pages."""
    return [block for language, block in _fenced() if language == "yaml"]


def commands() -> list[tuple[str, list[str]]]:
    """Return the commands in fenced and indented blocks: where each stands, and its words without its comment.

    ``SPEC…`` and the like are kept as they are; what stands in brackets is taken as given.
    """
    found = []
    blocks = [block for language, block in _fenced() if language in ("sh", "bash")]
    for block in [*blocks, *_indented()]:
        lines = block.text.replace("\\\n", " ").replace("|\n", "| ").splitlines()
        for number, line in enumerate(lines):
            text = _OPTIONAL.sub(r"\1", line)
            try:
                words = shlex.split(text, comments=True)
            except ValueError:
                continue
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                found.append((f"{block.page}:{block.line + number}", words))
    return found


def _fenced() -> Iterator[tuple[str, Block]]:
    for page in pages():
        text = page.read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            name = str(page.relative_to(project_root()))
            yield match[2], Block(name, line, textwrap.dedent(match[3]))


def _indented() -> Iterator[Block]:
    for page in pages():
        text = FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())
        for match in INDENTED.finditer(text):
            if match[0].strip():
                line = text.count("\n", 0, match.start()) + 1
                yield Block(str(page.relative_to(project_root())), line, textwrap.dedent(match[0]))
