"""Values that Airflow's classes refuse are refused when the spec is read, so that lint needs no DAGs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_megatron.dag_factory.building import build_dags
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.dag_names import STEPS, SWEEP_TASKS
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep_text

FILE = str(Path("sweep_specs/generated.yaml").absolute())

reserved = [*STEPS, *SWEEP_TASKS, "resolve", "return_value"]
usual = st.one_of(
    st.sampled_from(["a", "b", "c", "a-2", "B_9", *reserved]),
    st.builds(lambda first, rest: first + rest, st.sampled_from("aZ9"), st.text("abZ9_-", max_size=4)),
    st.builds(lambda letter, length: letter * length, st.sampled_from("aZ9"), st.sampled_from([60, 64, 65])),
)
odd = st.one_of(
    st.text(max_size=12), st.text("ab.-_ é/$'\"{%\n", min_size=1, max_size=6), st.text("a.", max_size=260)
)
texts = st.one_of(
    st.text(max_size=30), st.sampled_from(["x.md", "{{ x }}", "{% raw %}", "a" * 101, "\ud800", "\0"])
)
numbers = st.one_of(
    st.integers(-2, 40),
    st.sampled_from([10**5, 10**18, 10**40]),
    st.floats(),
    st.booleans(),
    st.none(),
    texts,
)
labels = st.one_of(usual, st.integers(0, 99), st.floats(0, 9), st.sampled_from(["100M", "1.5", "submit"]))
SETTINGS = {
    "name": usual | odd,
    "description": texts,
    "tags": st.lists(texts, max_size=3),
    "max_active_points": numbers,
    "max_jobs": numbers,
    "poll_interval": numbers,
    "cluster": usual | odd,
}


@st.composite
def starts(draw: st.DrawFn, stages: list[str]) -> dict[str, Any]:
    """Return a start condition, of a stage that may come later, or of the stage itself."""
    leaves: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 2))):
        stage = draw(st.sampled_from(stages))
        kinds = [
            {"checkpoint": 2},
            {"log": "x"},
            {"finished": stage},
            {"log": "x", "of": stage},
            {"finished": [stage]},
        ]
        leaves.append(draw(st.sampled_from(kinds)))
    return leaves[0] if len(leaves) == 1 else {draw(st.sampled_from(["all", "any"])): leaves}


@st.composite
def native(draw: st.DrawFn) -> dict[str, Any]:
    """Return a spec with any tree, names, texts and numbers."""
    stages = draw(st.lists(usual, min_size=1, max_size=5, unique=True))
    made: dict[str, Any] = {}
    for index, stage in enumerate(stages):
        train = index < 2
        section: dict[str, Any] = {"kind": "train"} if train else {"kind": "command", "command": ["true"]}
        if index and draw(st.booleans()):
            section["parent"] = draw(st.sampled_from(stages[:index]))
            if draw(st.booleans()):
                section["start"] = draw(starts(stages))
        if draw(st.integers(0, 4)) == 0:
            section["scope"] = "sweep"
        if draw(st.integers(0, 2)) == 0:
            section["for_each"] = {"v": draw(st.lists(labels, min_size=1, max_size=3))}
        made[stage] = section
    spec: dict[str, Any] = {"name": "some", "trainer": "megatron_lm", "stages": made}
    spec |= {"point": "p{{ x }}", "sweep": {"params": {"x": [1]}}}
    key = draw(st.sampled_from([None, None, *SETTINGS]))
    return spec if key is None else spec | {key: draw(SETTINGS[key])}


@st.composite
def autoexperiment(draw: st.DrawFn) -> dict[str, Any]:
    """Return an AutoExperiment file whose labels, and so its stages, may be called anything."""
    named = draw(st.lists(usual | odd, min_size=1, max_size=4, unique=True))
    fields = {
        "cmd": "sbatch {sbatch_script}",
        "output_file": "o",
        "sbatch_script": "s",
        "check_interval_secs": 60,
    }
    mode = [
        {label: {"termination_str": str(at), "start_condition_cmd": "x" * at}}
        for at, label in enumerate(named)
    ]
    return {"name": "n{termination_str}", "template": "t", **fields, "MODE": mode}


def built(text: str) -> None:
    """Build the DAGs of a spec that the reader accepts."""
    try:
        sweep = load_sweep_text(text, FILE)
    except SpecError:
        return
    build_dags(SweepOutline.of(sweep))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [native(), autoexperiment()], ids=["native", "autoexperiment"])
def test_every_accepted_spec_can_be_built(strategy: st.SearchStrategy[dict[str, Any]]) -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(strategy)
    def check(spec: dict[str, Any]) -> None:
        built(yaml.safe_dump(spec, sort_keys=False))

    check()
