"""Detection of a training that starts from scratch although a checkpoint exists.

Megatron prints ``WARNING: could not find the metadata file …`` and ``will not load any checkpoints and will start from
random``, and trains. The next saves overwrite the checkpoints of the run (upstream
``megatron/training/checkpointing.py``, all releases from core_v0.5.0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.logs.log_lines import CheckpointEvent, CheckpointRecord, IterationRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.megatron.logs.log_lines import Record


class ResumeCheck:
    """Checker of the records of one attempt's log, from its beginning.

    :param expected: iteration of the checkpoint that the attempt must load; 0 accepts any start
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected

    def read(self, records: Iterable[Record]) -> str | None:
        """Add new records; return the problem, None without one.

        The first record that shows how training began is decisive.
        """
        for record in records:
            if not self._expected:
                break
            if isinstance(record, CheckpointRecord):
                if record.event is CheckpointEvent.LOADED:
                    self._expected = 0
                elif record.event is CheckpointEvent.RANDOM_START:
                    return self._alarm("the log says that no checkpoint was found")
            elif isinstance(record, IterationRecord):
                if record.iteration <= self._expected:
                    begun = f"the log begins with iteration {record.iteration}"
                    return self._alarm(f"{begun} and no checkpoint was loaded")
                self._expected = 0
        return None

    def _alarm(self, what: str) -> str:
        expected, self._expected = self._expected, 0
        return (
            f"it began from scratch although iteration {expected} has a complete checkpoint: {what}; "
            "continuing would overwrite the checkpoints"
        )
