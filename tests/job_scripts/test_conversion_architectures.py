"""Architecture files: the models that they can express, inheritance, and errors of invalid files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "Megatron-LM"))

from megatron_core_trainer.conversion.architecture import (
    choose_architecture,
    load_architecture,
    shipped_architectures,
)
from megatron_core_trainer.conversion.errors import ConversionError
from megatron_core_trainer.conversion.model_settings import model_settings

LLAMA = {
    **{
        "num_layers": 2,
        "hidden_size": 64,
        "ffn_hidden_size": 128,
        "num_attention_heads": 4,
        "kv_channels": 16,
    },
    **{"group_query_attention": False, "num_query_groups": 1, "max_position_embeddings": 128},
    **{
        "normalization": "RMSNorm",
        "swiglu": True,
        "position_embedding_type": "rope",
        "add_bias_linear": False,
    },
    **{"layernorm_epsilon": 1e-5, "untie_embeddings_and_output_weights": True},
}
GPT2 = {"normalization": "LayerNorm", "swiglu": False, "position_embedding_type": "learned_absolute"}
EXPERTS = {"num_experts": 4, "moe_router_topk": 2}


def settings(**changes: Any) -> dict[str, Any]:
    return model_settings({**LLAMA, **changes})


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "llama"),
        ({"add_bias_linear": True, "add_qkv_bias": True}, "llama"),
        ({"add_qkv_bias": True}, "qwen2"),
        ({"qk_layernorm": True}, "qwen3"),
        ({"qk_layernorm": True, "add_bias_linear": True}, "opensci"),
        (GPT2, "gpt2"),
        (EXPERTS, "mixtral"),
        ({**EXPERTS, "moe_router_pre_softmax": True, "qk_layernorm": True}, "qwen3_moe"),
        ({"num_moe_experts": 4, "moe_layer_freq": 2, "qk_layernorm": True}, "qwen3_moe"),
        ({**EXPERTS, "moe_shared_expert_intermediate_size": 8}, "qwen2_moe_ungated"),
        (
            {**EXPERTS, "moe_shared_expert_intermediate_size": 8, "moe_shared_expert_gate": True},
            "qwen2_moe",
        ),
        ({"moe_shared_expert_gate": True}, "llama"),
        ({"num_attention_heads": 6, "kv_channels": 10}, "qwen2"),
        ({"num_attention_heads": 6, "kv_channels": 10, "qk_layernorm": True}, "qwen3"),
        ({"num_attention_heads": 6, "kv_channels": 10, **EXPERTS}, "mixtral"),
        ({"moe_router_load_balancing_type": "sinkhorn"}, "llama"),
        ({**EXPERTS, "moe_router_load_balancing_type": ["aux_loss", "global_aux_loss"]}, "mixtral"),
        ({"use_rope_scaling": True}, "llama"),
        ({"rope_scaling_factor": 32.0}, "llama"),
        ({"use_rope_scaling": True, "rope_scaling_factor": 32.0, "small_init": False}, "llama"),
    ],
)
def test_the_first_that_fits(changes: dict[str, Any], name: str) -> None:
    assert choose_architecture(settings(**changes), None).name == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"multi_latent_attention": True},
            "LlamaForCausalLM cannot express this model: multi_latent_attention is True",
        ),
        ({"layernorm_zero_centered_gamma": True}, "apply_layernorm_1p is True, not False (nor can "),
        (
            {**EXPERTS, "moe_shared_expert_intermediate_size": 8, "qk_layernorm": True},
            "Qwen3MoeForCausalLM cannot express this model: moe_shared_expert_intermediate_size is 8, not None",
        ),
        (
            {"use_rope_scaling": True, "rope_scaling_factor": 32.0},
            "rope_scaling_factor is 32.0, not 8.0: upstream's pretrain_gpt.py does not give its model the factor",
        ),
        (
            {**EXPERTS, "moe_layer_freq": 2},
            "Qwen3MoeForCausalLM cannot express this model: qk_layernorm is False",
        ),
        ({**GPT2, "group_query_attention": True, "num_query_groups": 2}, "num_query_groups is 2, not 4"),
        (
            {**EXPERTS, "moe_router_topk": 1, "moe_router_load_balancing_type": "sinkhorn"},
            "moe_router_load_balancing_type is sinkhorn, not aux_loss (nor can ",
        ),
    ],
)
def test_settings_that_no_architecture_supports(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConversionError) as caught:
        choose_architecture(settings(**changes), None)
    assert message in str(caught.value)


def test_heads_that_do_not_divide_the_hidden_size_of_a_llama() -> None:
    reason = "hidden_size is 64, not a multiple of num_attention_heads: transformers refuses it"
    with pytest.raises(ConversionError, match=reason):
        choose_architecture(settings(num_attention_heads=6, kv_channels=10), "llama")


def test_balanced_choices_of_experts_are_not_normalized() -> None:
    experts = {**EXPERTS, "moe_ffn_hidden_size": 8}
    balanced = settings(**experts, qk_layernorm=True, moe_router_load_balancing_type="sinkhorn")
    config = choose_architecture(balanced, None).hugging_face_config(
        {**balanced, "vocab_size": 8, "eos": 0, "dtype": "float32"}
    )
    assert config["norm_topk_prob"] is False


def test_every_shipped_file_can_be_loaded() -> None:
    assert {load_architecture(name).name for name in shipped_architectures()} == set(shipped_architectures())


def test_what_an_architecture_extends(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(
        "extends: llama\nconfig: {note: '{{ num_layers + 1 }}', mlp_bias: null}\n"
    )
    (tmp_path / "second.yaml").write_text("extends: first.yaml\nrequires: {qk_layernorm: true}\n")
    second = load_architecture(str(tmp_path / "second.yaml"))
    assert second.obstacles(settings()) == {"qk_layernorm": "qk_layernorm is False, not True"}
    config = second.hugging_face_config({**settings(), "vocab_size": 100, "eos": 0, "dtype": "bfloat16"})
    assert config["note"] == 3
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 10000.0}
    assert not {"mlp_bias", "rope_scaling"} & config.keys()
    assert "attention_bias" in config


def test_no_weight_is_lost() -> None:
    known = {**settings(), "vocab_size": 100}
    with pytest.raises(
        ConversionError, match=r"llama\.yaml says nothing of decoder\.odd\.weight; add them under"
    ):
        load_architecture("llama").hugging_face_weights({"decoder.odd.weight": object()}, known)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- llama", "must hold the keys extends, requires, reasons, config, weights, files"),
        ("extends: llama\nweight: {}", "unknown key weight; known: extends, requires"),
        ("extends: llama\nweights: [a]", "weights must be a mapping"),
        (
            "extends: llama\nweights: {a: transpose b}",
            "weights.a: transpose is not an operation; known: doubled, gate",
        ),
        ("extends: lama", "there is no architecture lama; known: llama, qwen2"),
        ("config: {model_type: x}", "config.architectures must name the model's class"),
        ("extends: llama\nfiles: [no.py]", "files: there is no "),
        ("a: [", "cannot be read: "),
    ],
)
def test_wrong_files(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ConversionError) as caught:
        load_architecture(str(tmp_path / "own.yaml"))
    assert message in str(caught.value)


def test_an_expression_that_fails_is_reported_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text('extends: llama\nconfig: {note: "{{ num_layer }}"}\n')
    with pytest.raises(ConversionError, match=r"own\.yaml: config\.note: .*'num_layer' is undefined"):
        load_architecture(str(tmp_path / "own.yaml")).hugging_face_config(
            {**settings(), "vocab_size": 100, "eos": 0, "dtype": "bfloat16"}
        )
