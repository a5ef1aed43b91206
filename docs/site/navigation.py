"""The navigation: entries may be patterns, and no page is left out."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_LISTED = ("project/*.yaml.md", "project/*.py.md", "project/*.json.md", "project/*/index.md")
"""Files that are shown only because a page links to them."""


def with_all_pages(sections: Sequence[dict[str, Any]], pages: Sequence[str]) -> list[dict[str, Any]]:
    """Replace patterns by the pages that they match, and add the remaining pages to the last section.

    :param sections: title → paths or patterns; a path without a page is dropped
    :param pages: paths of all pages of the site
    """
    left = [page for page in sorted(pages) if not any(fnmatchcase(page, files) for files in NOT_LISTED)]
    result: list[dict[str, list[str]]] = []
    named = {entry for section in sections for entries in section.values() for entry in entries}
    for section in sections:
        ((title, entries),) = section.items()
        found: list[str] = []
        for entry in entries:
            # a page that the navigation lists by name is not matched by the pattern of another section
            matched = [
                page for page in left if page == entry or (page not in named and fnmatchcase(page, entry))
            ]
            found += matched
            left = [page for page in left if page not in matched]
        result.append({title: found})
    ((title, found),) = result.pop().items()
    return [
        *(section for section in result if any(section.values())),
        *([{title: found + left}] if found + left else []),
    ]
