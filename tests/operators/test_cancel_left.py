"""Which stages of a run may still have a job in Slurm when it ends."""

from __future__ import annotations

import pytest

from airflow_megatron.operators.cancel_left import CancelLeftJobsOperator, left_stages


@pytest.mark.parametrize(
    ("submit", "watch", "left"),
    [
        ("success", "success", False),
        ("success", "failed", True),
        ("success", "skipped", True),  # the run was stopped before the wait began
        ("failed", "upstream_failed", True),  # killed while it submitted
        ("skipped", "skipped", False),
        ("upstream_failed", "upstream_failed", False),
        (None, None, False),
    ],
)
def test_by_the_states_of_its_tasks(submit: str | None, watch: str | None, left: bool) -> None:
    states = {"a.submit": submit, "a.watch": watch, "b.submit": "success", "b.watch": "success"}
    assert left_stages(["a", "b"], states) == (["a"] if left else [])


def test_a_run_that_went_well_asks_nothing_of_the_cluster() -> None:
    class Instance:
        dag_id, run_id = "x.point", "p"

        def get_task_states(self, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
            assert (dag_id, run_ids) == ("x.point", ["p"])
            return {"p": {"a.submit": "success", "a.watch": "success"}}

    task = CancelLeftJobsOperator(task_id="t", source="resolve", stages=["a"])
    assert task.execute({"ti": Instance()}) == []  # type: ignore[typeddict-item]
