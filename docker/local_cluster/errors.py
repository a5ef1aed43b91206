"""The one exception this program reports to the person who ran it."""

from __future__ import annotations


class ClusterError(Exception):
    """Something the person at the keyboard can correct; the message says what and how."""
