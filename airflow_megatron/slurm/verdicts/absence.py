"""Jobs that Slurm has forgotten.

A controller that dies without saving its state forgets what it accepted in the last seconds, and gives the ids to other
jobs (slurmctld saves some 5 s after a change; seen with Slurm 22.05 after SIGKILL). Nothing will ever report the end of
such a job: it would be waited for without end.
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


class Absence:
    """Turns the absence of one job from all of Slurm's answers into a verdict, when it has lasted for long enough.

    :param job_id: of the job, for the verdict: no answer of Slurm's names it.
    :param window_s: seconds for which squeue and sacct must have answered without it, at least
        :data:`MIN_ANSWERS` times. A log or a checkpoint that still changes starts them anew: on the node the job lives,
        until slurmd learns that nobody knows it.
    :param clock: seconds that only go forward.
    """

    def __init__(self, job_id: str, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._job_id, self._window, self._clock = job_id, window_s, clock
        self._since: float | None = None
        self._answers = 0
        self._signs: tuple[int | None, str | None] = (None, None)

    def weigh(self, verdict: Verdict, observation: Observation) -> Verdict:
        """Return *verdict*, or that the job is lost.

        :param verdict: what :func:`airflow_megatron.slurm.verdicts.verdict.judge` says of *observation*.
        """
        if observation.unreachable is not None or not observation.queue_ok:
            return verdict  # nobody answered: neither here nor gone
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
    """Whether everybody has answered, and nobody knows how the job stands."""
    answered = observation.accounting_ok or not observation.accounting_enabled
    return (
        verdict.outcome is Outcome.UNKNOWN
        and observation.queue is None
        and observation.exit is None
        and answered
    )
