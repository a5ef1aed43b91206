"""How long the command lines of 10,000 jobs take: written for the release, and checked.

Run as ``python benchmarks/arguments.py``.
"""

from __future__ import annotations

import itertools
import time

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.validation.command_checks import check

JOBS = 10_000
RELEASES = ("core_v0.16.1", "core_v0.19.0")


def jobs() -> list[dict[str, object]]:
    """The parameters of 10,000 jobs of a sweep, about as many flags as a real job has."""
    grid = itertools.product(range(10), (16, 64, 128, 512), (12, 24), (1, 2), range(63))
    return [
        {
            "num_layers": layers,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "group_query_attention": True,
            "num_query_groups": 8,
            "seq_length": 4096,
            "max_position_embeddings": 4096,
            "micro_batch_size": 4,
            "global_batch_size": batch,
            "train_iters": 61036,
            "lr": 1e-4 * (1 + step),
            "min_lr": 0.0,
            "lr_decay_style": "WSD",
            "lr_wsd_decay_style": "linear",
            "lr_wsd_decay_iters": 6103,
            "lr_warmup_iters": 500,
            "weight_decay": 0.1 / (1 + step),
            "tensor_model_parallel_size": tensor,
            "sequence_parallel": tensor > 1,
            "swiglu": True,
            "add_bias_linear": False,
            "normalization": "RMSNorm",
            "position_embedding_type": "rope",
            "apply_rope_fusion": False,
            "untie_embeddings_and_output_weights": True,
            "bf16": True,
            "use_distributed_optimizer": True,
            "transformer_impl": "local",
            "tokenizer_type": "NullTokenizer",
            "vocab_size": 50257,
            "seed": seed,
            "save": f"/runs/point-{step}-{seed}/checkpoints",
            "save_interval": 1000,
            "log_interval": 10,
        }
        for step, batch, layers, tensor, seed in itertools.islice(grid, JOBS)
    ]


def main() -> None:
    """Print one line per release."""
    params = jobs()
    for release in RELEASES:
        check(to_argv(params[0], release), 4, release)  # reads the argument table
        start, used = time.perf_counter(), time.process_time()
        lines = [to_argv(point, release) for point in params]
        built = time.perf_counter()
        refused = sum(bool(check(argv, 4, release)) for argv in lines)
        done = time.perf_counter()
        print(
            f"{release}: {len(lines)} command lines of {len(lines[0])} tokens: written in {built - start:.2f} s, "
            f"checked in {done - built:.2f} s ({refused} refused), together {done - start:.2f} s "
            f"({time.process_time() - used:.2f} s of processor time)"
        )


if __name__ == "__main__":
    main()
