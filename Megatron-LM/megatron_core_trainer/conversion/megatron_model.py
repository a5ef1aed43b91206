"""The whole Megatron model of a checkpoint in one process and in float32, however it was trained."""

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

# What megatron-core's own configuration calls as the command line does, and the model's experts depend on.
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
    """Return the names of settings that change what a model computes and that none built here has.

    :param settings: of the model, completed.
    """
    known = (*arguments.MODEL_SETTINGS, *_EXPERT_SETTINGS)
    return [name for name, plain in PLAIN.items() if settings[name] != plain and name not in known]


def load_whole_model(settings: Mapping[str, Any], checkpoint: Path) -> Any:
    """Build the model and load its weights; the process is alone in its process groups from then on.

    :param settings: of the model, completed.
    :param checkpoint: an ``iter_*`` directory.
    :raises ConversionError: if the checkpoint is incomplete, or does not have the model's weights.
    """
    built = _build(settings)
    expected = {name: value for name, value in built.state_dict().items() if value is not None}
    found = read_weights(checkpoint, settings, {name: value.shape for name, value in expected.items()})
    # Tied embeddings are there twice where a pipeline has several stages.
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
    args.group_query_attention = True  # with as many groups as heads, where the model has none
    args.attention_dropout = args.hidden_dropout = 0.0
    args.attention_softmax_in_fp32 = True
    args.micro_batch_size = args.train_iters = 1
    args.lr, args.mock_data, args.world_size = 1.0, True, 1
    args.tokenizer_type, args.vocab_size = "NullTokenizer", 1
    arguments.run_on_cpu(args)
    arguments.complete_args(args)
    # The fused kernel is not the same function: it approximates GELU by tanh.
    args.bias_gelu_fusion = bool(settings["bias_gelu_fusion"] and args.add_bias_linear and not args.swiglu)
    args.num_moe_experts = args.num_experts
    # megatron-core 0.16.1 defines it only beside Transformer Engine, and asks whether it is None.
    moe_utils.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)
    cpu_device.install_rng_tracker()
    distributed.initialize_alone("gloo")
    return model.build_model(args)


def megatron_logits(built: Any, tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return the logits of a model, in float32.

    :param built: the model.
    :param tokens: shape [sequences, length].
    :param vocab_size: logits of each token to return; the rest is padding.
    """
    import torch

    with torch.no_grad():
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        logits: torch.Tensor = built(tokens, positions, None)
    return logits[..., :vocab_size].float()
