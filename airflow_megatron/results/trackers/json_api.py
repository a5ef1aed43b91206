"""Requests to the JSON API of a tracker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx

from airflow_megatron.spec.trackers.tracker import TrackerError
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S: Final = 30.0


class JsonApi:
    """A client that keeps its connection; its errors contain no credentials.

    Redirections are not followed, because the credentials are for this server.

    :param tracker: name of the tracker, for messages
    :param url: under which all paths are
    :param headers: of each request
    :param auth: user and password
    """

    def __init__(
        self,
        tracker: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
    ) -> None:
        self._tracker = tracker
        try:
            self._client = httpx.Client(
                base_url=url, headers=headers, auth=auth, timeout=_TIMEOUT_S, follow_redirects=False
            )
        except (httpx.InvalidURL, UnicodeError, ValueError):
            raise TrackerError(f"{tracker}: the connection's host is not an address of a server") from None

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a POST request.

        :raises TrackerError: if there is no answer, or it is an error
        """
        answer = self._send("POST", path, {"json": body})
        content = _object(answer)
        if content is None or not answer.is_success or content.get("error") is not None:
            raise self._refusal(path, answer)
        return content

    def find(self, path: str, query: Mapping[str, str], missing: str) -> dict[str, Any] | None:
        """Return the answer to a GET request, None for a missing resource.

        :param missing: ``error_code`` of an answer about a missing resource
        :raises TrackerError: if there is no answer, or it is another error
        """
        answer = self._send("GET", path, {"params": query})
        content = _object(answer)
        if content is not None and answer.is_success:
            return content
        if content is not None and content.get("error_code") == missing:
            return None
        raise self._refusal(path, answer)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _send(self, method: str, path: str, values: dict[str, Any]) -> httpx.Response:
        try:
            return self._client.request(method, path, **values)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TrackerError(f"{self._tracker} does not answer: {type(error).__name__}") from None

    def _refusal(self, path: str, answer: httpx.Response) -> TrackerError:
        details = _object(answer) or {}
        reason = (
            details.get("message")
            or details.get("error")
            or details.get("error_code")
            or answer.reason_phrase
        )
        return TrackerError(
            f"{self._tracker} answers {answer.status_code} to {path}: {shown(str(reason))[:300]}"
        )


def _object(answer: httpx.Response) -> dict[str, Any] | None:
    try:
        content = answer.json()
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
