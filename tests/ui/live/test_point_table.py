"""The rows of the table of points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
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
