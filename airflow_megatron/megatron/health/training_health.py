"""All health detectors of one training, with the actions for their findings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.health.finding import HealthFinding
from airflow_megatron.megatron.health.lost_iterations import (
    LostIterationsDetector,
    LostIterationsMemory,
    nan_iterations,
    skipped_iterations,
)
from airflow_megatron.megatron.health.spike import SpikeDetector, SpikeMemory
from airflow_megatron.megatron.health.stall import StallDetector, StallMemory
from airflow_megatron.megatron.health.throughput import ThroughputDetector, ThroughputMemory
from airflow_megatron.megatron.logs.log_lines import IterationRecord
from airflow_megatron.spec.model.schema import HealthSection
from airflow_megatron.spec.trust.json_records import whole, word

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.megatron.logs.log_lines import Record

_BY_LINE: Final = ("throughput", "nan", "skipped", "spike")
"""Detectors that evaluate single lines of the log."""
_MOST_HELD: Final = 100


@dataclass(frozen=True)
class Alarm:
    """A finding about a training, and the action of its spec.

    :param detector: ``stall``, ``throughput``, ``nan``, ``skipped`` or ``spike``
    :param do: the reaction
    :param finding: the finding
    """

    detector: str
    do: str
    finding: HealthFinding

    @property
    def reason(self) -> str:
        """One sentence for a verdict."""
        return f"health.{self.detector}: {self.finding.text}"

    @property
    def before_iteration(self) -> int | None:
        """For a rollback, the first iteration that may be affected, else None."""
        return self.finding.before_iteration if self.do == "rollback" else None


@dataclass(frozen=True)
class HealthSettings:
    """The settings with which a trigger checks the health of a training.

    :param rules: thresholds and reactions
    :param intervals: numbers of iterations after which the training saves or validates
    """

    rules: HealthSection
    intervals: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HealthSettings | None:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; return None for an empty value."""
        if not value:
            return None
        intervals = tuple(every for every in map(whole, value.get("intervals") or ()) if every)
        return cls(HealthSection.model_validate(value["rules"]), intervals)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"rules": self.rules.model_dump(), "intervals": list(self.intervals)}


@dataclass(frozen=True)
class HealthMemory:
    """The state of all detectors of an attempt; the names are those of the detectors.

    :param held: detectors and findings that were not reported, because it was unknown whether the job runs
    """

    stall: StallMemory = field(default_factory=StallMemory)
    throughput: ThroughputMemory = field(default_factory=ThroughputMemory)
    nan: LostIterationsMemory = field(default_factory=LostIterationsMemory)
    skipped: LostIterationsMemory = field(default_factory=LostIterationsMemory)
    spike: SpikeMemory = field(default_factory=SpikeMemory)
    held: tuple[tuple[str, HealthFinding], ...] = ()

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> HealthMemory:
        """Parse the output of :meth:`to_json`, of this version or an earlier one; unknown keys are ignored."""
        known = {name: item for name, item in value.items() if isinstance(item, dict)}
        return cls(
            StallMemory.from_json(known.get("stall", {})),
            ThroughputMemory.from_json(known.get("throughput", {})),
            LostIterationsMemory.from_json(known.get("nan", {})),
            LostIterationsMemory.from_json(known.get("skipped", {})),
            SpikeMemory.from_json(known.get("spike", {})),
            _held(value.get("held")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "stall": self.stall.to_json(),
            "throughput": self.throughput.to_json(),
            "nan": self.nan.to_json(),
            "skipped": self.skipped.to_json(),
            "spike": self.spike.to_json(),
            "held": [
                {"detector": name, "text": finding.text, "before_iteration": finding.before_iteration}
                for name, finding in self.held
            ],
        }


def _held(value: object) -> tuple[tuple[str, HealthFinding], ...]:
    items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    return tuple(
        (name, HealthFinding(text, whole(item.get("before_iteration"))))
        for item in items
        if (name := word(item.get("detector"))) in _BY_LINE and (text := word(item.get("text")))
    )


class TrainingHealth:
    """The detectors of one attempt of a training.

    :param settings: rules and intervals
    :param memory: what :meth:`memory` of an earlier one on this attempt gave
    """

    def __init__(self, settings: HealthSettings, memory: HealthMemory | None = None) -> None:
        known, rules = memory or HealthMemory(), settings.rules
        self._rules = rules
        stall, spike = rules.stall, rules.spike
        self._stall = StallDetector(
            after=float(stall.after),
            factor=stall.factor,
            startup=float(stall.startup),
            quiet=float(stall.quiet),
            intervals=settings.intervals,
            memory=known.stall,
        )
        self._throughput = ThroughputDetector(
            below=rules.throughput.below, lines=rules.throughput.lines, memory=known.throughput
        )
        self._nan = LostIterationsDetector(
            nan_iterations, "NaN", iterations=rules.nan.iterations, memory=known.nan
        )
        self._skipped = LostIterationsDetector(
            skipped_iterations, "skipped", iterations=rules.skipped.iterations, memory=known.skipped
        )
        self._spike = SpikeDetector(
            deviations=spike.deviations, rise=spike.rise, recovery=spike.recovery, memory=known.spike
        )
        self._by_line: dict[str, ThroughputDetector | LostIterationsDetector | SpikeDetector] = {
            "throughput": self._throughput,
            "nan": self._nan,
            "skipped": self._skipped,
            "spike": self._spike,
        }
        self._held = list(known.held)

    def memory(self) -> HealthMemory:
        """Return the state with which a later object continues."""
        return HealthMemory(
            self._stall.memory(),
            self._throughput.memory(),
            self._nan.memory(),
            self._skipped.memory(),
            self._spike.memory(),
            tuple(self._held),
        )

    def read(
        self, records: Sequence[Record], *, now: float, running: bool, queued: bool = False
    ) -> list[Alarm]:
        """Evaluate one poll of the job and return the findings.

        A detector reports a finding once, so findings of a job that does not run now are kept until it does; a new
        start drops them.

        :param records: new records of its log
        :param now: time of a monotonic clock in seconds
        :param running: whether the job runs; false while it is pending, completing, suspended or unknown
        :param queued: whether it waits for its start, or for a restart
        """
        self._held += [
            (name, finding)
            for record in records
            if isinstance(record, IterationRecord)
            for name, detector in self._by_line.items()
            if (finding := detector.read(record)) is not None
        ]
        del self._held[:-_MOST_HELD]
        stalled = self._stall.read(records, now=now, running=running, queued=queued)
        if queued:
            self._held = []
        if not running:
            return []
        found, self._held = self._held, []
        if stalled is not None:
            found.append(("stall", stalled))
        alarms = [Alarm(name, getattr(self._rules, name).do, finding) for name, finding in found]
        return [alarm for alarm in alarms if alarm.do != "none"]
