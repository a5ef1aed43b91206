"""Learning-rate schedules: every step of the trainer compared with independent formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from trainer_harness import MODEL, Trainer

if TYPE_CHECKING:
    from collections.abc import Callable

HIGH, LOW, CONSTANT = 3e-3, 2e-5, 4e-4
# Decay in 40 iterations, warm-up in 5, WSD's decay in 10; the schedule is evaluated beyond its end.
DECAY, WARMUP, FALL, STEPS = 40, 5, 10, 46
BASE = (
    *MODEL,
    *("--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "63"),
    *("--micro-batch-size", "2", "--global-batch-size", "6", "--train-iters", "50"),
    *(
        "--lr",
        str(HIGH),
        "--min-lr",
        str(LOW),
        "--lr-decay-iters",
        str(DECAY),
        "--lr-warmup-iters",
        str(WARMUP),
    ),
)


def mix(share: float) -> float:
    return LOW + share * (HIGH - LOW)


def since_warmup(step: int) -> float:
    return (step - WARMUP) / (DECAY - WARMUP)


def wsd(shape: Callable[[float], float]) -> Callable[[int], float]:
    return lambda step: mix(1.0) if step <= DECAY - FALL else mix(shape((step - DECAY + FALL) / FALL))


def infinite(fall: Callable[[float], float]) -> Callable[[int], float]:
    """Fall over the fraction .5, constant over .2, exponential over the rest."""
    first, flat = 0.5 * DECAY, 0.2 * DECAY

    def rate(step: int) -> float:
        after = step - WARMUP
        if after <= first:
            return CONSTANT + (HIGH - CONSTANT) * fall(after / first)
        if after <= first + flat:
            return CONSTANT
        share = (after - first - flat) / (DECAY - WARMUP - first - flat)
        return float(CONSTANT ** (1 - share) * LOW**share)

    return rate


def inverse_root(share: float) -> float:
    return (1 / math.sqrt(1 + 7 * share) - 1 / math.sqrt(8)) / (1 - 1 / math.sqrt(8))


INFINITE = (
    *("--constant-lr", str(CONSTANT), "--lr-cooldown-fraction", "0.5", "--lr-constant-fraction", "0.2"),
    *("--timescale", "7"),
)
WSD = ("--lr-decay-style", "WSD", "--lr-wsd-decay-iters", str(FALL), "--lr-wsd-decay-style")
# Flags, the formula between warm-up and end, and the rate after the end.
CASES: dict[str, tuple[tuple[str, ...], Callable[[int], float], float]] = {
    "constant": (("--lr-decay-style", "constant"), lambda step: HIGH, HIGH),
    "linear": (("--lr-decay-style", "linear"), lambda step: mix(1 - since_warmup(step)), LOW),
    "cosine": (
        ("--lr-decay-style", "cosine"),
        lambda step: mix((1 + math.cos(math.pi * since_warmup(step))) / 2),
        LOW,
    ),
    "inverse-square-root": (
        ("--lr-decay-style", "inverse-square-root"),
        lambda step: HIGH * math.sqrt(WARMUP / step),
        LOW,
    ),
    "wsd-linear": ((*WSD, "linear"), wsd(lambda r: 1 - r), LOW),
    "wsd-cosine": ((*WSD, "cosine"), wsd(lambda r: (1 + math.cos(math.pi * r)) / 2), LOW),
    "wsd-exponential": ((*WSD, "exponential"), wsd(lambda r: 2 ** (1 - r) - 1), LOW),
    "wsd-minus_sqrt": ((*WSD, "minus_sqrt"), wsd(lambda r: 1 - math.sqrt(r)), LOW),
    "constant-cooldown": (
        (
            *("--lr-decay-style", "constant", "--lr_constant_plus_cooldown"),
            *("--lr_constant_plus_cooldown_frac", "0.25"),
        ),
        wsd(lambda r: 1 - math.sqrt(r)),
        LOW,
    ),
    "infinite-cosine": (
        ("--lr-decay-style", "infinite-cosine", *INFINITE),
        infinite(lambda t: (1 + math.cos(math.pi * t)) / 2),
        LOW,
    ),
    "infinite-inv-square-root": (
        ("--lr-decay-style", "infinite-inv-square-root", *INFINITE),
        infinite(inverse_root),
        LOW,
    ),
}


@pytest.fixture(scope="module")
def rates(trainer: Trainer) -> dict[str, list[list[float]]]:
    """The rates of the trainer's schedule by case, step and parameter group, from one process."""
    finder = ["--lr-finder", "--save", "/s", "--lr-finder-start-lr", "1e-5", "--lr-finder-end-lr", "0.1"]
    requests = [([*BASE, *flags], STEPS) for flags, _, _ in CASES.values()]
    requests.append(([*BASE, *finder], 52))
    answers = trainer.answers(
        Path(__file__).with_name("schedule_steps.py"),
        "".join(json.dumps(request) + "\n" for request in requests),
    )
    return dict(zip([*CASES, "finder"], answers, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_every_step_equals_the_formula(name: str, rates: dict[str, list[list[float]]]) -> None:
    _, formula, after_end = CASES[name]
    for step, (rate, half) in enumerate(rates[name]):
        after_warmup = formula(step) if WARMUP <= step <= DECAY else after_end
        wanted = HIGH * step / WARMUP if step <= WARMUP else after_warmup
        assert rate == pytest.approx(wanted, rel=1e-12), step
        assert half == pytest.approx(wanted / 2, rel=1e-12), step  # a group with a separate rate


def test_finder_rises_exponentially(rates: dict[str, list[list[float]]]) -> None:
    assert rates["finder"][0][0] == 1e-5
    assert rates["finder"][49][0] == pytest.approx(0.1, rel=1e-12)
    for step, (rate, _) in enumerate(rates["finder"][:50]):
        assert rate == pytest.approx(1e-5 * 1e4 ** (step / 49), rel=1e-12)
    assert rates["finder"][52][0] == pytest.approx(0.1, rel=1e-12)
