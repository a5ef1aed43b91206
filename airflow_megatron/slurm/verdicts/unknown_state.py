"""Alert when a job's state stays unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.slurm.verdicts.outcomes import Outcome

if TYPE_CHECKING:
    from airflow_megatron.slurm.states.observation import Observation
    from airflow_megatron.slurm.verdicts.verdict import Verdict

ALARM_S = 900.0


class UnknownState:
    """Raises an alarm every :data:`ALARM_S` seconds while a job's verdict is ``unknown``.

    A job whose records were purged (slurmdbd's ``PurgeJobAfter``, slurmctld's ``MinJobAge``) and that left no
    ``exit.json`` gets no verdict: it may have finished, or may never have run. A user must decide.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def alarm(self, verdict: Verdict, observation: Observation) -> str | None:
        """Return the text of an alarm, or None.

        :param verdict: the newest verdict
        :param observation: the observation behind it
        """
        if verdict.outcome is not Outcome.UNKNOWN:
            self._since = None
            return None
        if self._since is None:
            self._since = observation.time
        periods = int((observation.time - self._since) // ALARM_S)
        if periods < 1:
            return None
        return (
            f"the state of the job has been unknown for {periods * ALARM_S / 60:.0f} min: {verdict.reason}; "
            "the task waits until that changes, or until a user clears or marks it"
        )
