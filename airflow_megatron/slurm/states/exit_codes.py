"""Exit codes of jobs that have a meaning of their own."""

from __future__ import annotations

DUPLICATE_EXIT_CODE = 79
"""Exit status of a job that found its attempt taken by another job (outside sysexits.h and Megatron's 16 and
17)."""

UNWRITABLE_EXIT_CODE = 73
"""Exit status of a job that cannot write to its attempt's directory, and so does not run (``EX_CANTCREAT``)."""

STEPPED_BACK_EXIT_CODE = 81
"""Exit status of a job that was queued behind the stage before it, which has not finished: it has done nothing."""

RERUN_EXIT_CODE = 16
"""Megatron-LM ends with it to be resumed on other nodes (``megatron/core/rerun_state_machine.py``)."""
