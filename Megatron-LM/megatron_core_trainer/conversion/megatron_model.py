"""Load the whole Megatron model of a checkpoint in one process, in float32, for any precision and parallel layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatron.core.transformer.moe import moe_utils

from megatron_core_trainer import arguments, cpu_device, distributed, model
from megatron_core_trainer.conversion.checkpoint_weights import read_weights
from megatron_core_trainer.conversion.errors import ConversionError
from megatron_core_trainer.conversion.model_settings import PLAIN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

# Settings of experts that have the same name in megatron-core's configuration and on the command line.
_EXPERT_SETTINGS = (
    "moe_ffn_hidden_size",
    "moe_layer_freq",
    "moe_router_pre_softmax",
    "moe_router_topk",
    "moe_shared_expert_gate",
    "moe_shared_expert_intermediate_size",
    "num_experts",
)
_MOST_NAMES = 4


def unknown_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings that change what a model computes and that this module cannot build.

    :param settings: completed settings of the model.
    """
    known = (*arguments.MODEL_SETTINGS, *_EXPERT_SETTINGS)
    return [name for name, plain in PLAIN.items() if settings[name] != plain and name not in known]


def load_whole_model(settings: Mapping[str, Any], checkpoint: Path) -> Any:
    """Build the model and load its weights; this creates process groups with this process as the only member.

    :param settings: completed settings of the model.
    :param checkpoint: an ``iter_*`` directory.
    :raises ConversionError: if the checkpoint is incomplete, or lacks weights of the model.
    """
    built = _build(settings)
    expected = {name: value for name, value in built.state_dict().items() if value is not None}
    found = read_weights(checkpoint, settings, {name: value.shape for name, value in expected.items()})
    # With several pipeline stages the checkpoint contains tied embeddings twice.
    given = {
        name: value for name, value in found.items() if name in expected or name != "output_layer.weight"
    }
    unknown, missing = sorted(given.keys() - expected.keys()), sorted(expected.keys() - given.keys())
    if unknown or missing:
        differences = [f"unknown: {', '.join(unknown[:_MOST_NAMES])}"] if unknown else []
        differences += [f"missing: {', '.join(missing[:_MOST_NAMES])}"] if missing else []
        raise ConversionError(
            f"{checkpoint} does not have the weights of the model that it describes; {'; '.join(differences)}"
        )
    built.load_state_dict(given)
    return built.eval()


def _build(settings: Mapping[str, Any]) -> Any:
    args = arguments.build_parser().parse_args([])
    for name in (*arguments.MODEL_SETTINGS, *_EXPERT_SETTINGS):
        if name in settings:
            setattr(args, name, settings[name])
    args.group_query_attention = True  # without grouped queries there are as many groups as heads
    args.attention_dropout = args.hidden_dropout = 0.0
    args.attention_softmax_in_fp32 = True
    args.micro_batch_size = args.train_iters = 1
    args.lr, args.mock_data, args.world_size = 1.0, True, 1
    args.tokenizer_type, args.vocab_size = "NullTokenizer", 1
    arguments.run_on_cpu(args)
    arguments.complete_args(args)
    # The fused kernel computes another function: it approximates GELU by tanh.
    args.bias_gelu_fusion = bool(settings["bias_gelu_fusion"] and args.add_bias_linear and not args.swiglu)
    args.num_moe_experts = args.num_experts
    # megatron-core 0.16.1 defines it only with Transformer Engine, and tests whether it is None.
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    cpu_device.install_rng_tracker()
    distributed.initialize_alone("gloo")
    return model.build_model(args)


def megatron_logits(built: Any, tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return the logits of a model, in float32.

    :param built: the model.
    :param tokens: shape [sequences, length].
    :param vocab_size: number of logits to return for each token; the others are padding.
    """
    import torch

    with torch.no_grad():
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        logits: torch.Tensor = built(tokens, positions, None)
    return logits[..., :vocab_size].float()
