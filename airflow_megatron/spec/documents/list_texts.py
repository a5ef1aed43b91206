"""Detect text that was intended as a list: ``lr: 1e-4, 3e-4`` is one string in YAML."""

from __future__ import annotations


def meant_list(value: object) -> str | None:
    """Return the intended list for a text of several numbers, as YAML; None for any other value.

    >>> meant_list("1e-4, 3e-4")
    '[1e-4, 3e-4]'
    """
    if not isinstance(value, str):
        return None
    parts = [part.strip() for part in value.strip("()[] ").replace(";", ",").split(",")]
    parts = parts if len(parts) > 1 else value.split()
    return f"[{', '.join(parts)}]" if len(parts) > 1 and all(map(_is_number, parts)) else None


def key_in_place_of_value(key: str) -> str:
    """Return a hint for a number as a key, as in ``{lr: 1e-4, 3e-4}``; empty for any other key."""
    return f"write several values in brackets: [{key}, …]" if _is_number(key) else ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
