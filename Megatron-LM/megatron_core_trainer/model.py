"""Build megatron-core's ``GPTModel`` from the trainer's arguments, and compute its loss."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import init_method_normal

from megatron_core_trainer import cpu_device
from megatron_core_trainer.cpu_attention import use_fused_kernel
from megatron_core_trainer.data.datasets import has_attention_mask
from megatron_core_trainer.optimization.multipliers import apply_multipliers
from megatron_core_trainer.optimization.parametrization import DEFAULTS, parametrization

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    Batch = dict[str, torch.Tensor]

# Size of a bucket of overlapped gradient reduction in parameters: upstream's default.
_BUCKET_SIZE = 40_000_000


def transformer_config(args: argparse.Namespace) -> TransformerConfig:
    """Translate arguments into megatron-core's configuration; fields of the same name are copied.

    :param args: complete arguments, of this run or from a checkpoint.
    """
    values = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(TransformerConfig)
        # Releases of megatron-core that implement muP would apply it twice.
        if hasattr(args, field.name) and field.name not in ("use_mup", *DEFAULTS)
    }
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    values.update(
        params_dtype=dtype,
        pipeline_dtype=dtype,
        attention_backend=AttnBackend[args.attention_backend],
        persist_layer_norm=not args.no_persist_layer_norm,
        deallocate_pipeline_outputs=True,
        batch_p2p_comm=True,
        num_query_groups=args.num_query_groups if args.group_query_attention else None,
        bias_activation_fusion=args.bias_swiglu_fusion if args.swiglu else args.bias_gelu_fusion,
    )
    if args.swiglu:
        values.update(activation_func=torch.nn.functional.silu, gated_linear_unit=True)
    scaling = parametrization(vars(args))
    if scaling is not None:
        values.update(
            init_method=init_method_normal(scaling.hidden_std),
            output_layer_init_method=init_method_normal(scaling.projection_std),
            embedding_init_method=init_method_normal(scaling.outer_std),
            softmax_scale=scaling.attention,
        )
    return TransformerConfig(**values)


def build_model(
    args: argparse.Namespace, config: TransformerConfig | None = None, *, fused_on_cpu: bool = False
) -> GPTModel:
    """Build this process's share of the model, on its device, without data parallelism.

    :param args: complete arguments, including ``padded_vocab_size``.
    :param config: the configuration, if it exists already.
    :param fused_on_cpu: on a CPU, compute attention with PyTorch's fused kernel.
    """
    config = config or transformer_config(args)
    if args.transformer_impl == "transformer_engine":
        layer_spec = get_gpt_layer_with_transformer_engine_spec(qk_layernorm=args.qk_layernorm)
    elif config.num_moe_experts is not None:
        # This trainer does not train experts, but the converter builds models of upstream's trainer that have them.
        layer_spec = get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=args.normalization
        )
    else:
        layer_spec = get_gpt_layer_local_spec(
            qk_layernorm=args.qk_layernorm, normalization=args.normalization
        )
        if fused_on_cpu and cpu_device.is_needed():
            use_fused_kernel(layer_spec)
    model = GPTModel(
        config=config,
        transformer_layer_spec=layer_spec,
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        rope_scaling=args.use_rope_scaling,
        rope_scaling_factor=args.rope_scaling_factor,
    )
    for parameter in model.parameters():
        tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    scaling = parametrization(vars(args))
    if scaling is not None:
        apply_multipliers(model, scaling)
    model.cuda(torch.cuda.current_device())
    return Float16Module(config, model) if args.bf16 else model


def wrap_data_parallel(args: argparse.Namespace, model: torch.nn.Module) -> DistributedDataParallel:
    """Add gradient reduction over data-parallel replicas.

    :param args: complete arguments.
    :param model: as returned by :func:`build_model`.
    """
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=args.accumulate_allreduce_grads_in_fp32,
        overlap_grad_reduce=args.overlap_grad_reduce,
        overlap_param_gather=args.overlap_param_gather,
        use_distributed_optimizer=args.use_distributed_optimizer,
        check_for_nan_in_grad=args.check_for_nan_in_loss_and_grad,
        bucket_size=_BUCKET_SIZE if args.overlap_grad_reduce else None,
    )
    return DistributedDataParallel(model.config, ddp_config, model)


def count_parameters(model: torch.nn.Module) -> int:
    """Count this process's parameters.

    :param model: the model.
    """
    return sum(parameter.nelement() for parameter in model.parameters())


def read_batch(args: argparse.Namespace, data_iterator: Iterator[Batch] | None) -> Batch:
    """Return the next micro batch on this process's device.

    One rank of a tensor-parallel group reads the batch and sends it to the others; inner pipeline stages need none.

    :param args: complete arguments.
    :param data_iterator: batches of shape [micro batch, sequence]; None if another rank reads them.
    """
    if not (parallel_state.is_pipeline_first_stage() or parallel_state.is_pipeline_last_stage()):
        return {}
    device = torch.cuda.current_device()
    if parallel_state.get_tensor_model_parallel_world_size() == 1:
        assert data_iterator is not None
        return {name: value.to(device, non_blocking=True) for name, value in next(data_iterator).items()}
    data = next(data_iterator) if data_iterator is not None else None
    batch = tensor_parallel.broadcast_data(["tokens", "labels", "position_ids"], data, torch.int64)
    batch.update(tensor_parallel.broadcast_data(["loss_mask"], data, torch.float32))
    if has_attention_mask(args):
        batch.update(tensor_parallel.broadcast_data(["attention_mask"], data, torch.bool))
    return batch  # type: ignore[no-any-return]


def loss_function(
    loss_mask: torch.Tensor, check_for_nan: bool, losses: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sum the per-token losses of a micro batch; the caller divides the sum by the number of tokens.

    :param loss_mask: 1.0 for each token that counts, shape [micro batch, sequence].
    :param check_for_nan: whether a loss that is not finite is an error.
    :param losses: per-token losses, same shape.
    :raises RuntimeError: if ``check_for_nan`` is set and the loss is not finite.
    """
    mask = loss_mask.view(-1).float()
    loss = torch.sum(losses.view(-1).float() * mask)
    if check_for_nan and not torch.isfinite(loss):
        what = "NaN" if torch.isnan(loss) else "Inf"
        raise RuntimeError(f"found {what} in local forward loss calculation")
    num_tokens = mask.sum().clone().detach().to(torch.int)
    report = torch.cat([loss.clone().detach().view(1), num_tokens.view(1)])
    return loss, num_tokens, {"lm loss": report}


def forward_step(
    args: argparse.Namespace, data_iterator: Any, model: torch.nn.Module
) -> tuple[torch.Tensor, Any]:
    """Run the model on one micro batch; the pipeline schedule calls this.

    :param args: complete arguments.
    :param data_iterator: see :func:`read_batch`.
    :param model: the model.
    """
    batch = read_batch(args, data_iterator)
    output = model(
        batch.get("tokens"),
        batch.get("position_ids"),
        batch.get("attention_mask"),
        labels=batch.get("labels"),
    )
    check = args.check_for_nan_in_loss_and_grad and model.training
    return output, partial(loss_function, batch.get("loss_mask"), check)
