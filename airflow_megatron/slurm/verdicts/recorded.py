"""Verdicts as they are recorded: ``verdict.json`` of an attempt and of its stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.verdict import Verdict
from airflow_megatron.spec.trust.json_records import read_object, whole, word

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.slurm.remote.stage_records import StageRecord

_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}


@dataclass(frozen=True)
class RecordedVerdict:
    """What a ``verdict.json`` holds; of a damaged one what can be read.

    :param outcome: None where it names none that is known
    :param reason: empty where it gives none
    :param verdict: the whole verdict, None where outcome or reason are missing
    :param attempt: number of the attempt that it is on, 0 where there was none; None where that is not known
    :param job: the job's name in the sweep
    :param digest: of the job as it was
    :param given_up: why there was no other attempt, empty where there was
    :param intended: the job's own condition cancelled it
    :param withdrawn: a person stopped the job, and no attempt is to follow
    """

    outcome: Outcome | None
    reason: str
    verdict: Verdict | None
    attempt: int | None = None
    job: str = ""
    digest: str = ""
    given_up: str = ""
    intended: bool = False
    withdrawn: bool = False

    @classmethod
    def of(
        cls,
        verdict: Verdict,
        attempt: int,
        *,
        job: str = "",
        digest: str = "",
        given_up: str = "",
        intended: bool = False,
        withdrawn: bool = False,
    ) -> RecordedVerdict:
        """Return the record of a verdict on an attempt."""
        return cls(
            verdict.outcome, verdict.reason, verdict, attempt, job, digest, given_up, intended, withdrawn
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> RecordedVerdict | None:
        """Return what :meth:`to_json` wrote, None without it; unknown keys are passed over."""
        if value is None:
            return None
        try:
            verdict = Verdict.from_json(value)
        except (KeyError, TypeError, ValueError):
            verdict = None
        return cls(
            outcome=_OUTCOMES.get(str(value.get("outcome"))),
            reason=str(value.get("reason") or ""),
            verdict=verdict,
            attempt=whole(value.get("attempt")),
            job=word(value.get("job")) or "",
            digest=word(value.get("digest")) or "",
            given_up=str(value.get("given_up") or ""),
            intended=bool(value.get("intended")),
            withdrawn=bool(value.get("withdrawn")),
        )

    @classmethod
    def read(cls, text: str | bytes | None) -> RecordedVerdict | None:
        """Return what a file holds, None for one that is absent or holds no JSON object."""
        return cls.from_json(read_object(text))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object to write."""
        known: dict[str, Any] = {
            "job": self.job,
            "digest": self.digest,
            "given_up": self.given_up,
            "intended": self.intended,
            "withdrawn": self.withdrawn,
        }
        verdict = self.verdict.to_json() if self.verdict else {"outcome": self.outcome, "reason": self.reason}
        return {**verdict, "attempt": self.attempt, **{name: value for name, value in known.items() if value}}


def stage_verdict(state: StageRecord) -> RecordedVerdict | None:
    """Return the verdict on a stage's job, which its newest attempt or an earlier one brought about; None before."""
    return RecordedVerdict.from_json(state.verdict)


def verdict_on_newest(state: StageRecord) -> RecordedVerdict | None:
    """Return the verdict on a stage's job when it is on the newest attempt, else None: that one is not judged."""
    recorded = stage_verdict(state)
    return recorded if recorded is not None and recorded.attempt == state.latest_attempt else None
