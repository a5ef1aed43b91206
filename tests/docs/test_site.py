"""The documentation site: built without warnings, complete, and readable without the internet."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
from blocks import pages

from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.model import schema
from airflow_megatron.spec.model.schema import ClusterSection, Strict, SweepSpecSection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROOT = project_root()
sys.path.insert(0, str(ROOT / "docs" / "site"))

from navigation import with_all_pages  # noqa: E402
from operators_reference import operators_reference  # noqa: E402
from project_files import ProjectFiles  # noqa: E402
from spec_reference import profile_reference, spec_reference  # noqa: E402


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a warning ends it."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    with (ROOT / "mkdocs.yml").open("rb") as file:
        config = load_config(file, site_dir=str(folder), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder


@pytest.mark.slow
def test_every_page_of_the_project_is_built(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}
    assert "airflow_megatron" in (site / "index.html").read_text()


@pytest.mark.slow
def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")
    for page in site.rglob("*.html"):
        assert [tag for tag in loaded.findall(page.read_text()) if 'rel="canonical"' not in tag] == [], page


@pytest.mark.slow
def test_links_lead_to_pages_of_the_site(site: Path) -> None:
    found = 0
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # its links begin at the root of a server
            continue
        for target in re.findall(r'<a [^>]*href="([^"#?]+)', page.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), f"{page.relative_to(site)}: {target}"
                found += 1
    assert found > 500


def keys_of(section: type[Strict]) -> dict[str, set[str]]:
    """Return section → its keys, for a section and all those in it."""
    definitions: dict[str, Any] = section.model_json_schema(by_alias=True).get("$defs", {})
    sections = [section, *(getattr(schema, name) for name in definitions)]
    return {
        each.__name__: {field.alias or name for name, field in each.model_fields.items()} for each in sections
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "reference"), [(SweepSpecSection, spec_reference), (ClusterSection, profile_reference)]
)
def test_the_reference_describes_every_key(section: type[Strict], reference: Callable[[], str]) -> None:
    tables = re.split(r"^## .*$", reference(), flags=re.MULTILINE)[1:]
    rows = [
        [re.split(r"(?<!\\)\|", line)[1:-1] for line in table.splitlines() if line.startswith("| `")]
        for table in tables
    ]
    shown = sorted(sorted(row[0].strip(" `") for row in table) for table in rows if table)
    expected = [sorted(keys) for keys in keys_of(section).values()]
    assert [keys for keys in expected if keys not in shown] == []
    for table in rows:
        for key, kind, _, description in table:
            assert kind.strip(), f"{key} has no type"
            assert description.strip(), f"{key} has no description: write a docstring below the field"


@pytest.mark.slow
def test_the_reference_shows_defaults_and_what_is_required() -> None:
    page = spec_reference()
    assert "| `max_active_points` | integer ≥ 1, ≤ 100000 | `16` |" in page
    assert re.search(r"^\| `point` \| text \| required \|", page, re.MULTILINE)
    assert re.search(r"^\| `kind` \| `train`, .* \| required \|", page, re.MULTILINE)
    assert re.search(r"^\| `run_root` \| text \| required \|", profile_reference(), re.MULTILINE)


@pytest.mark.slow
def test_the_operators_have_their_arguments() -> None:
    page = operators_reference()
    for name in (
        "SlurmJobOperator",
        "SlurmSubmitOperator",
        "SlurmJobSensor",
        "CheckpointSensor",
        "SlurmHook",
    ):
        assert f"### {name}\n" in page
    assert re.search(r"^\| `restart` \| `None` \| \w+", page, re.MULTILINE)
    assert "| `pattern` | required |" in page
    assert ":class:" not in page
    assert ":param" not in page


def test_the_navigation_holds_each_page_once() -> None:
    sections = [{"A": ["a.md", "absent.md", "x/*.md"]}, {"B": ["*.md"]}, {"C": ["x/b.md"]}, {"More": []}]
    pages = ["a.md", "b.md", "x/a.md", "x/b.md", "project/s.yaml.md", "y/z.txt"]
    assert with_all_pages(sections, pages) == [
        {"A": ["a.md", "x/a.md"]},
        {"B": ["b.md"]},
        {"C": ["x/b.md"]},
        {"More": ["y/z.txt"]},
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[a](../sweep_specs/quickstart.yaml)", "[a](project/sweep_specs/quickstart.yaml.md)"),
        ("[`a`](../CONTRIBUTING.md#style)", "[`a`](project/CONTRIBUTING.md#style)"),
        ("[start](../README.md)", "[start](index.md)"),
        ("[spec](spec.md#sweep)", "[spec](spec.md#sweep)"),
        ("![image](images/sweep-page.png)", "![image](images/sweep-page.png)"),
        ("[folder](../tests/fixtures)", "[folder](project/tests/fixtures/index.md)"),
        ("[there](https://example.org/a.md)", "[there](https://example.org/a.md)"),
        ("[missing](../nothing.yaml)", "[missing](../nothing.yaml)"),
        (
            "```\n[a](../sweep_specs/quickstart.yaml)\n```\n",
            "```\n[a](../sweep_specs/quickstart.yaml)\n```\n",
        ),
    ],
)
def test_links_to_files_of_the_project(text: str, expected: str) -> None:
    assert ProjectFiles(ROOT, ROOT / "docs").with_site_links(text, "spec.md") == expected


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_blocks_in_lists_are_indented_for_the_site(page: Path) -> None:
    """Python-Markdown takes four spaces to continue an item; GitHub takes three as well."""
    assert set(re.findall(r"^( *)```", page.read_text(), re.MULTILINE)) <= {"", " " * 4}


def test_links_from_the_start_page() -> None:
    files = ProjectFiles(ROOT, ROOT / "docs")
    assert files.with_site_links("![](docs/images/a.png) [s](docs/spec.md)", "index.md").endswith(
        "[s](spec.md)"
    )
    assert (
        files.with_site_links("[s](../docs/spec.md)", "project/benchmarks/README.md") == "[s](../../spec.md)"
    )
