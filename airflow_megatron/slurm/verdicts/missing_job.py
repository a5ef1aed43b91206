"""Detection of jobs that Slurm has lost.

A controller that is killed before it saves its state loses the jobs of the last seconds and reuses their ids (slurmctld
saves about 5 s after a change; observed with Slurm 22.05 after SIGKILL). No command reports the end of such a job, so a
task would wait for it forever.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_megatron.slurm.verdicts.outcomes import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.slurm.states.observation import Observation
    from airflow_megatron.slurm.verdicts.verdict import Verdict

MIN_ANSWERS = 3


class MissingJob:
    """Detects a job that has been missing from all of Slurm's output for a minimum time.

    :param job_id: id of the job, for the verdict.
    :param window_s: minimum time in seconds for which squeue and sacct must have answered without it, at least
        :data:`MIN_ANSWERS` times. A change of the log or a checkpoint restarts it: the job still runs on its node,
        until slurmd detects that the controller does not know it.
    :param clock: returns monotonic time in seconds.
    """

    def __init__(self, job_id: str, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._job_id, self._window, self._clock = job_id, window_s, clock
        self._since: float | None = None
        self._answers = 0
        self._signs: tuple[int | None, str | None] = (None, None)

    def weigh(self, verdict: Verdict, observation: Observation) -> Verdict:
        """Return *verdict*, or the verdict that the job is lost.

        :param verdict: what :func:`airflow_megatron.slurm.verdicts.verdict.judge` returns for *observation*.
        """
        if observation.unreachable is not None or not observation.queue_ok:
            return verdict  # Slurm did not answer, so the job's state is unknown
        signs = (observation.log_size, observation.tracker)
        if not _is_absent(verdict, observation) or signs != self._signs:
            self._since, self._answers, self._signs = None, 0, signs
        if not _is_absent(verdict, observation):
            return verdict
        self._answers += 1
        self._since = self._clock() if self._since is None else self._since
        gone = self._clock() - self._since
        if gone < self._window or self._answers < MIN_ANSWERS:
            return verdict
        return replace(
            verdict,
            outcome=Outcome.RETRYABLE,
            job_id=self._job_id,
            reason=f"{verdict.reason}, for {gone:.0f} s: Slurm has forgotten it, as after a controller that lost its "
            "state",
        )


def _is_absent(verdict: Verdict, observation: Observation) -> bool:
    """Whether all commands have answered and none has a state of the job."""
    answered = observation.accounting_ok or not observation.accounting_enabled
    return (
        verdict.outcome is Outcome.UNKNOWN
        and observation.queue is None
        and observation.exit is None
        and answered
    )
