"""The events and conditions of one job cost the process that watches all jobs a bounded time at each poll."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from probed_specs import NATIVE, OELLM, errors_of
from processor_limits import processor_limit

if TYPE_CHECKING:
    from pathlib import Path

EXPENSIVE = "'a[ab]{490}c'"
"""490 steps, each of which is done for each byte of a suitable line."""


EXPENSIVE_STATE = "'FAILED|[ab]{490}c'"


def event(what: str = "log: nan", more: str = "") -> str:
    return f"{{{what}, do: notify{more}}}"


def listed(*items: str) -> str:
    return f"[{', '.join(items)}]"


def conditions(count: int, leaf: str = "file: f@") -> str:
    return listed(*(f"{{{leaf.replace('@', str(number))}}}" for number in range(count)))


TOO_MUCH: dict[str, tuple[str, str]] = {
    "101 events": (f"events: {listed(*[event()] * 101)}", "101 events"),
    "2,000 events": (f"events: {listed(*[event()] * 2000)}", "2,000 events"),
    "200 states": (f"events: {listed(*[event('state: FAILED')] * 200)}", "200 events"),
    "200 idle": (f"events: {listed(*[event('idle: 1h')] * 200)}", "200 events"),
    "dear patterns": (f"events: {listed(*[event(f'log: {EXPENSIVE}')] * 20)}", "patterns have"),
    "dear states": (f"events: {listed(*[event(f'state: {EXPENSIVE_STATE}')] * 20)}", "patterns have"),
    "dear finish": (f"finish: {{any: {conditions(20, f'log: {EXPENSIVE}')}}}", "patterns have"),
    "dear start": (f"parent: other, start: {{any: {conditions(20, f'log: {EXPENSIVE}')}}}", "patterns have"),
    "dear cancel": (f"cancel: {{all: {conditions(20, f'log: {EXPENSIVE}')}}}", "patterns have"),
    "dear negated": (f"cancel: {{not: {{all: {conditions(20, f'log: {EXPENSIVE}')}}}}}", "patterns have"),
    "dear when": (
        "events: " + listed(event(more=f", when: {{any: {conditions(20, f'log: {EXPENSIVE}')}}}")),
        "patterns have",
    ),
    "dear everywhere": (
        f"events: {listed(*[event(f'log: {EXPENSIVE}')] * 5)}, "
        + ", ".join(f"{key}: {{any: {conditions(4, f'log: {EXPENSIVE}')}}}" for key in ("cancel", "finish")),
        "patterns have",
    ),
    "101 files": (f"finish: {{all: {conditions(101)}}}", "have 101 conditions"),
    "3,000 files": (f"finish: {{any: {conditions(3000)}}}", "have 3,000 conditions"),
    "101 commands": (f"cancel: {{any: {conditions(101, 'command: [test, @]')}}}", "have 101 conditions"),
    "101 logs": (f"cancel: {{any: {conditions(101, 'log: x@')}}}", "have 101 conditions"),
    "101 starts": (f"parent: other, start: {{all: {conditions(101)}}}", "have 101 conditions"),
    "of all keys": (
        "parent: other, "
        + ", ".join(f"{key}: {{all: {conditions(35)}}}" for key in ("start", "cancel", "finish")),
        "have 105 conditions",
    ),
    "of events": (
        f"events: {listed(*[event(more=f', when: {{all: {conditions(11)}}}')] * 10)}",
        "have 110 conditions",
    ),
    "nested": (
        f"finish: {{all: {listed(*[f'{{any: {conditions(15)}}}'] * 5, *[f'{{not: {{all: {conditions(15)}}}}}'] * 5)}}}",
        "have 150 conditions",
    ),
}


def native(more: str) -> str:
    other = "  other: {kind: command, command: [x], slurm: {time: 10m}}\n"
    run = f"  run: {{kind: command, command: [x], slurm: {{time: 10m}}, {more}}}\n"
    return NATIVE[: NATIVE.index("  run:")] + other + run


@pytest.mark.parametrize(("more", "message"), TOO_MUCH.values(), ids=TOO_MUCH)
def test_native_specs(more: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(native(more))
    with processor_limit(5):
        errors = errors_of(path)
    assert message in errors
    assert "at most" in errors
    assert len(errors) < 2_000


@pytest.mark.slow
@pytest.mark.parametrize("count", [101, 1000])
@pytest.mark.parametrize("kind", ["substring", "regex", "inactivity"])
def test_oellm_files(kind: str, count: int, tmp_path: Path) -> None:
    found = "inactivity_timeout_s: 60" if kind == "inactivity" else "pattern: x"
    one = f"pattern_type: {kind}, {found}, action: {{class_name: RestartAction}}"
    events = listed(*(f"{{name: e{number}, {one}}}" for number in range(count)))
    path = tmp_path / "s.yaml"
    path.write_text(OELLM.replace("job: {name: study,", f"job: {{name: study, log_events: {events},"))
    assert f"{count:,} events" in errors_of(path)


USUAL: dict[str, str] = {
    "100 events": f"events: {listed(*[event('log: CUDA out of memory')] * 100)}",
    "50 usual patterns": "events: "
    + listed(
        *[event(r"log: 'validation loss at iteration (?P<iteration>\d+).*lm loss value: ([0-9.eE+-]+)'")] * 50
    ),
    "5 large patterns": f"events: {listed(*[event(f'log: {EXPENSIVE}')] * 5)}",
    "100 conditions": f"finish: {{all: {conditions(100)}}}",
    "none": "env: {}",
}


@pytest.mark.parametrize("more", USUAL.values(), ids=USUAL)
def test_usual_specs_are_accepted(more: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(native(more))
    assert errors_of(path) == ""
