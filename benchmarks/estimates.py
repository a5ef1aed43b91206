"""Estimated against reported memory and model size of published runs.

Two studies of GPT-2 on one node: gpt2-large on H200 (fp16, sequence length 1024; memory as nvidia-smi printed it, in
MiB) and gpt2-xl with context parallelism on H100 80 GB (bf16; memory in thousands of MiB, rounded). Run as
``python benchmarks/estimates.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_megatron.megatron.estimates.estimate import Estimate, estimate
from airflow_megatron.megatron.estimates.hardware import GPUS, Gpu

RELEASE = "core_v0.16.1"
MIB = 1 << 20
LARGE = {"num_layers": 36, "hidden_size": 1280, "num_attention_heads": 20, "seq_length": 1024, "fp16": True}
XL = {"num_layers": 48, "hidden_size": 1600, "num_attention_heads": 25, "bf16": True}


@dataclass(frozen=True)
class Reported:
    """One reported run.

    :param params: what differs from GPT-2's usual parameters
    :param world_size: number of GPUs
    :param gpu: kind of GPU
    :param memory_mib: memory of a GPU of each pipeline stage; empty for a run that ran out of memory
    :param step_ms: time of an iteration
    """

    name: str
    params: dict[str, Any]
    world_size: int
    gpu: Gpu
    memory_mib: tuple[int, ...]
    step_ms: float | None


def _large(
    name: str, world_size: int, batch: int, memory: tuple[int, ...], step_ms: float, **more: Any
) -> Reported:
    params = LARGE | {"micro_batch_size": batch} | more
    return Reported(f"gpt2-large {name}", params, world_size, GPUS["h200"], memory, step_ms)


def _xl(
    row: str, batch: int, length: int, context: int, memory: tuple[int, ...], step_ms: float | None
) -> Reported:
    params = XL | {"micro_batch_size": batch, "seq_length": length, "context_parallel_size": context}
    name = f"gpt2-xl {row}: batch {batch}, length {length}, context parallel {context}"
    return Reported(name, params, context, GPUS["h100-80gb"], memory, step_ms)


RUNS = (
    _large("one GPU", 1, 32, (80161,), 438.3),
    _large("data parallel 2", 2, 32, (80543,), 436.9, global_batch_size=64),
    _large("tensor parallel 2", 2, 64, (85969,), 542.8, tensor_model_parallel_size=2),
    _large(
        "sequence parallel 2", 2, 64, (71571,), 538.9, tensor_model_parallel_size=2, sequence_parallel=True
    ),
    _large("context parallel 2", 2, 64, (81917,), 514.5, context_parallel_size=2),
    _large("pipeline parallel 2", 2, 64, (61249, 88299), 821.7, pipeline_model_parallel_size=2),
    _xl("r1", 4, 4096, 1, (), None),
    _xl("r2", 4, 4096, 2, (56000,), 370),
    _xl("r3", 4, 4096, 4, (46000,), 410),
    _xl("r4", 4, 4096, 8, (40000,), 550),
    _xl("r5", 4, 8192, 8, (48000,), 565),
    _xl("r6", 4, 16384, 8, (63000,), 710),
    _xl("r7", 8, 8192, 8, (60000,), 625),
    _xl("r8", 8, 8192, 4, (), None),
)


def estimated(run: Reported) -> Estimate:
    """Estimate a reported run."""
    length = run.params["seq_length"]
    params = {"max_position_embeddings": length, "vocab_size": 50257} | run.params
    return estimate(params, run.world_size, RELEASE)


def main() -> None:
    """Print one line per run and pipeline stage."""
    print(f"{'run':55} {'estimate MiB':>12} {'reported':>9} {'error':>7} {'OOM?':>9} {'MFU':>6}")
    for run in RUNS:
        guess = estimated(run)
        predicted = guess.runs_out_of_memory(run.gpu)
        verdict = "right" if predicted is (not run.memory_mib) else "WRONG"
        mfu = f"{guess.utilisation(run.step_ms / 1000, run.gpu):.0%}" if run.step_ms else "-"
        reported = run.memory_mib or (None,)
        for stage, memory in zip(guess.stages, reported, strict=True):
            ours = stage.total / MIB
            error = f"{ours / memory - 1:+.1%}" if memory else "-"
            shown = str(memory) if memory else "oom"
            print(f"{run.name:55} {ours:12.0f} {shown:>9} {error:>7} {verdict:>9} {mfu:>6}")


if __name__ == "__main__":
    main()
