"""One attempt of a job: its name in Slurm and its directory on the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_megatron.slurm.remote.quoting import checked_job_name, quote_path
from airflow_megatron.spec.layout.run_layout import AttemptDir, StageDir


@dataclass(frozen=True)
class Attempt:
    """One Slurm submission of a job.

    :param job_name: unique, exact Slurm name of this attempt, for example ``<sweep>.<point>.<stage>.a1``.
    :param stage_dir: ``<run_dir>/.jobs/<stage>``.
    :param number: from 1.
    """

    job_name: str
    stage_dir: str
    number: int

    def __post_init__(self) -> None:
        """Refuse names and paths that Slurm or a shell cannot represent."""
        checked_job_name(self.job_name)
        quote_path(self.stage_dir)
        if self.number < 1:
            raise ValueError(f"attempts count from 1, got {self.number}")

    @property
    def directory(self) -> str:
        """The attempt's directory on the cluster."""
        return self.files.path

    @property
    def files(self) -> AttemptDir:
        """The paths of the files in the attempt's directory."""
        return StageDir(self.stage_dir).attempt(self.number)
