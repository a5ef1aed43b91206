"""The one exception this program reports to the person who ran it."""

from __future__ import annotations


class ClusterError(Exception):
    """An error that the user can correct; the message states what to do."""
