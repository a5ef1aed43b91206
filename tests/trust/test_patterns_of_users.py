"""Patterns of users take linear time and mean the same as in Python, or are refused with a hint."""

from __future__ import annotations

import random
import re
import time
from typing import TYPE_CHECKING

import pytest
from probed_specs import AUTOEXPERIMENT, NATIVE, OELLM, TEMPLATE, errors_of, shown

from airflow_megatron.slurm.states.observation import Observation
from airflow_megatron.slurm.verdicts.signatures import read_signatures
from airflow_megatron.spec.foreign.interpolation.resolvers import RESOLVERS
from airflow_megatron.spec.model.conditions import Condition, Event
from airflow_megatron.spec.trust.patterns import line_pattern, needs_line_end, nested_repetition
from airflow_megatron.supervision.condition_watch import ConditionWatch
from airflow_megatron.supervision.event_watch import EventWatch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

LOOP_S = 0.1
"""For how long one pattern may hold the process that waits for all jobs, on one line of 64 kB."""

SLOW = [
    *("(a+)+$", "(a*)*$", "(a|a)*$", "(a|aa)+$", "(.*a){20}$", "(a+)+b", "([a-z]+)*1", "(?:a+)+$", "(a+?)+$"),
    *(r"\s+$", r"\s*\s*\s*x", r"(\w+\s?)+:$", ".*.*.*.*=.*", "(?P<x>a+)+$", "(?i)(A+)+$", "(a{1,9}){1,9}$"),
    *("^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y", "(a|b|ab)*c", r"(\d+)*\.$", "a*a*a*a*a*a*b", "(?s:.*)*z"),
    *(
        "(.+)+\\Z",
        "((a*)*)*$",
        "(?:(?:a+)?)+$",
        "loading checkpoint from (.+?) at (.+?)$",
        "[^x]*[^y]*[^z]*!",
    ),
]
LINES = ["a" * 65_000, "a" * 65_000 + "!", " " * 65_000, " " * 65_000 + "x", "ab" * 32_000, "1" * 65_000]
LINES += ["loading checkpoint from " * 2_700, "x" * 65_000, "a b " * 16_000]


@pytest.mark.parametrize("pattern", SLOW)
def test_no_pattern_holds_the_loop(pattern: str) -> None:
    for line in LINES:
        line_pattern(pattern).search("warm")
        begin = time.thread_time()
        line_pattern(pattern).search(line)
        assert time.thread_time() - begin < LOOP_S, line[:30]


def _observation(line: str) -> Observation:
    return Observation(time=0.0, log_chunk=line.encode() + b"\n")


@pytest.mark.parametrize("pattern", SLOW)
def test_watches_of_events_and_conditions_are_quick(pattern: str) -> None:
    events = EventWatch([Event("e", on="log", do="notify", pattern=pattern)])
    watch = ConditionWatch(Condition("log", path="/log", pattern=pattern))
    for line in LINES[:3]:
        begin = time.thread_time()
        events.read(_observation(line), progressed=True)
        watch.read([_observation(line)])
        assert time.thread_time() - begin < 2 * LOOP_S + 0.1


@pytest.mark.parametrize("pattern", SLOW)
def test_a_resolver_of_patterns_is_quick(pattern: str) -> None:
    begin = time.thread_time()
    RESOLVERS["oc.mapcondtmpl"](pattern, "%", "-", LINES)
    assert time.thread_time() - begin < len(LINES) * LOOP_S


REFUSED = {
    "(?=a)b": "look-ahead",
    "a(?!b)": "negative look-ahead",
    "(?<=a)b": "look-behind",
    "(?<!a)b": "negative look-ahead or look-behind",
    r"(a)\1": "back reference",
    "(?P<q>['\"]).*(?P=q)": "back reference",
    "(a)?(?(1)b|c)": "conditional group",
    "(?>a+)b": "atomic group",
    "a++b": "possessive repetition",
    "a{1,2000}": "repeats too often",
    "((a{100}){100}){100}": "repeats too often",
    "(": "not a regular expression",
    "[a": "not a regular expression",
    "*a": "not a regular expression",
    "a{2}{3}": "not a regular expression",
    "(?P<1>a)": "not a regular expression",
    "(?z)": "not a regular expression",
    "(" * 900 + ")" * 900: "nested too deeply",
    "a{99999999999999999999}": "not a regular expression",
    "x" * 2001: "at most 2,000",
    "(?:[a-z]{30}|[0-9]{30}){20}": "too large",
}
PATTERN_PLACES = {
    "event": NATIVE + "    events: [{log: '@', do: notify}]\n",
    "state": NATIVE + "    events: [{state: '@', do: notify}]\n",
    "event when": NATIVE + "    events: [{state: RUNNING, do: notify, when: {log: '@'}}]\n",
    "cancel": NATIVE + "    cancel: {log: '@'}\n",
    "finish": NATIVE + "    finish: {log: '@'}\n",
    "finish not": NATIVE + "    finish: {not: {any: [{log: '@'}]}}\n",
    "start": NATIVE
    + "  next: {kind: command, command: [a], parent: run, start: {log: '@'}, slurm: {time: 5m}}\n",
    "ae end": AUTOEXPERIMENT.replace('"done"', "'@'"),
    "oellm event": OELLM.replace(
        "name: study",
        "name: study, log_events: [{name: e, pattern: '@', pattern_type: regex, action: {class_name: "
        "LogAction}}]",
    ),
}


def _written(folder: Path, place: str, pattern: str) -> Path:
    path = folder / "study.yaml"
    escaped = pattern.replace("'", "''")
    if place.startswith("ae"):
        escaped = escaped.replace("{", "{{").replace("}", "}}")
    path.write_text(PATTERN_PLACES[place].replace("@", escaped))
    (folder / "job.sbatch").write_text(TEMPLATE)
    return path


@pytest.mark.parametrize("place", PATTERN_PLACES)
def test_patterns_that_need_more_are_refused_in_lint(place: str, tmp_path: Path) -> None:
    for pattern, reason in REFUSED.items():
        if place.startswith("ae") and "{" in pattern:
            continue  # a brace is a key there
        text = errors_of(_written(tmp_path, place, pattern))
        assert reason in text, pattern
        assert "study.yaml:" in text
        if "look" in reason or "reference" in reason:
            assert "linear time by RE2" in text


@pytest.mark.parametrize("place", PATTERN_PLACES)
def test_slow_patterns_cost_lint_nothing(place: str, tmp_path: Path) -> None:
    for pattern in SLOW:
        if not (place.startswith("ae") and "{" in pattern):
            assert "not a regular expression" not in shown(_written(tmp_path, place, pattern)), pattern


@pytest.mark.parametrize("pattern", [pattern for pattern in SLOW if nested_repetition(pattern)])
def test_lint_names_a_repeated_repetition(pattern: str, tmp_path: Path) -> None:
    text = shown(_written(tmp_path, "event", pattern))
    assert f"the pattern {pattern!r} repeats a repetition" in text


@pytest.mark.parametrize(
    "pattern", ["(a+)+", "(a*)+", "((b)*)*x", "(?:a+)*", "(a|b+)*", r"(\s+)+", "(?i:(a+)*)"]
)
def test_repeated_repetitions(pattern: str) -> None:
    assert nested_repetition(pattern)


@pytest.mark.parametrize(
    "pattern", ["(a+b)+", r"(?:\[\d+\])*x", "(a|b)*", "(ab)*", "a+", "(a+)?", "(a+){2}", "("]
)
def test_patterns_without_nested_repetition(pattern: str) -> None:
    assert not nested_repetition(pattern)


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        *(("a\n", True), (r"a\nb", True), (r"(x\n|y\n)", True), (r"(?:a\n)+", True), ("(", False)),
        *((r"a\n?", False), (r"[^\n]*", False), (r"a\s", False), (r"(a\n|b)", False), (r"(?:\n)*a", False)),
    ],
)
def test_patterns_that_span_lines(pattern: str, needed: bool) -> None:
    assert needs_line_end(pattern) is needed


@pytest.mark.parametrize("pattern", [pattern for pattern in SLOW if "Z" not in pattern])
def test_site_signatures_are_bounded_too(pattern: str, tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(f"signatures: [{{name: x, pattern: '{pattern}E', outcome: failed, reason: y}}]\n")
    (signature,) = read_signatures(path)
    for line in LINES:
        begin = time.thread_time()
        signature.pattern.search(line.encode()[:4096])
        assert time.thread_time() - begin < LOOP_S


@pytest.mark.parametrize(
    ("pattern", "line", "groups"),
    [
        (r"iteration (?P<iteration>\d+)/", " iteration 12/ 40", {"iteration": "12"}),
        (r"node (?P<node>\S+): (?P<what>.+)$", "node n1: it broke", {"node": "n1", "what": "it broke"}),
        (r"(?i)cuda ERROR", "CUDA error: x", {}),
        (r"(?x) out \s+ of  # comment", "out   of", {}),
        (r"a(?i:B)c", "abc", {}),
        (r"\bOOM\b", "an OOM here", {}),
        (r"done\Z", "is done", {}),
        (r"^\[(?P<a>[^\]]+)\]", "[x]: y", {"a": "x"}),
        (r"(?P<a>x)?y", "y", {"a": ""}),
        (r"(?P<w>\w+) müde", "größe müde", {"w": "größe"}),
        (r"(?P<lazy>a+?)b?", "aab", {"lazy": "a"}),
        (r"^(?P<all>.*)$", "any\tthing", {"all": "any\tthing"}),
        (r"[\w.-]+@[^\W\d]+", "me.x@host", {}),
        (r"\$\{x\}|\\\\|\[\]", "${x}", {}),
        (r"after training is done|exiting program", "[after training is done] datetime", {}),
        ("FATAL ERROR|OutOfMemoryError|Traceback", "torch.OutOfMemoryError: x", {}),
        (r".*validation loss.*on test set.*", "x validation loss at 3 on test set | y", {}),
        (
            r"failed on node (?P<node>[^:\s]+): Communication",
            "failed on node lrdn1: Communication",
            {"node": "lrdn1"},
        ),
        (r"(?P<end>z)", "a" * 60_000 + "z", {"end": "z"}),
        (r"(?a)\w+\s", "abc ", {}),
        (r"[\[:]+x", "[:x", {}),
    ],
)
def test_what_people_write_means_what_it_means_in_python(
    pattern: str, line: str, groups: dict[str, str]
) -> None:
    assert line_pattern(pattern).search(line) == groups
    match = re.search(pattern, line)
    assert match is not None
    assert {name: value or "" for name, value in match.groupdict().items()} == groups


ATOMS = [
    "a",
    "b",
    "é",
    ".",
    r"\d",
    r"\w",
    r"\s",
    r"\S",
    r"\W",
    r"\D",
    "[a-c]",
    "[^ab]",
    r"[\d.]",
    r"[^\W\d]",
    r"[\s,]",
]
ATOMS += [
    "x",
    " ",
    "1",
    "_",
    "-",
    r"\.",
    "^",
    "$",
    r"\Z",
    r"\A",
    "(?:ab|a)",
    "(a|ab)",
    "(?P<n%d>b+)",
    "(?i:A)",
    "[]a]",
]
ATOMS += [r"\x41", r"\t", "(?s:.)", "ß"]
REPEATS = ["", "", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{,2}", "{2,}"]


@pytest.mark.parametrize("seed", range(20))
def test_random_patterns_mean_what_they_mean_in_python(seed: int) -> None:
    chance = random.Random(seed)
    compared = 0
    while compared < 150:
        count = 0
        pattern = chance.choice(["", "", "", "(?i)", "(?s)"])
        for _ in range(chance.randint(1, 6)):
            atom = chance.choice(ATOMS)
            if "%d" in atom:
                count += 1
                atom = atom % count
            pattern += atom + (chance.choice(REPEATS) if atom not in ("^", "$", r"\Z", r"\A") else "")
            pattern += chance.choice(["", "", "", "", "|"])
        python = re.compile(pattern)
        for _ in range(3):
            line = "".join(chance.choice("aabbcx 1_-.,AéßÉ!\t") for _ in range(chance.randint(0, 9)))
            match = python.search(line)
            wanted = {name: value or "" for name, value in match.groupdict().items()} if match else None
            assert line_pattern(pattern).search(line) == wanted, (pattern, line)
            compared += 1


@pytest.mark.parametrize("line", ["\ud800", "a\0b", "\U0010ffff", "", "\r", "\x1b[0m"])
def test_odd_lines(line: str) -> None:
    assert line_pattern("x+y").search(line) is None
