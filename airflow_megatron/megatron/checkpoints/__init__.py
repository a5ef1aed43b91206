"""Checkpoint directories: formats, and whether one is complete, judged by its content.

Imports ``spec``.
Others use ``completeness`` and ``folder``.
"""
