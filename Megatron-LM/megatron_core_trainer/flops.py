"""Operations and memory of a dense GPT model, by upstream's formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def floating_point_operations(args: argparse.Namespace, batch_size: int) -> float:
    """Return the operations of one training iteration: three passes of two operations per multiply-add.

    Source: ``num_floating_point_operations`` of upstream ``megatron/training/training.py``; causal attention is counted
    at half of the full matrix.

    :param args: complete arguments.
    :param batch_size: sequences per iteration.
    """
    query = args.kv_channels * args.num_attention_heads
    key_value = args.kv_channels * args.num_query_groups
    attention = (
        args.hidden_size * (query + 2 * key_value)
        + query * args.seq_length / 2 * 2
        + query * args.hidden_size
    )
    feed_forward = args.hidden_size * args.ffn_hidden_size * (3 if args.swiglu else 2)
    per_token = args.num_layers * (attention + feed_forward) + args.hidden_size * args.padded_vocab_size
    return float(3 * 2 * batch_size * args.seq_length * per_token)


def parameter_counts(args: argparse.Namespace) -> tuple[float, float]:
    """Return the number of parameters in the transformer block and in the embeddings, as in upstream's memory report.

    Biases are not counted, as in ``megatron/training/theoretical_memory_usage.py``.

    :param args: complete arguments.
    """
    norm = 1 if args.normalization == "RMSNorm" else 2
    query_share = args.kv_channels * args.num_attention_heads / args.hidden_size
    attention = 2 * args.hidden_size**2 * (1 + args.num_query_groups / args.num_attention_heads) * query_share
    feed_forward = args.ffn_hidden_size * (1.5 if args.swiglu else 1)
    layer = 2 * args.hidden_size * (feed_forward + norm) + attention
    block = layer * args.num_layers + norm * args.hidden_size
    embeddings = (
        args.hidden_size * args.padded_vocab_size * (2 if args.untie_embeddings_and_output_weights else 1)
    )
    return block, embeddings


def memory_report(args: argparse.Namespace) -> list[str]:
    """Return upstream's lines about parameter counts and the bytes of weights, optimizer state and activations.

    Source: ``megatron/training/theoretical_memory_usage.py``; activations per layer are sbh(10 + 24/t) bytes
    (Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, table 2, with selective recomputation).

    :param args: complete arguments.
    """
    block, embeddings = parameter_counts(args)
    pipeline, tensor = args.pipeline_model_parallel_size, args.tensor_model_parallel_size
    embedding = args.hidden_size * args.padded_vocab_size
    loaded = (block / pipeline + embedding) / tensor
    if args.untie_embeddings_and_output_weights and pipeline == 1:
        loaded += embedding / tensor
    bytes_per_parameter = 6 + 12 / args.data_parallel_size if args.use_distributed_optimizer else 18.0
    tokens = args.seq_length * args.micro_batch_size
    per_layer = tokens * args.hidden_size * (10 + 24 / tensor)
    activation = per_layer * args.num_layers + tokens * (8 + args.hidden_size) * pipeline
    if pipeline > 1:
        activation *= min(1.0, args.num_microbatches / pipeline)
    else:
        activation += 2 * tokens * (args.padded_vocab_size / tensor + args.hidden_size)
    state, activation = loaded * bytes_per_parameter / 2**20, activation * 1.05 / 2**20
    return [
        f"Number of parameters in transformer block in billions: {block / 1e9: .2f}",
        f"Number of parameters in embedding layers in billions: {embeddings / 1e9:.2f}",
        f"Total number of parameters in billions: {(block + embeddings) / 1e9:.2f}",
        f"Number of parameters in most loaded shard in billions: {loaded / 1e9:.4f}",
        f"Activation memory footprint per transformer layer (precise, without SP): {per_layer / 2**20:.1f} MB",
        (
            f"Theoretical memory footprints: weight and optimizer={state:.2f} MB, activation={activation:.2f} MB,"
            f" total={state + activation:.2f} MB"
        ),
    ]
