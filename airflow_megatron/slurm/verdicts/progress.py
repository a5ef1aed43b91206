"""Progress of a command job, derived from its log, tracker and outputs.

A job that ends at its walltime is continued if it got further than the earlier attempts. Growth of the log is not
progress: a job that hangs may write, and a job that starts from scratch each time writes the same lines again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.outcomes import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_megatron.slurm.verdicts.verdict import Verdict


@dataclass(frozen=True)
class Progress:
    """Progress of one attempt; unknown values are None.

    :param began: the first iteration in its log
    :param reached: the last iteration in its log
    :param saved: iteration of the newest checkpoint by the tracker file
    :param outputs: the declared outputs that exist
    """

    began: int | None = None
    reached: int | None = None
    saved: int | None = None
    outputs: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Progress | None:
        """Parse the ``progress`` object of a ``verdict.json``; return None for any other value."""
        if not isinstance(value, dict):
            return None
        numbers = {name: value.get(name) for name in ("began", "reached", "saved")}
        outputs = tuple(str(path) for path in value.get("outputs") or ())
        return cls(outputs=outputs, **{k: v for k, v in numbers.items() if isinstance(v, int)})

    def beyond(self, earlier: Iterable[Progress]) -> str | None:
        """Return a description of the progress beyond the earlier attempts, None if there was none."""
        before = list(earlier)
        if (self.saved or 0) > max((item.saved or 0 for item in before), default=0):
            return f"it has saved iteration {self.saved}"
        if (self.reached or 0) > max((item.reached or 0 for item in before), default=0):
            return f"it has reached iteration {self.reached}"
        if before and (self.began or 0) > max(item.began or 0 for item in before):
            return f"it continued from iteration {self.began}"
        known = {path for item in before for path in item.outputs}
        new = next((path for path in self.outputs if path not in known), None)
        return f"it has made {new}" if new is not None else None


def with_progress(verdict: Verdict, history: Iterable[Verdict]) -> Verdict:
    """Return the verdict, changed to "rolled over" if the walltime ended the attempt and it made progress.

    :param verdict: verdict on the attempt.
    :param history: verdicts on the earlier attempts of the same series.
    """
    if verdict.state is not JobState.TIMEOUT or verdict.outcome is not Outcome.FAILED:
        return verdict
    if verdict.progress is None or verdict.permanent:
        return verdict
    further = verdict.progress.beyond(past.progress for past in history if past.progress is not None)
    if further is None:
        return verdict
    return replace(verdict, outcome=Outcome.ROLLED_OVER, reason=f"{verdict.reason}; {further}")
