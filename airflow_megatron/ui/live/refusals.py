"""Refused requests of a browser that opens a page: one sentence and a link, instead of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from fastapi.exception_handlers import http_exception_handler

from airflow_megatron.links.sweep_results import URL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI, HTTPException, Request, Response

_SENTENCES = {
    401: "You are not logged in, or your login has expired.",
    403: "Your user may not see this: it needs the right to read the sweep’s DAGs, their runs and tasks.",
}


def answer_with_pages(app: FastAPI, page: Callable[..., Response]) -> None:
    """Let an application send a page to a browser whose request is refused; scripts get JSON as before.

    :param app: the application, mounted at ``/megatron``
    :param page: makes a page of a template; arguments: name, address of the list of sweeps, and values
    """

    async def refused(request: Request, error: Exception) -> Response:
        refusal = cast("HTTPException", error)
        if "text/html" not in request.headers.get("accept", ""):
            return await http_exception_handler(request, refusal)
        inner = _inner_path(request)
        answer = page(
            "refused.html.j2",
            "../" * (inner.count("/") - 1) or "./",
            sentence=_SENTENCES.get(refusal.status_code)
            or f"{refusal.detail[:1].upper()}{refusal.detail[1:]}.",
            is_known_user=refusal.status_code != 401,
            login=None if refusal.status_code == 404 else _login_address(inner, request.url.query),
        )
        answer.status_code = refusal.status_code
        return answer

    for status in (*_SENTENCES, 404):
        app.add_exception_handler(status, refused)


def _inner_path(request: Request) -> str:
    """Return the path below the place where the application is mounted."""
    scope: Any = request.scope
    return str(scope["path"]).removeprefix(str(scope.get("root_path", ""))) or "/"


def _login_address(inner: str, query: str) -> str:
    """Return the part of the address of Airflow's login, behind Airflow's own, after which the page is opened again."""
    outer = urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/")
    wanted = f"{outer}{URL_PREFIX}{quote(inner)}{f'?{query}' if query else ''}"
    return f"../api/v2/auth/login?next={quote(wanted, safe='')}"
