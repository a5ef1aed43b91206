"""Detect successful trainings without the evaluation that follows the last iteration.

Megatron evaluates the test set at the end of training (``pretrain`` in ``megatron/training/training.py``). A job that
is stopped at its last iteration, by a signal, its exit interval or its exit duration, ends with exit code 0 without
this evaluation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.data_blends import DEFAULT_SPLIT
from airflow_megatron.megatron.logs.log_lines import MarkerKind, MarkerRecord, parse_log

if TYPE_CHECKING:
    from airflow_megatron.megatron.arguments.values import ArgumentValues

_TEST_LOSS: Final = b" on test set"
_ENDS: Final = (
    MarkerKind.TRAINING_DONE,
    MarkerKind.EXITING_SIGNAL,
    MarkerKind.EXITING_DURATION,
    MarkerKind.EXITING_INTERVAL,
)


def evaluates_at_end(arguments: ArgumentValues) -> bool:
    """Return whether a training is certain to have a test set, and to evaluate it at its end."""
    if arguments.value("skip_train") or arguments.value("perform_rl_step"):
        return False
    if not (arguments.count("eval_iters") or arguments.value("full_validation")):
        return False
    if arguments.value("mock_data") or arguments.value("test_data_path"):
        return True
    if arguments.value("data_path") is None:
        return False  # paths per split without a test path, or in a file that is not read here
    return _test_share(arguments.value("split") or DEFAULT_SPLIT)


def missing_evaluation(log_tail: bytes) -> str | None:
    """Return the warning for a training without its last evaluation; None if this is not certain.

    :param log_tail: last part of the log of its last attempt
    """
    if _TEST_LOSS in log_tail:
        return None
    ends = [
        record.text
        for record in parse_log(log_tail)
        if isinstance(record, MarkerRecord) and record.kind in _ENDS
    ]
    return f"it has not evaluated the test set; its log says: {ends[-1]}" if ends else None


def _test_share(split: Any) -> bool:
    """Return whether a split such as ``99,1,0`` has data for the test set."""
    parts = str(split).replace("/", ",").split(",")
    try:
        return len(parts) == 3 and float(parts[2]) > 0
    except ValueError:
        return False
