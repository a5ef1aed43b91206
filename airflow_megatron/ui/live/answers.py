"""JSON and static files, sent only if the browser does not have them already."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastapi import Response

if TYPE_CHECKING:
    from fastapi import Request

STATIC: Final = Path(__file__).parents[1] / "static"
CHARTS: Final = "vendor/uplot/uPlot.iife.min.js"
"""Fetched when the package is built; a checkout may not have it."""
_TYPES: Final = {".js": "text/javascript", ".css": "text/css"}


def json_answer(request: Request, content: Any) -> Response:
    """Send JSON data, or only status 304 if the browser already has it."""
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        errors="backslashreplace"
    )
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


class StaticFolder:
    """The scripts and styles of the pages; their address contains their digest, so browsers may cache them forever.

    A requested name is compared with the names of the files in the folder.

    :param folder: their folder
    """

    def __init__(self, folder: Path = STATIC) -> None:
        self.folder = folder

    @cached_property
    def _files(self) -> dict[str, bytes]:
        paths = sorted(self.folder.rglob("*"))
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in paths
            if path.suffix in _TYPES and path.is_file()
        }

    @cached_property
    def version(self) -> str:
        """Digest of all files."""
        whole = hashlib.sha256()
        for name, content in self._files.items():
            whole.update(f"{name}\0{len(content)}\0".encode() + content)
        return whole.hexdigest()[:16]

    @property
    def has_charts(self) -> bool:
        """Whether the chart library exists; a checkout may be used before it is built."""
        return CHARTS in self._files

    def answer(self, version: str, name: str) -> Response | None:
        """Return the response with a file, None if there is no such file.

        :param version: digest in the address; it differs from the current one on a page that was loaded before an
            update
        """
        content = self._files.get(name)
        if content is None:
            return None
        kept = "private, max-age=31536000, immutable" if version == self.version else "no-store"
        headers = {"Cache-Control": kept, "X-Content-Type-Options": "nosniff"}
        return Response(content, media_type=_TYPES[Path(name).suffix], headers=headers)
