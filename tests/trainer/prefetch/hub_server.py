"""A small server with the parts of the Hugging Face hub's HTTP interface that its library needs to download."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubServer:
    """Repositories at an address of this machine.

    :param repositories: ``models/NAME`` or ``datasets/NAME`` → path → content
    :param files: paths of other files → content
    """

    def __init__(
        self, repositories: Mapping[str, Mapping[str, bytes]], files: Mapping[str, bytes] | None = None
    ) -> None:
        self.repositories, self.files = repositories, dict(files or {})
        self.received: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub._answer(self)

            def do_HEAD(self) -> None:
                hub._answer(self)

            def do_POST(self) -> None:
                hub._answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: Any) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        split = urlsplit(request.path)
        path, query = unquote(split.path).strip("/"), parse_qs(split.query)
        self.received.append(f"{request.command} {path}")
        if path in self.files:
            self._send(request, self.files[path], {})
            return
        for name, files in self.repositories.items():
            kind, _, repository = name.partition("/")
            if path.startswith(f"api/{name}"):
                self._send_json(request, self._about(repository, files, path, query, body))
                return
            prefix = f"{repository}/resolve/" if kind == "models" else f"{name}/resolve/"
            file = path.removeprefix(prefix).partition("/")[2]
            if path.startswith(prefix) and file in files:
                headers = {"ETag": f'"{_digest(files[file])}"', "X-Repo-Commit": COMMIT}
                self._send(request, files[file], headers)
                return
        found = any(path.startswith((n.partition("/")[2], n)) for n in self.repositories)
        code = "EntryNotFound" if found else "RepoNotFound"
        headers = {
            "X-Error-Code": code,
            "X-Error-Message": f"no {path}",
            **({"X-Repo-Commit": COMMIT} if found else {}),
        }
        self._send(request, b"{}", headers, 404)

    def _about(
        self, name: str, files: Mapping[str, bytes], path: str, query: dict[str, list[str]], body: bytes
    ) -> Any:
        entries = [
            {"type": "file", "path": file, "size": len(content), "oid": _digest(content)}
            for file, content in files.items()
        ]
        if "/paths-info/" in path:
            received = (
                json.loads(body)["paths"] if body.startswith(b"{") else parse_qs(body.decode())["paths"]
            )
            return [entry for entry in entries if entry["path"] in received]
        if "/tree/" in path:
            folder = path.partition("/tree/")[2].partition("/")[2]
            return [
                entry for entry in entries if str(entry["path"]).startswith(f"{folder}/" if folder else "")
            ]
        siblings = [{"rfilename": file, "size": len(content)} for file, content in files.items()]
        return {"_id": "1", "id": name, "sha": COMMIT, "private": False, "tags": [], "siblings": siblings}

    def _send_json(self, request: Any, content: Any) -> None:
        self._send(request, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, request: Any, content: bytes, headers: Mapping[str, str], status: int = 200) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            request.send_header(key, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
