"""Conversion of every architecture and checkpoint format, from models with random weights, biases and norms."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from trainer_harness import TIMEOUT_S

if TYPE_CHECKING:
    from trainer_harness import Data, Trainer

GROUPED = {"group_query_attention": True, "num_query_groups": 2}
UNTIED = {"untie_embeddings_and_output_weights": True}
GPT2 = {
    "swiglu": False,
    "normalization": "LayerNorm",
    "position_embedding_type": "learned_absolute",
}
SCALED = {"use_rope_scaling": True, "rotary_base": 500000}
EXPERTS = {"num_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 24}
SHARED = {"moe_shared_expert_intermediate_size": 40}
MULTIPLIERS = {
    "use_mup": True,
    "mup_base_hidden_size": 8,
    "mup_base_head_dim": 4.0,
    "mup_embedding_mult": 3.0,
    "mup_output_mult": 0.5,
}
OWN_ARCHITECTURE = """
extends: llama
config:
  max_position_embeddings: "{{ max_position_embeddings * 2 }}"
  note: {layers: "{{ num_layers }}", literal: "{ num_layers }"}
weights:
  model.norm.weight: null
  "model.norm.*": "decoder.final_layernorm.*"
"""
OWN_SCRIPT = """
import sys
from pathlib import Path
from safetensors.torch import load_file, save_file
output, source, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
weights = load_file(source)
if mode == "wrong":
    weights["model.norm.weight"] *= 1.01
assert (output / "config.json").is_file() and (output / "tokenizer.json").is_file()
save_file(weights, output / "model.safetensors", metadata={"format": "pt"})
"""


@dataclass(frozen=True)
class Converted:
    """The result of a case."""

    directory: Path
    status: int
    same_weights: bool

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    @property
    def config(self) -> dict[str, Any]:
        return json.loads((self.directory / "hf" / "config.json").read_text())


def cases(place: Path) -> list[dict[str, Any]]:
    """Return every case; see ``foreign_checkpoints.py``."""
    script = ["--converter", str(place / "script.py"), "--architecture", "llama"]
    script += ["--converter-argument={output}", f"--converter-argument={place}/llama/hf/model.safetensors"]
    return [
        {"name": "llama", "settings": {**GROUPED, **UNTIED}, "later_release": True},
        {"name": "llama_biases", "settings": {"add_bias_linear": True, "kv_channels": 16}},
        {"name": "qwen2", "settings": {**GROUPED, "add_qkv_bias": True}},
        {
            "name": "qwen3",
            "settings": {**UNTIED, "qk_layernorm": True, "kv_channels": 16, "add_qkv_bias": True},
        },
        {"name": "gpt2", "settings": {**GPT2, "add_bias_linear": True, "bias_gelu_fusion": True}},
        {"name": "gpt2_without_biases", "settings": {**GPT2, **UNTIED}},
        {"name": "mixtral", "settings": {**GROUPED, **EXPERTS}},
        {
            "name": "qwen3_moe",
            "settings": {
                **EXPERTS,
                "qk_layernorm": True,
                "moe_router_pre_softmax": True,
                "moe_layer_freq": [0, 1, 1, 1],
            },
        },
        {"name": "scaled", "settings": {**GROUPED, **SCALED}},
        {
            "name": "scaled_otherwise",
            "settings": {**SCALED, "rope_scaling_factor": 32.0, "small_init": False, "qk_layernorm": True},
        },
        {
            "name": "shared_expert",
            "settings": {**GROUPED, **EXPERTS, **SHARED, "moe_layer_freq": 2},
        },
        {
            "name": "gated_shared_expert",
            "settings": {
                **EXPERTS,
                **SHARED,
                "moe_shared_expert_gate": True,
                "add_qkv_bias": True,
                "moe_router_pre_softmax": True,
            },
            "layout": {"tensor": 2, "pipeline": 1, "expert": 1},
        },
        {"name": "multiplied", "settings": {"qk_layernorm": True, **MULTIPLIERS}},
        {"name": "multiplied_in_half_precision", "settings": {"bf16": True, **MULTIPLIERS}},
        {
            "name": "uneven_heads",
            "settings": {**UNTIED, **GROUPED, "num_attention_heads": 6, "kv_channels": 10},
        },
        {"name": "opensci", "settings": {"qk_layernorm": True, "add_bias_linear": True}},
        {
            "name": "ranks",
            "settings": {**GROUPED, **UNTIED},
            "layout": {"tensor": 2, "pipeline": 2, "expert": 1},
            "engine_names": True,
        },
        {
            "name": "ranks_interleaved",
            "settings": {**GPT2, "add_bias_linear": True},
            "layout": {"tensor": 1, "pipeline": 4, "expert": 1},
            "interleaved": True,
        },
        {
            "name": "ranks_of_experts",
            "settings": {**EXPERTS, "qk_layernorm": True},
            "layout": {"tensor": 1, "pipeline": 1, "expert": 2},
            "engine_names": True,
        },
        {"name": "own", "settings": {}, "arguments": ["--architecture", str(place / "own.yaml")]},
        {
            "name": "scripted",
            "settings": {**GROUPED, **UNTIED},
            "arguments": [*script, "--converter-argument=right"],
        },
        {
            "name": "scripted_wrong",
            "settings": {**GROUPED, **UNTIED},
            "arguments": [*script, "--converter-argument=wrong"],
        },
        {"name": "no_class", "settings": {"rotary_interleaved": True}},
        {"name": "library", "settings": {}, "arguments": ["--converter", "mbridge"]},
        {"name": "typo", "settings": {}, "arguments": ["--architecture", "lama"]},
    ]


@pytest.fixture(scope="module")
def converted(trainer: Trainer, data: Data, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Converted]:
    """Every case by name; one process imports all modules and forks for each case."""
    place = tmp_path_factory.mktemp("foreign")
    (place / "own.yaml").write_text(OWN_ARCHITECTURE)
    (place / "script.py").write_text(OWN_SCRIPT)
    process = subprocess.run(
        [
            *(trainer.python, "-W", "ignore", Path(__file__).with_name("foreign_checkpoints.py"), place),
            *(data.directory / "tokenizer", json.dumps(cases(place))),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(place)},
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    found = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    return {item["name"]: Converted(place / item.pop("name"), **item) for item in found}


CLASSES = {
    "llama": "LlamaForCausalLM",
    "llama_biases": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "gpt2_without_biases": "GPT2LMHeadModel",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "scaled": "LlamaForCausalLM",
    "scaled_otherwise": "Qwen3ForCausalLM",
    "shared_expert": "Qwen2MoeForCausalLM",
    "gated_shared_expert": "Qwen2MoeForCausalLM",
    "multiplied": "Qwen3ForCausalLM",
    "multiplied_in_half_precision": "LlamaForCausalLM",
    "uneven_heads": "Qwen2ForCausalLM",
    "opensci": "OpensciForCausalLM",
    "ranks": "LlamaForCausalLM",
    "ranks_interleaved": "GPT2LMHeadModel",
    "ranks_of_experts": "Qwen3MoeForCausalLM",
    "own": "LlamaForCausalLM",
    "scripted": "LlamaForCausalLM",
}


@pytest.mark.parametrize("name", CLASSES)
def test_the_converted_model_computes_the_same(name: str, converted: dict[str, Converted]) -> None:
    case = converted[name]
    assert case.status == 0, case.log
    assert case.config["architectures"] == [CLASSES[name]]
    assert case.same_weights
    difference, largest = re.findall(r"logit difference: (\S+) \(largest logit (\S+)\)", case.log)[0]
    # The weights are large enough for the logits to distinguish models.
    assert float(largest) > 3
    assert 0 < float(difference) < 1e-4


def test_settings_that_only_one_class_has(converted: dict[str, Converted]) -> None:
    assert converted["gpt2"].config["activation_function"] == "gelu_new"
    assert converted["gpt2_without_biases"].config["activation_function"] == "gelu"
    assert converted["qwen3_moe"].config["mlp_only_layers"] == [0]
    assert converted["qwen3_moe"].config["norm_topk_prob"] is False
    assert converted["opensci"].config["mlp_bias"] is True
    assert (converted["opensci"].directory / "hf" / "modeling_opensci.py").is_file()
    assert "mlp_bias" not in converted["qwen3"].config


def test_a_custom_architecture(converted: dict[str, Converted]) -> None:
    config = converted["own"].config
    assert config["max_position_embeddings"] == 128
    assert config["note"] == {"layers": 4, "literal": "{ num_layers }"}


REFUSALS = {
    "scripted_wrong": (1, "the converted model's logits differ from Megatron's"),
    "no_class": (2, "cannot express this model: rotary_interleaved is True, not False (nor can"),
    "library": (2, "--converter mbridge needs the package mbridge in the environment of"),
    "typo": (
        2,
        "there is no architecture lama; known: llama, qwen2, qwen3, gpt2, mixtral, qwen2_moe,",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_leave_no_files(name: str, converted: dict[str, Converted]) -> None:
    status, text = REFUSALS[name]
    case = converted[name]
    assert case.status == status
    assert text in case.log
    assert not (case.directory / "hf").exists()
