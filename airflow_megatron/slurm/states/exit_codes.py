"""Exit codes with which a job reports a specific condition."""

from __future__ import annotations

DUPLICATE_EXIT_CODE = 79
"""Exit status of a job whose attempt another job already runs (distinct from sysexits.h and Megatron's 16 and 17)."""

UNWRITABLE_EXIT_CODE = 73
"""Exit status of a job that cannot write to its attempt's directory, and so does not run (``EX_CANTCREAT``)."""

STEPPED_BACK_EXIT_CODE = 81
"""Exit status of a job that was queued ahead while the previous stage had not finished; the job did no work."""

RERUN_EXIT_CODE = 16
"""Exit status with which Megatron-LM requests to be resumed on other nodes
(``megatron/core/rerun_state_machine.py``)."""
