"""Hooks of the documentation site: its navigation, the generated references, and the files that pages link to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File
from navigation import with_all_pages
from operators_reference import operators_reference
from project_files import ProjectFiles
from spec_reference import profile_reference, spec_reference

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

GENERATED = {
    "reference/spec.md": spec_reference,
    "reference/cluster-profile.md": profile_reference,
    "reference/operators.md": operators_reference,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages and the files of the project, and complete the navigation."""
    for place, text in GENERATED.items():
        files.append(File.generated(config, place, content=text()))
    project = _project(config)
    for place, content in project.pages().items():
        files.append(File.generated(config, place, content=content))
    config.nav = with_all_pages(config.nav or [], [file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Let the links of a page lead to pages of the site."""
    return _project(config).with_site_links(markdown, page.file.src_uri)


def _project(config: MkDocsConfig) -> ProjectFiles:
    return ProjectFiles(Path(config.config_file_path).parent, Path(config.docs_dir))
