"""Files outside of ``docs/`` that pages link to: each becomes a page of the site, so that no link leaves it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

START: Final = "index.md"
LISTED: Final = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "Megatron-LM/README.md",
    "benchmarks/README.md",
)
"""Pages of the project that the navigation names; the first is the start page."""
_LANGUAGES: Final = {".yaml": "yaml", ".yml": "yaml", ".py": "python", ".json": "json", ".sh": "bash"}
_LINK: Final = re.compile(
    r"(?P<before>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
)
_BLOCK: Final = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


class ProjectFiles:
    """Links from the pages of the site to files of the project.

    :param root: of the project
    :param docs: folder with the pages
    """

    def __init__(self, root: Path, docs: Path) -> None:
        self.root = root
        self.docs = docs

    def pages(self) -> dict[str, str]:
        """Return the pages for files outside of ``docs/``: path in the site → Markdown."""
        found = {self.place(self.root / name): self.root / name for name in LISTED}
        sources = [*self.docs.rglob("*.md"), *found.values()]
        for source in sources:
            for target in self.linked(source.read_text(), source):
                if not target.is_relative_to(self.docs):
                    found.setdefault(self.place(target), target)
        return {place: self.page(target) for place, target in sorted(found.items())}

    def place(self, file: Path) -> str:
        """Return the path of a file or folder of the project in the site."""
        if file.is_relative_to(self.docs):
            return str(file.relative_to(self.docs))
        name = str(file.relative_to(self.root))
        if name == LISTED[0]:
            return START
        if file.is_dir():
            return f"project/{name}/index.md"
        return f"project/{name}" if file.suffix == ".md" else f"project/{name}.md"

    def source(self, place: str) -> Path | None:
        """Return the file that a page is made from, None for a generated one."""
        if place == START:
            return self.root / LISTED[0]
        file = (
            self.root / place.removeprefix("project/") if place.startswith("project/") else self.docs / place
        )
        return file if file.is_file() else None

    def linked(self, text: str, source: Path) -> list[Path]:
        """Return the files and folders of the project that a page links to."""
        targets = [
            self._target(match, source) for part in _outside_blocks(text) for match in _LINK.finditer(part)
        ]
        return [target for target in targets if target is not None]

    def with_site_links(self, text: str, place: str) -> str:
        """Return the Markdown of a page, whose links name files of the project, with links to pages of the site."""
        source = self.source(place)
        if source is None:
            return text

        def rewritten(match: re.Match[str]) -> str:
            target = self._target(match, source)
            if target is None:
                return match[0]  # MkDocs reports what is missing
            link = os.path.relpath(self.place(target), Path(place).parent)
            return f"{match['before']}{link}{match['anchor'] or ''})"

        parts = _BLOCK.split(text)
        parts[::2] = [_LINK.sub(rewritten, part) for part in parts[::2]]
        return "".join(parts)

    def _target(self, match: re.Match[str], source: Path) -> Path | None:
        """Return what a link names in the project, None for an address or where there is nothing."""
        target = Path(os.path.normpath(source.parent / match["target"]))
        return target if "://" not in match["target"] and target.exists() else None

    def page(self, target: Path) -> str:
        """Return the Markdown of a file or folder of the project."""
        if target.suffix == ".md":
            return target.read_text()
        name = target.relative_to(self.root)
        if target.is_dir():
            files = sorted(str(file.relative_to(target)) for file in target.rglob("*") if file.is_file())
            return "\n".join(
                [f"# {name}/", "", *(f"- `{file}`" for file in files if "__pycache__" not in file), ""]
            )
        return f"# {name}\n\n````{_LANGUAGES.get(target.suffix, 'text')}\n{target.read_text()}\n````\n"


def _outside_blocks(text: str) -> list[str]:
    return _BLOCK.split(text)[::2]
