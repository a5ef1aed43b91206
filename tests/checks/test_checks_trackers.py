"""Jobs that send records to a tracker that also receives them from Airflow."""

from __future__ import annotations

import pytest
from example_specs import CHAIN

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.spec_files import load_sweep_text

WANDB = "trackers: [{tracker: wandb, connection: ours}]\n"
OWN = "wandb_project: mine, wandb_exp_name: x, wandb_save_dir: /tmp/x,"


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_TRACKER_CONNECTIONS", "ours")


def chain(before: str, megatron: str = "") -> str:
    assert "\nmegatron: {" in CHAIN
    return before + CHAIN.replace("\nmegatron: {", f"\nmegatron: {{{megatron}\n  ")


def test_both_ways_to_wandb_are_refused_with_the_line_of_the_argument(cluster) -> None:
    text = chain(WANDB, OWN)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "wandb_project" in each)
    with pytest.raises(
        SpecError, match=rf"s\.yaml:{line}:.*wandb_project makes the job send its own records"
    ):
        check_sweep(load_sweep_text(text, "s.yaml"), cluster)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "megatron"),
    [
        (WANDB, ""),
        ("", OWN),
        ("trackers: [{tracker: mlflow, connection: ours}]\n", OWN),
        (WANDB, "wandb_project: '',"),
    ],
)
def test_one_way_is_fine(cluster, before: str, megatron: str) -> None:
    check_sweep(load_sweep_text(chain(before, megatron), "s.yaml"), cluster)
