"""The files of the how-tos, as shown on their pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_megatron.spec.documents.project import project_root

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = project_root() / "docs" / "howto"
PAGES = sorted(page.name for page in FOLDER.glob("*.md") if page.name != "index.md")
FILE = re.compile(
    r"^`(?P<name>sweep_specs/[\w./-]+)`:\n\n```\w+\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


def files(page: str) -> dict[str, str]:
    """Return the files of a page, and the shared preset: name → content."""
    texts = [(FOLDER / name).read_text() for name in ("index.md", page)]
    return {match["name"]: match["text"] for text in texts for match in FILE.finditer(text)}


def write_files(page: str, project: Path) -> Path:
    """Write the files of a page and the shipped presets into a project, and return its folder of specs."""
    for source in (project_root() / "sweep_specs" / "presets").glob("*.yaml"):
        target = project / "sweep_specs" / "presets" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(source.read_text())
    for name, text in files(page).items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    return project / "sweep_specs"
