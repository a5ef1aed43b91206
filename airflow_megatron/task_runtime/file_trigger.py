"""Base of triggers that wait for a file of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.spec.layout.run_layout import StageDir
from airflow_megatron.task_runtime.cluster_trigger import ClusterTrigger

if TYPE_CHECKING:
    from airflow_megatron.slurm.states.observation import Observation


class ProducedFileTrigger(ClusterTrigger):
    """Wait until a job has written a file, or has ended without writing it.

    :param producer_dir: stage directory of the producing job, or None
    :param producer_attempt: first attempt of that job whose verdict counts
    :param cluster: as for :class:`~airflow_megatron.task_runtime.cluster_trigger.ClusterTrigger`
    """

    def __init__(self, *, producer_dir: str | None = None, producer_attempt: int = 1, **cluster: Any) -> None:
        super().__init__(**cluster)
        self.producer_dir = producer_dir
        self.producer_attempt = producer_attempt

    @property
    def verdict_files(self) -> tuple[str, ...]:
        """The record of the producing job's end; read at each poll."""
        return (StageDir(self.producer_dir).verdict,) if self.producer_dir else ()

    def producer_verdict(self, observation: Observation) -> RecordedVerdict | None:
        """Return how the producing job ended, None while it continues."""
        for path in self.verdict_files:
            recorded = RecordedVerdict.read(observation.files.get(path))
            if recorded is not None and (recorded.attempt or 0) >= self.producer_attempt:
                return recorded
        return None
