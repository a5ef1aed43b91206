"""Requests to the JSON API of a tracker."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

import httpx

from airflow_megatron.spec.trackers.tracker import TrackerError
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S: Final = 30.0
ANSWER_S: Final = 120.0
"""Time limit of a whole answer in seconds."""
LARGEST_ANSWER: Final = 64 << 20
"""Maximum length of an answer in bytes."""


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
        answer, content = self._send("POST", path, {"json": body})
        if content is None or not answer.is_success or content.get("error") is not None:
            raise self._refusal(path, answer, content)
        return content

    def find(self, path: str, query: Mapping[str, str], missing: str) -> dict[str, Any] | None:
        """Return the answer to a GET request, None for a missing resource.

        :param missing: ``error_code`` of an answer about a missing resource
        :raises TrackerError: if there is no answer, or it is another error
        """
        answer, content = self._send("GET", path, {"params": query})
        if content is not None and answer.is_success:
            return content
        if content is not None and content.get("error_code") == missing:
            return None
        raise self._refusal(path, answer, content)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _send(
        self, method: str, path: str, values: dict[str, Any]
    ) -> tuple[httpx.Response, dict[str, Any] | None]:
        """Return the answer and its JSON object, None if it has none."""
        end = time.monotonic() + ANSWER_S
        content = bytearray()
        try:
            with self._client.stream(method, path, **values) as answer:
                for part in answer.iter_bytes():
                    content += part
                    if len(content) > LARGEST_ANSWER or time.monotonic() > end:
                        raise TrackerError(
                            f"{self._tracker}: the answer to {path} is larger than {LARGEST_ANSWER >> 20} MiB or takes "
                            f"longer than {ANSWER_S:.0f} s"
                        )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TrackerError(f"{self._tracker} does not answer: {type(error).__name__}") from None
        return answer, _object(bytes(content))

    def _refusal(self, path: str, answer: httpx.Response, content: dict[str, Any] | None) -> TrackerError:
        details = content or {}
        reason = (
            details.get("message")
            or details.get("error")
            or details.get("error_code")
            or answer.reason_phrase
        )
        return TrackerError(
            f"{self._tracker} answers {answer.status_code} to {path}: {shown(str(reason))[:300]}"
        )


def _object(answer: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
