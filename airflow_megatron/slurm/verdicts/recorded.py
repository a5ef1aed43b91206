"""Verdicts as they are recorded: ``verdict.json`` of an attempt and of its stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.verdict import Verdict
from airflow_megatron.spec.trust.json_records import read_object, whole, word

if TYPE_CHECKING:
    from collections.abc import Mapping

_OUTCOMES: Final = {outcome.value: outcome for outcome in Outcome}


@dataclass(frozen=True)
class RecordedVerdict:
    """The content of a ``verdict.json``; of a damaged file, the readable part.

    :param outcome: None if missing or unknown
    :param reason: empty if missing
    :param verdict: the complete verdict, None if outcome or reason are missing
    :param attempt: number of the judged attempt, 0 if there was no attempt, None if unknown
    :param job: the job's name in the sweep
    :param digest: digest of the job at that time
    :param given_up: why no further attempt followed, empty if one followed
    :param intended: whether a condition of the job cancelled it
    :param withdrawn: whether a user stopped the job, so that no attempt may follow
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
        """Parse the output of :meth:`to_json`, None without it; unknown keys are ignored."""
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
        """Parse the text of a file; return None if it is absent or is not a JSON object."""
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
