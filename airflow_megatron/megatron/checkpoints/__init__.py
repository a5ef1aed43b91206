"""Checkpoint directories: their formats, and whether a checkpoint is complete, judged by its content.

Imports ``spec``.
Other packages use ``completeness``, ``folder``, ``deepspeed`` and ``legacy``.
"""
