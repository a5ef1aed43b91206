"""Of two spec files with the same sweep name, the planned one keeps it; before a plan, both are refused."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from example_specs import CHAIN

from airflow_megatron.plan import repeated_names
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.repeated_names import repeated_name_problem
from airflow_megatron.plan.sweep_owners import record_owner
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "specs"
    folder.mkdir()
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(folder))
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    return folder


def test_before_the_first_plan_both_are_refused(specs: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (specs / name).write_text(CHAIN)
    for name, other in (("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")):
        problem = repeated_name_problem(load_sweep(specs / name))
        assert problem is not None
        assert f"{other} defines a sweep 'chain' too, and neither has been planned" in problem.message
        assert problem.file.endswith(name)


def test_the_one_that_was_planned_keeps_the_name(specs: Path) -> None:
    (specs / "z.yaml").write_text(CHAIN)
    record_owner("chain", str(specs / "z.yaml"), PinStore())
    (specs / "a copy.yaml").write_text(CHAIN)
    assert repeated_name_problem(load_sweep(specs / "z.yaml")) is None
    problem = repeated_name_problem(load_sweep(specs / "a copy.yaml"))
    assert problem is not None
    assert "z.yaml defines a sweep 'chain' too, and keeps the name" in problem.message


def test_a_file_that_was_renamed_takes_its_name_with_it(specs: Path) -> None:
    record_owner("chain", str(specs / "old.yaml"), PinStore())
    (specs / "new.yaml").write_text(CHAIN)
    assert repeated_name_problem(load_sweep(specs / "new.yaml")) is None


@pytest.mark.parametrize(
    "other",
    ["# of chain\nname: other\npoint: p\nstages: {a: {kind: train}}\n", "chain: [", "", "\0chain"],
)
def test_files_that_only_mention_the_name_or_are_broken_do_not_count(other: str, specs: Path) -> None:
    (specs / "a.yaml").write_text(CHAIN)
    (specs / "b.yaml").write_text(other)
    assert repeated_name_problem(load_sweep(specs / "a.yaml")) is None


@pytest.mark.slow
def test_costly_files_that_mention_the_name_do_not_count(
    specs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment with another sweep's name must not make its commands read a file without limits."""
    monkeypatch.setattr(repeated_names, "EACH_S", 0.2)
    monkeypatch.setattr(repeated_names, "ALL_S", 0.3)
    (specs / "a.yaml").write_text(CHAIN)
    costly = (
        CHAIN.replace("name: chain", "name: other")
        + "# chain\n"
        + "".join(f"k{n}: [1]\n" for n in range(400_000))
    )
    for name in ("b.yaml", "c.yaml", "d.yaml"):
        (specs / name).write_text(costly)
    sweep = load_sweep(specs / "a.yaml")
    begin = time.process_time() + sum(os.times()[2:4])
    assert repeated_name_problem(sweep) is None
    assert time.process_time() + sum(os.times()[2:4]) - begin < 1.5


def test_a_file_elsewhere_is_nobodys_rival(specs: Path, tmp_path: Path) -> None:
    (specs / "a.yaml").write_text(CHAIN)
    (tmp_path / "draft.yaml").write_text(CHAIN)
    assert repeated_name_problem(load_sweep(tmp_path / "draft.yaml")) is None
