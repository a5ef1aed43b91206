"""The rules refuse exactly the small models that fail in upstream's first iterations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from first_iterations import BASE, EXPERTS, MACHINE, WORLD, each_feature, first_iterations, rules_broken
from upstream import UpstreamMissingError, find_upstream

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import argument_table, known_releases, with_extra
from airflow_megatron.megatron.rules.command_line import reader
from airflow_megatron.megatron.rules.settings import Machine
from airflow_megatron.megatron.validation.command_checks import check
from airflow_megatron.megatron.validation.repeated_checks import RepeatedChecks

RELEASE = "core_v0.16.1"
RELEASES = (RELEASE, "core_v0.17.1", "core_v0.18.2", "core_v0.19.0")
CHOSEN: dict[str, dict[str, Any]] = {
    "": {},
    "model.local-layer-norm": {"no_persist_layer_norm": False},
    "setup.virtual-stages": {"pipeline_model_parallel_size": 2, "num_virtual_stages_per_pipeline_rank": 3},
    "setup.layers-per-virtual-stage": {
        "pipeline_model_parallel_size": 2,
        "num_layers_per_virtual_pipeline_stage": -1,
    },
    "iteration.masked-softmax-fusion": {"masked_softmax_fusion": True, "pipeline_model_parallel_size": 2},
    "iteration.query-groups": {"group_query_attention": True, "num_query_groups": 3},
    "iteration.experts-without-transformer-engine": EXPERTS,
    "iteration.recomputed-mlp-bias": {"recompute_granularity": "selective", "recompute_modules": ["mlp"]},
    "iteration.evaluation-interval": {"eval_interval": None},
    "iteration.layer-spec": {
        "spec": ["megatron.core.models.gpt.gpt_layer_specs", "get_gpt_layer_local_spec"]
    },
    "iteration.odd-rotary": {"kv_channels": 7, "position_embedding_type": "rope"},
    "iteration.einops": {"num_distributed_optimizer_instances": 2, "use_distributed_optimizer": True},
}
"""By the rule that refuses them."""


def line(params: dict[str, Any], release: str = RELEASE) -> dict[str, Any]:
    given = {name: value for name, value in (BASE | params).items() if value is not None}
    return {"argv": to_argv(given, release), "world_size": WORLD}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """Command line → upstream's answer, for all lines of this module: upstream is imported once."""
    try:
        checkout = find_upstream(RELEASE)
    except UpstreamMissingError as error:
        pytest.skip(str(error))
    asked = [*CHOSEN.values(), *(params for _, params in PATTERNS), *(params for _, params in WITH_DATA)]
    lines = {json.dumps(line(params)): line(params) for params in asked}
    return dict(zip(lines, first_iterations([*lines.values()], checkout), strict=True))


def differing(answers: dict[str, dict[str, Any]], expected: list[tuple[bool, dict[str, Any]]]) -> list[Any]:
    """Return the lines whose answers differ from whether they should pass."""
    asked = [(passes, answers[json.dumps(line(params))], params) for passes, params in expected]
    return [(answer, params) for passes, answer, params in asked if answer["ok"] != passes]


@pytest.mark.trainer
def test_upstream_ends_where_the_rules_say(answers: dict[str, dict[str, Any]]) -> None:
    """``python tests/studies/iterations/first_iterations.py CHECKOUT RELEASE`` compares all features."""
    assert differing(answers, [(not rule, params) for rule, params in CHOSEN.items()]) == []


@pytest.mark.parametrize("rule", CHOSEN)
def test_the_rule_that_refuses(rule: str) -> None:
    assert rules_broken(line(CHOSEN[rule]), RELEASE) == ([rule] if rule else [])


def test_what_is_recomputed_without_biases() -> None:
    params = {"recompute_granularity": "selective", "recompute_modules": ["mlp"], "add_bias_linear": False}
    assert rules_broken(line(params), RELEASE) == []


@pytest.mark.parametrize("release", RELEASES)
def test_what_fused_softmax_needs(release: str) -> None:
    def rules(machine: Machine = MACHINE, **params: Any) -> list[str]:
        found = line({"masked_softmax_fusion": True, **params}, release)
        return [
            problem.rule
            for problem in check(found["argv"], WORLD, release, machine=machine, first_iteration=True)
        ]

    refused = ["iteration.masked-softmax-fusion"]
    assert rules() == refused
    for kind in ("learnable", "off-by-one"):  # PyTorch computes them, but the kernel checks its sizes
        assert rules(softmax_type=kind) == refused
    assert rules(Machine(packages=frozenset({"apex"}), is_complete=True)) == []
    # sizes and precisions for which the softmax of PyTorch is used
    for params in ({"bf16": None}, {"seq_length": 62}, {"seq_length": 16}, {"num_attention_heads": 2}):
        assert rules(**params) == []
    assert rules(num_attention_heads=2, micro_batch_size=2) == refused
    assert rules(tensor_model_parallel_size=4) == []


@pytest.mark.parametrize("release", RELEASES)
def test_experts_without_transformer_engine(release: str) -> None:
    """Only core_v0.16 does not report the missing kernel of the router."""
    refused = rules_broken(line(EXPERTS, release), release)
    assert refused == ["iteration.experts-without-transformer-engine"] * (release == RELEASE)


@pytest.mark.parametrize("release", RELEASES)
def test_experts_of_latent_size(release: str) -> None:
    latent = line(EXPERTS | {"moe_latent_size": 32}, release)
    assert "model.latent-experts" in rules_broken(latent, release)
    for machine in (Machine(transformer_engine=(2, 8), is_complete=True), Machine()):
        found = check(latent["argv"], WORLD, release, machine=machine, first_iteration=True)
        assert "model.latent-experts" not in [problem.rule for problem in found]


def test_what_layer_specs_and_einops_are_refused_for() -> None:
    own = {"spec": ["my_package.layers", "my_spec"]}
    assert rules_broken(line(own), RELEASE) == []
    instances = line({"num_distributed_optimizer_instances": 2, "use_distributed_optimizer": True})["argv"]
    for machine in (Machine(packages=frozenset({"einops"}), is_complete=True), Machine()):
        found = check(instances, WORLD, RELEASE, machine=machine, first_iteration=True)
        assert "iteration.einops" not in [problem.rule for problem in found]


@pytest.mark.parametrize("release", RELEASES)
def test_training_without_data(release: str) -> None:
    refused = ["data.missing"]
    assert rules_broken(line({"mock_data": None}, release), release) == refused
    for params in (
        {"data_path": ["/data/text_document"]},
        {"data_args_path": "/data/blend.txt"},
        {"per_split_data_args_path": "/data/splits.json"},
        {"train_data_path": ["/data/text_document"]},
        {"perform_rl_step": True},
    ):
        assert refused[0] not in rules_broken(line({"mock_data": None} | params, release), release)


def test_a_fork_may_name_its_data_by_other_arguments() -> None:
    table = with_extra(argument_table(RELEASE), {"--our-data": {}, "--our-switch": {"action": "StoreTrue"}})
    argv = [word for word in line({})["argv"] if word != "--mock-data"]

    def rules(*words: str) -> list[str]:
        checked = check(
            [*argv, *words], WORLD, RELEASE, machine=MACHINE, first_iteration=True, flags=reader(table)
        )
        return [problem.rule for problem in checked]

    assert rules() == ["data.missing"]
    assert rules("--our-data", "/data") == []


@pytest.mark.parametrize("release", RELEASES)
def test_layers_without_an_mlp(release: str) -> None:
    unfused = {"swiglu": True, "bias_swiglu_fusion": False}
    for params in ({}, unfused, {"tensor_model_parallel_size": 2}):
        assert rules_broken(line({"ffn_hidden_size": 0} | params, release), release) == []
    fused = line({"ffn_hidden_size": 0, "swiglu": True}, release)
    assert rules_broken(fused, release) == ["iteration.fused-swiglu-without-an-mlp"]
    assert rules_broken(line({"ffn_hidden_size": -4}, release), release) == ["model.positive-sizes"]


@pytest.mark.parametrize("release", RELEASES)
def test_vocabularies_of_tokenizers_without_files(release: str) -> None:
    old = release == RELEASE
    for size in (0, -1):
        assert rules_broken(line({"vocab_size": size}, release), release) == ["tokenizer.vocabulary-size"]
    null = {"tokenizer_type": "NullMultimodalTokenizer"}
    refused = "tokenizer.old-only" if old else "tokenizer.of-pictures"
    assert rules_broken(line(null, release), release) == [refused]
    if old:
        for params in ({"vocab_size": 0}, null, null | {"vocab_size": 0}):
            assert rules_broken(line({"legacy_tokenizer": True} | params), RELEASE) == []


@pytest.mark.parametrize("release", RELEASES)
def test_quick_geglu_is_not_fused(release: str) -> None:
    quick = {"quick_geglu": True}
    assert rules_broken(line(quick, release), release) == ["iteration.fused-quick-geglu"]
    for params in ({"bias_gelu_fusion": False}, {"add_bias_linear": False}):
        assert rules_broken(line(quick | params, release), release) == []


ENDED_BY_ITS_VALUE: dict[str, tuple[object, ...]] = {
    "lr": (None, float("inf")),
    "seed": (0, -1),
    "weight_decay": (-0.1,),
    "adam_beta1": (1.5,),
    "hidden_dropout": (1.5,),
    "attention_dropout": (-0.1,),
    "init_method_std": (-1.0,),
    "adam_eps": (-1.0,),
    "norm_epsilon": (-1.0, -5),
    "log_interval": (0, -1),
    "manual_gc_interval": (-1,),
    "tensorboard_log_interval": (0,),
    "num_workers": (-1,),
    "make_vocab_size_divisible_by": (0,),
    "rotary_base": (0, -1),
}
OF_ITS_OWN: dict[str, dict[str, Any]] = {
    "manual_gc_interval": {"manual_gc": True},
    "tensorboard_log_interval": {"tensorboard_dir": "/logs"},
    "rotary_base": {"position_embedding_type": "rope"},
}
"""Further arguments that the value needs to have an effect."""
ALLOWED_VALUES: tuple[dict[str, Any], ...] = (
    {"lr": 0.0},
    {"clip_grad": -1.0},
    {"norm_epsilon": 0.0},
    {"norm_epsilon": -1e-12},
    {"norm_epsilon": -1.0, "init_method_std": 10.0},
    {"norm_epsilon": -1.0, "check_for_nan_in_loss_and_grad": False},
    {"init_method_std": 0.0},
    {"hidden_dropout": 1.0},
    {"rotary_base": 0},
    {"rotary_base": 0, "position_embedding_type": "rope", "kv_channels": 2},
    {"rotary_base": 0, "position_embedding_type": "rope", "check_for_nan_in_loss_and_grad": False},
    {"adam_beta1": 1.5, "optimizer": "sgd"},
    {"manual_gc_interval": -1},
    {"initial_loss_scale": 0.0},
    {"lr": None, "skip_train": True},
)
"""All but the last four started in tests with ``pretrain_gpt.py``; those do not use the value."""


@pytest.mark.parametrize("name", ENDED_BY_ITS_VALUE)
def test_values_that_end_a_job_at_its_start(name: str) -> None:
    for value in ENDED_BY_ITS_VALUE[name]:
        params = {name: value, **OF_ITS_OWN.get(name, {})}
        assert rules_broken(line(params), RELEASE) == [f"value.{name}"]
        assert (
            rules_broken(line(params, "core_v0.15.3"), "core_v0.15.3") == []
        )  # this release has no such rule


@pytest.mark.parametrize("params", ALLOWED_VALUES, ids=str)
def test_values_that_do_not(params: dict[str, Any]) -> None:
    assert rules_broken(line(params), RELEASE) == []


def test_values_are_looked_at_in_each_of_many_command_lines() -> None:
    checks = RepeatedChecks(
        WORLD, RELEASE, machine=MACHINE, first_iteration=True, flags=reader(argument_table(RELEASE))
    )
    rules = [
        [problem.rule for problem in checks.problems(line({"weight_decay": value, "lr": rate})["argv"])]
        for value in (0.1, 0.2, -0.1, 0.0)
        for rate in (1e-3, 2e-3, float("inf"), 3e-3)
    ]
    right = [[], [], ["value.lr"], []]
    wrong = [["value.weight_decay"], ["value.weight_decay"], ["value.weight_decay", "value.lr"]]
    assert rules == [*right, *right, *wrong, wrong[0], *right]
    assert checks.saved > 5


@pytest.mark.slow
def test_features_are_for_each_release() -> None:
    counts = [len(each_feature(release)) for release in RELEASES]
    assert min(counts) > 120


WITHOUT_ENGINE = "iteration.experts-without-transformer-engine"
DENSE: dict[str, Any] = EXPERTS | {"moe_layer_freq": "[0]*4"}
"""Arguments of experts for a model that has none in any layer."""
PATTERNS: tuple[tuple[list[str], dict[str, Any]], ...] = (
    ([], DENSE),
    ([], DENSE | {"moe_router_topk": 5}),
    ([], DENSE | {"tensor_model_parallel_size": 2}),
    ([], DENSE | {"moe_router_fusion": True}),
    ([], DENSE | {"moe_latent_size": 32}),
    ([], DENSE | {"moe_grouped_gemm": True}),
    ([], DENSE | {"moe_token_dispatcher_type": "flex"}),
    ([], DENSE | {"moe_ffn_hidden_size": 49, "expert_tensor_parallel_size": 2}),
    ([], DENSE | {"moe_shared_expert_intermediate_size": 33, "tensor_model_parallel_size": 2}),
    ([], {"moe_shared_expert_intermediate_size": 33, "tensor_model_parallel_size": 2}),
    ([], DENSE | {"moe_apply_probs_on_input": True}),
    (
        ["model.probabilities-on-input", WITHOUT_ENGINE],
        EXPERTS | {"moe_apply_probs_on_input": True},
    ),
    (["iteration.fused-quick-geglu"], DENSE | {"quick_geglu": True, "add_bias_linear": None}),
    (["model.layer-pattern"], EXPERTS | {"moe_layer_freq": "[0]*3"}),
    (["model.layer-pattern"], EXPERTS | {"moe_layer_freq": "[0,0,0,2]"}),
    (["model.layer-pattern"], EXPERTS | {"moe_layer_freq": 0}),
    ([], {"moe_layer_freq": "[0]*3"}),
    ([WITHOUT_ENGINE], EXPERTS | {"moe_layer_freq": -2, "ffn_hidden_size": 0}),
    (
        ["iteration.fused-swiglu-without-an-mlp", WITHOUT_ENGINE],
        EXPERTS | {"moe_layer_freq": -2, "ffn_hidden_size": 0, "swiglu": True, "moe_ffn_hidden_size": 64},
    ),
    (
        [WITHOUT_ENGINE],
        EXPERTS
        | {
            "moe_layer_freq": 2,
            "num_layers": 1,
            "ffn_hidden_size": 0,
            "swiglu": True,
            "moe_ffn_hidden_size": 64,
        },
    ),
)
"""Patterns of layers with experts, and the rules that refuse them without Transformer Engine."""


@pytest.mark.parametrize(("rules", "params"), PATTERNS, ids=str)
def test_patterns_of_layers_with_experts(rules: list[str], params: dict[str, Any]) -> None:
    assert rules_broken(line(params), RELEASE) == rules


@pytest.mark.trainer
@pytest.mark.slow
def test_upstream_builds_the_layers_of_a_pattern(answers: dict[str, dict[str, Any]]) -> None:
    assert differing(answers, [(not rules, params) for rules, params in PATTERNS]) == []


BY_SAMPLES: dict[str, Any] = {"train_iters": None, "train_samples": 160}
NO_MOCK: dict[str, Any] = {"mock_data": None}
NO_EVALUATION: dict[str, Any] = {"eval_iters": 0}
FP16: dict[str, Any] = {"bf16": None, "fp16": True}
UNIFORM: dict[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform"}
PREDICTED: dict[str, Any] = {"mtp_num_layers": 1, "position_embedding_type": "rope"}
HYBRID: dict[str, Any] = {
    "hybrid_context_parallel": True,
    "calculate_per_token_loss": True,
    "rerun_mode": "disabled",
}
ASYNCHRONOUS: dict[str, Any] = {
    "save": "checkpoints",
    "save_interval": 100,
    "ckpt_format": "torch",
    "async_save": True,
}
WINDOW: dict[str, Any] = {"window_size": "(16,0)"}
PROFILED: dict[str, Any] = {
    "profile": True,
    "use_pytorch_profiler": True,
    "profile_step_start": 0,
    "profile_step_end": 2,
}
SET_UP: tuple[tuple[str, dict[str, Any]], ...] = (
    ("setup.optimizer-formats", {"exp_avg_dtype": "bf16"}),
    ("", {"exp_avg_dtype": "bf16", "skip_train": True}),
    ("setup.gradient-buffer", {"reuse_grad_buf_for_mxfp8_param_ag": True}),
    ("", {"reuse_grad_buf_for_mxfp8_param_ag": True, "skip_train": True}),
    ("setup.gradient-buckets", {"ddp_num_buckets": 0}),
    ("setup.gradient-buckets", {"ddp_num_buckets": 4, "ddp_bucket_size": 1000}),
    ("", {"ddp_num_buckets": 4}),
    ("setup.averaged-gradients", {"ddp_average_in_collective": True, "calculate_per_token_loss": True}),
    ("setup.sharp-group", {"sharp_enabled_group": "dp"}),
    ("setup.sharp-replicas", {"use_sharp": True, "sharp_enabled_group": "dp_replica"}),
    ("setup.optimizer-instances", {"num_distributed_optimizer_instances": 0}),
    ("setup.pipeline-ucc", {"pipeline_model_parallel_comm_backend": "ucc"}),
    ("setup.rerun-mode", {"rerun_mode": "report_stats"}),
    ("setup.checkpoint-arguments", {"use_checkpoint_args": True}),
    ("setup.distributed-sgd", {"optimizer": "sgd", "use_distributed_optimizer": True}),
    ("", {"optimizer": "sgd", "use_distributed_optimizer": True, "skip_train": True}),
    ("setup.conversion", {"ckpt_convert_format": "torch"}),
    ("setup.conversion", {"ckpt_convert_format": "torch", "ckpt_convert_save": "converted"}),
    ("setup.config-logger", {"config_logger_dir": "configurations"}),
    ("setup.config-logger", {"config_logger_dir": "configurations", "skip_train": True}),
    ("setup.hybrid-context-data", HYBRID),
    ("setup.hybrid-context-evaluation", HYBRID | {"skip_train": True}),
    ("", HYBRID | {"skip_train": True, "eval_iters": 0}),
    ("iteration.fp32-residual", {"fp32_residual_connection": True}),
    ("iteration.fp32-residual", {"fp32_residual_connection": True, "pipeline_model_parallel_size": 2}),
    ("iteration.fp32-residual", {"fp32_residual_connection": True, "normalization": "RMSNorm"}),
    ("iteration.fp32-residual", FP16 | {"fp32_residual_connection": True}),
    ("iteration.padded-vocabulary", {"padded_vocab_size": 64}),
    ("iteration.padded-vocabulary", {"padded_vocab_size": 128}),
    ("", {"padded_vocab_size": 129}),
    ("", {"padded_vocab_size": 128, "tensor_model_parallel_size": 2}),
    ("iteration.asynchronous-save", ASYNCHRONOUS | {"save_interval": 1}),
    ("", ASYNCHRONOUS | {"save": None}),
    ("", ASYNCHRONOUS | {"skip_train": True}),
    ("setup.data-cache", {"dataloader_fast_cache_load": True}),
    ("setup.data-cache", {"dataloader_defer_npy_index_mmap": True}),
    ("setup.external-data", {"dataloader_type": "external"}),
    ("setup.phases", {"phase_transition_iterations": "2,4"}),
    ("", BY_SAMPLES | {"phase_transition_iterations": "2"}),
    (
        "setup.split-of-paths",
        NO_MOCK | NO_EVALUATION | {"split": "99,1,0", "train_data_path": ["/data/text"]},
    ),
    ("setup.split", NO_MOCK | {"split": "a,b", "data_path": ["/data/text"]}),
    ("setup.window", {"window_size": "16"}),
    ("", WINDOW),
    ("setup.window-layers", WINDOW | {"window_attn_skip_freq": "[1]*3"}),
    ("", {"window_attn_skip_freq": "[1]*3"}),
    ("", WINDOW | {"window_attn_skip_freq": "[1]*5"}),
    ("setup.query-groups", {"group_query_attention": True, "num_query_groups": 0}),
    ("setup.query-groups", {"group_query_attention": True, "num_query_groups": -1}),
    ("setup.spec", {"attention_backend": "local", "spec": ["local"]}),
    ("model.batch-invariant", {"batch_invariant_mode": True, "attention_backend": "flash"}),
    ("value.rotary_percent", {"rotary_percent": -0.5, "position_embedding_type": "rope"}),
    ("", {"rotary_percent": -0.5}),
    ("value.mtp_num_layers", {"mtp_num_layers": -1, "position_embedding_type": "rope"}),
    (
        "value.check_weight_hash_across_dp_replicas_interval",
        {"check_weight_hash_across_dp_replicas_interval": 0},
    ),
    ("", {"check_weight_hash_across_dp_replicas_interval": -1}),
    ("value.loss_scale", FP16 | {"loss_scale": -1.0}),
    ("", FP16 | {"loss_scale": 0.0}),
    ("value.loss_scale", {"loss_scale": -1.0}),
    ("", {"bf16": None, "loss_scale": -1.0}),
    ("value.min_loss_scale", FP16 | {"min_loss_scale": 0.0}),
    ("", FP16 | {"loss_scale": 1.0, "min_loss_scale": 0.0}),
    ("value.loss_scale_window", FP16 | {"loss_scale_window": 0.0}),
    ("value.hysteresis", FP16 | {"hysteresis": 0}),
    ("setup.loss-scale", FP16 | {"initial_loss_scale": 1.0, "min_loss_scale": 2.0}),
    ("value.sgd_momentum", {"optimizer": "sgd", "sgd_momentum": -1.0}),
    ("", {"sgd_momentum": -1.0}),
    ("value.weight_decay", {"optimizer": "sgd", "weight_decay": -0.1}),
    ("value.seed", {"seed": 2**32}),
    ("value.embedding_init_method_std", {"embedding_init_method_std": -1.0}),
    ("setup.legacy-models", {"use_legacy_models": True, "ckpt_format": "torch"}),
    ("setup.recomputed-layers", UNIFORM | {"recompute_num_layers": 3}),
    ("setup.recomputed-layers", UNIFORM | {"recompute_num_layers": 4, "pipeline_model_parallel_size": 2}),
    ("setup.recomputed-layers", UNIFORM | {"recompute_num_layers": 0}),
    ("", UNIFORM | {"recompute_num_layers": 2}),
    ("", UNIFORM | {"recompute_num_layers": 2, "pipeline_model_parallel_size": 2}),
    ("", UNIFORM | {"recompute_method": "block", "recompute_num_layers": 3}),
    ("setup.recomputed-predictions", UNIFORM | PREDICTED | {"recompute_num_layers": 2}),
    ("", UNIFORM | PREDICTED | {"recompute_num_layers": 1}),
    ("", UNIFORM | PREDICTED | {"recompute_method": "block", "recompute_num_layers": 2}),
    ("setup.ramp-up", BY_SAMPLES | {"rampup_batch_size": [4, 4, 32]}),
    ("", BY_SAMPLES | {"rampup_batch_size": [8, 8, 32]}),
    ("setup.ramp-up", BY_SAMPLES | {"rampup_batch_size": [8, 4, 20]}),
    (
        "setup.ramp-up-start",
        BY_SAMPLES | {"rampup_batch_size": [4, 4, 32], "decrease_batch_size_if_needed": True},
    ),
    ("", BY_SAMPLES | {"rampup_batch_size": [8, 4, 20], "decrease_batch_size_if_needed": True}),
    ("", BY_SAMPLES | {"rampup_batch_size": [8, 4, 8]}),  # 8, then 16
    ("", BY_SAMPLES | {"rampup_batch_size": [8, 4, 8], "train_samples": 8}),
    ("", {"tensorboard_log_interval": 0}),
    ("setup.profiler-folder", PROFILED),
    ("", PROFILED | {"tensorboard_dir": "logs"}),
    ("", PROFILED | {"profile_ranks": [8]}),
    ("", PROFILED | {"profile_step_end": 11}),
    ("setup.late-groups", {"lazy_mpu_init": True}),
    ("setup.mock-conversations", {"sft": True}),
    ("schedule.long-warmup-iterations", {"lr_warmup_iters": 10}),
    ("", {"lr_warmup_iters": 9}),
    ("", {"lr_warmup_iters": 10, "lr_decay_iters": 11}),
    ("schedule.long-warmup-iterations", {"lr_warmup_iters": 2, "lr_decay_iters": 2}),
    ("schedule.long-warmup-iterations", {"lr_warmup_iters": 10, "override_opt_param_scheduler": True}),
    ("schedule.long-warmup-iterations", {"lr_warmup_iters": 10, "use_checkpoint_opt_param_scheduler": True}),
    ("schedule.long-warmup-iterations", {"lr_warmup_iters": 10, "lr_decay_style": "constant"}),
    ("", {"lr_warmup_iters": 10, "skip_train": True}),
    ("", {"lr_warmup_iters": -1}),
    ("schedule.long-warmup-samples", BY_SAMPLES | {"lr_warmup_samples": 160}),
    ("", BY_SAMPLES | {"lr_warmup_samples": 159}),
    ("schedule.long-warmup-samples", BY_SAMPLES | {"lr_warmup_samples": 16, "lr_decay_samples": 16}),
    ("schedule.long-warmup-fraction", {"lr_warmup_fraction": 1.0}),
    ("schedule.long-warmup-fraction", BY_SAMPLES | {"lr_warmup_fraction": 1.0, "lr_decay_samples": 500}),
    ("", {"lr_warmup_fraction": 0.99}),
    ("", {"lr_warmup_fraction": -0.1}),
    ("schedule.annealed-iterations", {"lr_decay_style": "WSD"}),
    ("schedule.annealed-iterations", {"lr_decay_style": "WSD", "lr_wsd_decay_samples": 16}),
    ("", {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 0}),
    ("", {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 200}),
    ("schedule.annealed-samples", BY_SAMPLES | {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 2}),
    ("", BY_SAMPLES | {"lr_decay_style": "WSD", "lr_wsd_decay_samples": 32}),
    ("", {"lr_decay_style": "WSD", "skip_train": True}),
)
"""By the rule that refuses them."""
WITH_DATA = tuple((rule, params) for rule, params in SET_UP if "mock_data" not in params)
"""Those that upstream can answer: a data set that is not there ends the job in any case."""


@pytest.mark.parametrize(("rule", "params"), SET_UP, ids=str)
def test_what_is_set_up_before_the_first_iteration(rule: str, params: dict[str, Any]) -> None:
    assert rules_broken(line(params), RELEASE) == ([rule] if rule else [])


RESILIENT = Machine(packages=frozenset({"nvidia_resiliency_ext"}), is_complete=True)
SAVED: dict[str, Any] = {"save": "/checkpoints", "save_interval": 5}
WANDB: dict[str, Any] = {"wandb_project": "a", "wandb_exp_name": "b", "wandb_save_dir": "/w"}
REINFORCED: dict[str, Any] = {
    "perform_rl_step": True,
    "langrl_env_config": "/environments.yaml",
    "grpo_prompts_per_step": 8,
    "grpo_group_size": 2,
}
NEEDS_PACKAGES: tuple[tuple[list[str], dict[str, Any], Machine], ...] = (
    (["setup.fault-tolerance", "setup.fault-tolerance-save"], {"enable_ft_package": True}, MACHINE),
    (["setup.fault-tolerance"], {"enable_ft_package": True} | SAVED, MACHINE),
    (["setup.fault-tolerance-save"], {"enable_ft_package": True}, RESILIENT),
    ([], {"enable_ft_package": True} | SAVED, RESILIENT),
    ([], {"inprocess_restart": True}, MACHINE),  # upstream warns, and trains
    ([], {"inprocess_restart": True, "inprocess_soft_timeout": 100.0}, MACHINE),
    ([], {"inprocess_restart": True}, RESILIENT),
    (
        ["setup.in-process-timeouts"],
        {"inprocess_restart": True, "inprocess_soft_timeout": 100.0},
        RESILIENT,
    ),
    ([], {"inprocess_soft_timeout": 100.0}, RESILIENT),
    (["setup.autoresume"], {"adlr_autoresume": True}, MACHINE),
    (["setup.autoresume"], {"adlr_autoresume": True}, Machine(transformer_engine=(2, 8), is_complete=True)),
    ([], {"adlr_autoresume": True}, Machine(packages=frozenset({"userlib"}))),
    ([], {"adlr_autoresume": True}, Machine(environment={"SUBMIT_SCRIPTS": "/scripts"})),
    (["setup.wandb"], WANDB, MACHINE),
    ([], WANDB, Machine()),
    ([], WANDB, Machine(packages=frozenset({"wandb"}), is_complete=True)),
    ([], WANDB, Machine(transformer_engine=(2, 8), is_complete=True)),
    (
        ["setup.wandb"],
        WANDB,
        Machine(transformer_engine=(2, 8), missing=frozenset({"wandb"}), is_complete=True),
    ),
    (["setup.reinforcement-packages"], REINFORCED, MACHINE),
    (["setup.reinforcement-packages"], REINFORCED, RESILIENT),
    ([], REINFORCED, Machine()),
    (["setup.reinforcement-environments"], REINFORCED | {"langrl_env_config": None}, Machine()),
    (["iteration.device-state"], {"log_device_memory_used": True, "log_interval": 1}, MACHINE),
    (["iteration.device-state"], {"log_straggler": True, "log_interval": 1}, MACHINE),
    (["iteration.device-state"], {"log_device_memory_used": True, "log_interval": 11}, MACHINE),
    ([], {"log_straggler": True, "log_interval": 11}, MACHINE),
    ([], {"log_device_memory_used": True, "log_interval": 1, "skip_train": True}, MACHINE),
    (
        [],
        {"log_device_memory_used": True, "log_interval": 1},
        Machine(packages=frozenset({"pynvml"}), is_complete=True),
    ),
)


@pytest.mark.parametrize(("rules", "params", "machine"), NEEDS_PACKAGES, ids=str)
def test_features_that_need_a_package(rules: list[str], params: dict[str, Any], machine: Machine) -> None:
    found = check(line(params)["argv"], WORLD, RELEASE, machine=machine, first_iteration=True)
    assert [problem.rule for problem in found if not problem.rule.startswith("model.")] == rules


@pytest.mark.parametrize(
    ("release", "package"), zip(RELEASES, ("transformers", *["openai"] * 3), strict=True)
)
def test_packages_of_reinforcement_learning(release: str, package: str) -> None:
    needed = {"wandb", "fastapi", "uvicorn", "httpx", package}
    for names in (needed, *(needed - {name} for name in needed)):
        machine = Machine(packages=frozenset(names), is_complete=True)
        found = check(
            line(REINFORCED, release)["argv"], WORLD, release, machine=machine, first_iteration=True
        )
        refused = [problem.rule for problem in found if problem.rule.startswith("setup.reinforcement")]
        assert refused == ["setup.reinforcement-packages"] * (names != needed)


def test_later_releases_recompute_an_incomplete_last_group() -> None:
    for layers, expected in ((3, []), (0, ["setup.recomputed-layers"])):
        found = line(UNIFORM | {"recompute_num_layers": layers}, "core_v0.19.0")
        assert rules_broken(found, "core_v0.19.0") == expected


def test_later_releases_configure_the_optimizer_without_training() -> None:
    for rule, params in (
        ("setup.optimizer-formats", {"exp_avg_dtype": "bf16"}),
        ("setup.gradient-buffer", {"reuse_grad_buf_for_mxfp8_param_ag": True}),
    ):
        later = line(params | {"skip_train": True}, "core_v0.19.0")
        assert rules_broken(later, "core_v0.19.0") == [rule]


@pytest.mark.trainer
@pytest.mark.slow
def test_upstream_ends_where_the_rules_of_the_set_up_say(answers: dict[str, dict[str, Any]]) -> None:
    assert differing(answers, [(not rule, params) for rule, params in WITH_DATA]) == []


def test_transformer_engine_does_not_help_other_optimizers() -> None:
    machine = Machine(transformer_engine=(2, 8))
    aware = {"use_precision_aware_optimizer": True, "use_distributed_optimizer": True}
    for params, expected in (
        (aware, []),
        (aware | {"exp_avg_dtype": "bf16"}, []),
        (aware | {"use_distributed_optimizer": None}, ["setup.precision-aware-optimizer"]),
        (aware | {"optimizer": "sgd"}, ["setup.precision-aware-optimizer"]),
    ):
        found = check(line(params)["argv"], WORLD, RELEASE, machine=machine, first_iteration=True)
        assert [problem.rule for problem in found] == expected


@pytest.mark.parametrize("release", known_releases())
def test_the_distributed_optimizer_is_for_adam(release: str) -> None:
    sgd = {"optimizer": "sgd"}
    assert rules_broken(line(sgd, release), release) == []
    assert rules_broken(line(sgd | {"use_distributed_optimizer": True}, release), release) == [
        "setup.distributed-sgd"
    ]


def test_megatron_fsdp_has_the_distributed_optimizer_from_0_18_on() -> None:
    machine = Machine(environment={}, is_complete=True)
    fsdp = {"optimizer": "sgd", "use_megatron_fsdp": True, "ckpt_format": "fsdp_dtensor"}
    for release in RELEASES:
        argv = line(fsdp, release)["argv"]
        found = check(argv, WORLD, release, machine=machine, first_iteration=True)
        assert [problem.rule for problem in found] == ["setup.distributed-sgd"] * (release >= "core_v0.18")
        assert all("drop --use-megatron-fsdp" in problem.hint for problem in found)


@pytest.mark.parametrize("release", known_releases())
def test_checkpoints_are_converted_from_one_folder_to_another(release: str) -> None:
    """Before core_v0.18 the arguments are accepted, and the job ends where it is initialized."""
    for params, refused in (
        ({}, True),
        ({"load": "/checkpoints"}, True),
        ({"load": "/checkpoints", "ckpt_convert_save": "/converted"}, False),
    ):
        found = line({"ckpt_convert_format": "torch"} | params, release)
        rule = "checkpoint.conversion" if release >= "core_v0.18" else "setup.conversion"
        assert rules_broken(found, release) == [rule] * refused
        assert bool(check(found["argv"], WORLD, release)) is (refused and release >= "core_v0.18")


@pytest.mark.parametrize("release", RELEASES)
def test_hybrid_context_parallelism(release: str) -> None:
    def rules(world: int = WORLD, **params: Any) -> list[str]:
        argv = line(HYBRID | {"global_batch_size": 12} | params, release)["argv"]
        found = check(argv, world, release, machine=Machine(), first_iteration=True)
        return [problem.rule for problem in found]

    conversations = {"sft": True, "mock_data": None, "data_path": ["/data/conversations"]}
    later = release >= "core_v0.19"
    assert rules(world=6) == ([] if later else ["setup.hybrid-context-data"])
    assert rules(world=3, **conversations) == ["setup.odd-hybrid-context"]
    assert rules(world=6, **conversations) == []
    reruns = conversations | {"rerun_mode": "validate_results"}
    assert rules(world=6, **reruns) == ["setup.hybrid-context-reruns"]
    assert rules(world=6, skip_train=True, **conversations) == []
    trained_on = {"mock_data": None, "data_path": ["/data/text"], "split": "1,0,0", "eval_iters": 0}
    assert rules(world=6, skip_train=True, **trained_on) == []


@pytest.mark.parametrize("release", RELEASES)
def test_fp32_residuals_need_other_norms(release: str) -> None:
    def rules(machine: Machine = MACHINE, **params: Any) -> list[str]:
        argv = line({"fp32_residual_connection": True} | params, release)["argv"]
        found = check(argv, WORLD, release, machine=machine, first_iteration=True)
        return [problem.rule for problem in found]

    refused = ["iteration.fp32-residual"]
    apex = Machine(packages=frozenset({"apex"}), is_complete=True)
    assert rules() == refused
    assert rules(apex) == []
    assert rules(apex, normalization="RMSNorm") == refused
    assert rules(Machine(transformer_engine=(2, 8)), transformer_impl="transformer_engine") == []
    # the first stage may have no layers
    stages = {"num_layers": 7, "pipeline_model_parallel_size": 8}
    assert rules(account_for_embedding_in_pipeline_split=True, **stages) == []


def test_formats_that_are_saved_asynchronously() -> None:
    for release in known_releases():
        old = release < "core_v0.16"  # releases from there on drop the flag in distributed formats
        legacy = ASYNCHRONOUS | {"use_persistent_ckpt_worker": True}
        assert rules_broken(line(legacy, release), release) == ["iteration.asynchronous-save"]
        assert rules_broken(line(legacy | {"ckpt_format": "torch_dist"}, release), release) == []
        assert rules_broken(line(legacy | {"async_save": None}, release), release) == []
        sharded = {
            "ckpt_format": "torch_dcp",
            "use_torch_fsdp2": True,
            "untie_embeddings_and_output_weights": True,
        }
        machine = Machine(environment={}, is_complete=True)
        for persistent, refused in ((True, release < "core_v0.17"), (None, old)):
            argv = line(legacy | sharded | {"use_persistent_ckpt_worker": persistent}, release)["argv"]
            found = check(argv, WORLD, release, machine=machine, first_iteration=True)
            assert [problem.rule for problem in found] == ["iteration.asynchronous-save"] * refused


def test_padded_vocabularies_of_mock_data() -> None:
    refused = ["iteration.padded-vocabulary"]
    large = {"vocab_size": 50257, "padded_vocab_size": 50000}
    assert rules_broken(line({"padded_vocab_size": 64, "seq_length": 60}), RELEASE) == refused
    assert (
        rules_broken(line({"padded_vocab_size": 64, "mock_data": None, "data_path": ["/text"]}), RELEASE)
        == []
    )
    assert rules_broken(line(large), RELEASE) == []  # few samples have the last token of a document
    assert rules_broken(line(large | {"train_iters": 1000}), RELEASE) == refused
    unknown = {"padded_vocab_size": 64, "vocab_size": None}
    assert rules_broken(line(unknown), RELEASE) == ["tokenizer.vocabulary-size"]
    later = line({"padded_vocab_size": 128}, "core_v0.18.2")  # the last token is 127
    assert rules_broken(later, "core_v0.18.2") == []


def test_splits_that_upstream_reads() -> None:
    for split in ("99,1,0", "1", "90 10", "0.9/0.1", "-1,1,0"):
        params = NO_MOCK | NO_EVALUATION | {"split": split, "data_path": ["/data/text"]}
        assert rules_broken(line(params), RELEASE) == []
    for split in ("", "0,0,0", "1,1,1,1", "1..2,1"):
        refused = rules_broken(line(NO_MOCK | {"split": split, "data_path": ["/data/text"]}), RELEASE)
        assert refused == ["setup.split"]
