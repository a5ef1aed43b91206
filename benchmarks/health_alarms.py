"""Count false and missed alarms of the health rules on made-up trainings with and without a fault.

Each training has 1,200 iteration lines, a loss that falls as a power law with normal noise of up to 5 %, and iterations
whose times vary by up to 30 % and that take six times as long once in a hundred. All is drawn from a seed. Usage::

    python benchmarks/health_alarms.py [TRAININGS]
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from dataclasses import dataclass

from airflow_megatron.megatron.health.training_health import HealthSettings, TrainingHealth
from airflow_megatron.megatron.logs.log_lines import IterationRecord
from airflow_megatron.spec.model.schema import HealthSection

LINES = 1200
POLL_S = 15.0
FAULTS = ("stall", "throughput", "nan", "spike")


@dataclass
class Training:
    """One training; from line ``fault_at`` on it has its fault, or never where that is None."""

    seed: int

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.noise = self.chance.uniform(0, 0.05)
        self.jitter = self.chance.uniform(0, 0.3)
        self.step = self.chance.choice((1, 10, 100))
        self.fault = self.chance.choice((None, *FAULTS))
        self.fault_at = self.chance.randrange(150, 900) if self.fault else LINES

    def line(self, number: int) -> IterationRecord:
        """Return the record of the line of that number."""
        iteration, broken = number * self.step, number >= self.fault_at
        loss = (1.7 + 9 * iteration**-0.35) * (1 + self.chance.gauss(0, self.noise))
        elapsed = 50 + 1000 * abs(1 + self.chance.gauss(0, self.jitter))
        elapsed *= 6 if self.chance.random() < 0.01 else 1
        elapsed *= 8 if broken and self.fault == "throughput" else 1
        loss *= 1.8 if broken and self.fault == "spike" else 1
        nan = self.step if broken and self.fault == "nan" else 0
        losses = {} if nan else {"lm loss": loss}
        return IterationRecord(
            iteration,
            LINES * self.step * 2,
            8 * iteration,
            elapsed_ms=elapsed,
            global_batch_size=8,
            losses=losses,
            skipped_iterations=0,
            nan_iterations=nan,
        )

    def alarms(self) -> list[tuple[str, float]]:
        """Return the detectors that gave alarm and how many lines (a stall: seconds) after the fault; before it < 0."""
        health = TrainingHealth(HealthSettings(HealthSection(), (100,)))
        now, found = 0.0, []
        for number in range(1, LINES):
            if self.fault == "stall" and number == self.fault_at:
                return found + self._silence(health, now)
            record = self.line(number)
            now += (record.elapsed_ms or 0) * self.step / 1000
            for alarm in health.read([record], now=now, running=True):
                found.append((alarm.detector, float(number - self.fault_at + 1)))
        return found

    def _silence(self, health: TrainingHealth, start: float) -> list[tuple[str, float]]:
        for look in range(1, 10_000):
            alarms = health.read([], now=start + look * POLL_S, running=True)
            if alarms:
                return [(alarm.detector, look * POLL_S) for alarm in alarms]
        return []


def main() -> None:
    trainings = [Training(seed) for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)]
    delays: dict[str, list[float]] = {fault: [] for fault in FAULTS}
    false, missed = 0, dict.fromkeys(FAULTS, 0)
    started = time.process_time()
    for training in trainings:
        alarms = training.alarms()
        right = [delay for detector, delay in alarms if detector == training.fault and delay > 0]
        false += len(alarms) - len(right)
        if training.fault and right:
            delays[training.fault].append(right[0])
        elif training.fault:
            missed[training.fault] += 1
    seconds = time.process_time() - started
    without = sum(training.fault is None for training in trainings)
    print(f"{len(trainings)} trainings, {without} of them without a fault: {false} false alarms")
    print(f"{1e6 * seconds / (len(trainings) * LINES):.0f} µs a line, the making of it included")
    print(
        "\n| fault | trainings | missed | reported after (median) | maximum |\n| --- | --- | --- | --- | --- |"
    )
    for fault, delay in delays.items():
        unit = "s" if fault == "stall" else "lines"
        times = f"{statistics.median(delay):.0f} {unit} | {max(delay):.0f} {unit}" if delay else "|"
        print(f"| {fault} | {len(delay) + missed[fault]} | {missed[fault]} | {times} |")


if __name__ == "__main__":
    main()
