"""All health detectors of one training, with the actions for their findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.health.lost_iterations import (
    LostIterationsDetector,
    nan_iterations,
    skipped_iterations,
)
from airflow_megatron.megatron.health.spike import SpikeDetector
from airflow_megatron.megatron.health.stall import StallDetector
from airflow_megatron.megatron.health.throughput import ThroughputDetector
from airflow_megatron.megatron.logs.log_lines import IterationRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.megatron.health.finding import HealthFinding
    from airflow_megatron.megatron.logs.log_lines import Record
    from airflow_megatron.spec.model.schema import HealthSection


@dataclass(frozen=True)
class Alarm:
    """A finding about a training, and the action of its spec.

    :param detector: ``stall``, ``throughput``, ``nan``, ``skipped`` or ``spike``
    :param do: the reaction
    :param finding: what was found
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
        """Of a rollback the first iteration that may be affected, else None."""
        return self.finding.before_iteration if self.do == "rollback" else None


class TrainingHealth:
    """The detectors of one attempt of a training.

    :param rules: thresholds and reactions
    :param intervals: numbers of iterations after which the training saves or validates
    :param memory: what :meth:`memory` of an earlier one on this attempt gave
    """

    def __init__(
        self, rules: HealthSection, intervals: Sequence[int] = (), memory: Mapping[str, Any] | None = None
    ) -> None:
        known = dict(memory or {})
        self._rules = rules
        stall, spike = rules.stall, rules.spike
        self._stall = StallDetector(
            after=float(stall.after),
            factor=stall.factor,
            startup=float(stall.startup),
            quiet=float(stall.quiet),
            intervals=intervals,
            memory=known.get("stall"),
        )
        self._by_line: dict[str, ThroughputDetector | LostIterationsDetector | SpikeDetector] = {
            "throughput": ThroughputDetector(
                below=rules.throughput.below, lines=rules.throughput.lines, memory=known.get("throughput")
            ),
            "nan": LostIterationsDetector(
                nan_iterations, "NaN", iterations=rules.nan.iterations, memory=known.get("nan")
            ),
            "skipped": LostIterationsDetector(
                skipped_iterations,
                "skipped",
                iterations=rules.skipped.iterations,
                memory=known.get("skipped"),
            ),
            "spike": SpikeDetector(
                deviations=spike.deviations,
                rise=spike.rise,
                recovery=spike.recovery,
                memory=known.get("spike"),
            ),
        }

    def memory(self) -> dict[str, Any]:
        """Return the state as plain JSON data, with which a later object continues."""
        detectors = {name: detector.memory() for name, detector in self._by_line.items()}
        return {"stall": self._stall.memory(), **detectors}

    def read(
        self, records: Sequence[Record], *, now: float, running: bool, queued: bool = False
    ) -> list[Alarm]:
        """Evaluate one poll of the job and return the findings; a job that does not run has none.

        :param records: new ones of its log
        :param now: seconds of a clock that never jumps
        :param running: the job runs; not so while it is pending, completing or suspended, or nothing is known of it
        :param queued: it waits to be started, again maybe
        """
        found: list[tuple[str, HealthFinding | None]] = [
            (name, detector.read(record))
            for record in records
            if isinstance(record, IterationRecord)
            for name, detector in self._by_line.items()
        ]
        found.append(("stall", self._stall.read(records, now=now, running=running, queued=queued)))
        if not running:
            return []
        alarms = [
            Alarm(name, getattr(self._rules, name).do, finding)
            for name, finding in found
            if finding is not None
        ]
        return [alarm for alarm in alarms if alarm.do != "none"]
