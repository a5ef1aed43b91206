"""The rows of the table of points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.megatron.estimates.hardware import GPUS
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_cluster import sweep_clusters
from airflow_megatron.plan.sweep_plan import check_on_clusters, plan_sweep
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.spec_files import load_sweep
from airflow_megatron.ui.live.planned_points import planned_sweep
from airflow_megatron.ui.live.point_table import point_rows
from airflow_megatron.ui.live.recorded import NothingRecorded, StageReading

if TYPE_CHECKING:
    from pathlib import Path

BENCHMARK = """\
name: speeds
trainer: megatron_lm
release: core_v0.16.1
cluster: local
point: "tp{{ tensor_model_parallel_size }}"
megatron: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 64, max_position_embeddings: 64,
  micro_batch_size: 1, global_batch_size: 4, mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 128}
params: {step: 0, memory: 0}
benchmark:
  iterations: 10
  skip: 2
  reported: {step_ms: "{{ step }}", memory_gb: "{{ memory }}"}
sweep:
  configs:
    - {tensor_model_parallel_size: 1, step: 400, memory: 4}
    - {tensor_model_parallel_size: 2, step: 200, memory: 2}
slurm: {gpus_per_node: 2}
"""


class Recorded(NothingRecorded):
    def trainings(self) -> dict[tuple[str, str], StageReading]:
        return {("tp1", "benchmark"): StageReading(10, 10, 9.0, step_s=0.5, memory_mib=2e9 / (1 << 20))}


@pytest.mark.slow
def test_a_benchmark_is_shown_beside_what_was_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, pins = tmp_path / "speeds.yaml", PinStore(tmp_path / "pins")
    file.write_text(BENCHMARK)
    sweep, around = load_sweep(file), PlanEnvironment.now("local")
    pinned = PinnedSweep.stored(sweep, BENCHMARK, plan_sweep(sweep, around.cluster), around, pins)
    pins.set_newest("speeds", "manual__1", pinned.pin)
    monkeypatch.setenv(project.PINS_VARIABLE, str(pins.root))
    planned = planned_sweep("speeds", "manual__1")
    assert planned is not None
    rows: list[dict[str, Any]] = point_rows(planned, {}, {}, Recorded())
    assert [row["params"] for row in rows] == [
        {"tensor_model_parallel_size": 1},
        {"tensor_model_parallel_size": 2},
    ]
    first, second = rows
    assert (first["step_ms"], first["step_ratio"]) == (500.0, 1.25)
    assert (first["memory_gb"], first["memory_ratio"]) == (2.0, 0.5)
    assert (first["training"], first["iteration"], first["total"]) == ("benchmark", 10, 10)
    assert not {"step_ms", "step_ratio", "memory_gb", "memory_ratio"} & second.keys()


SPREAD = """\
name: spread
cluster: [hopper, ampere]
point: "p{{ x }}"
sweep: {x: [1, 2, 3]}
stages:
  work: {kind: command, command: [work, "{{ x }}"]}
"""

PROFILE = "{{ssh_conn_id: slurm, run_root: /runs/{name}, python: python3, megatron_lm_dir: /m, gpu: {gpu}}}\n"


def test_points_on_several_clusters_show_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = tmp_path / "sbatch" / "clusters"
    profiles.mkdir(parents=True)
    gpus = {"hopper": "h200", "ampere": "a100-40gb"}
    for name, gpu in gpus.items():
        (profiles / f"{name}.yaml").write_text(PROFILE.format(name=name, gpu=gpu))
    monkeypatch.setenv(project.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    file, pins = tmp_path / "spread.yaml", PinStore(tmp_path / "pins")
    file.write_text(SPREAD)
    sweep = load_sweep(file)
    around = [PlanEnvironment.now(one) for one in sweep_clusters(sweep)]
    plans = check_on_clusters(sweep, [one.cluster for one in around])
    pinned = PinnedSweep.stored_on_clusters(sweep, SPREAD, list(zip(plans, around, strict=True)), pins)
    pins.set_newest("spread", "manual__1", pinned.pin)
    pinned.placements.place("p1", "ampere", "")
    pinned.placements.place("p2", "hopper", "")
    planned = planned_sweep("spread", "manual__1")
    assert planned is not None
    rows = point_rows(planned, {}, {}, NothingRecorded())
    assert [row.get("cluster") for row in rows] == ["ampere", "hopper", None]
    peaks = [GPUS[gpus[name]].operations_per_s for name in ("ampere", "hopper")]
    assert [point.peak for point in planned.points] == [*peaks, None]
