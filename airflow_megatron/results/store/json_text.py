"""Store small mappings as JSON text in a column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


def json_text(values: Mapping[str, Any]) -> str | None:
    """Return a mapping as JSON, or None for an empty mapping; NaN and infinities become ``null``."""
    return _encode(values).decode() if values else None
