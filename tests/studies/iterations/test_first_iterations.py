"""Small models through upstream's first iterations: the rules refuse what ends there, and take what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from first_iterations import BASE, EXPERTS, MACHINE, WORLD, each_feature, first_iterations, rules_broken
from upstream import UpstreamMissingError, find_upstream

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import argument_table, with_extra
from airflow_megatron.megatron.rules.command_line import reader
from airflow_megatron.megatron.rules.settings import Machine
from airflow_megatron.megatron.validation.command_checks import check
from airflow_megatron.megatron.validation.repeated_checks import RepeatedChecks

if TYPE_CHECKING:
    from pathlib import Path

RELEASE = "core_v0.16.1"
RELEASES = (RELEASE, "core_v0.17.1", "core_v0.18.2", "core_v0.19.0")
CHOSEN: dict[str, dict[str, Any]] = {
    "": {},
    "model.local-layer-norm": {"no_persist_layer_norm": False},
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


@pytest.fixture
def checkout() -> Path:
    try:
        return find_upstream(RELEASE)
    except UpstreamMissingError as error:
        pytest.skip(str(error))


@pytest.mark.trainer
def test_upstream_ends_where_the_rules_say(checkout: Path) -> None:
    """``python tests/studies/iterations/first_iterations.py CHECKOUT RELEASE`` compares all features."""
    lines = [line(params) for params in CHOSEN.values()]
    answers = first_iterations(lines, checkout)
    assert [answer["ok"] for answer in answers] == [not rule for rule in CHOSEN], answers


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
    for kind in ("learnable", "off-by-one"):  # PyTorch's, but the kernel is asked for its sizes
        assert rules(softmax_type=kind) == refused
    assert rules(Machine(packages=frozenset({"apex"}), is_complete=True)) == []
    # sizes and precisions that PyTorch's own softmax is taken for
    for params in ({"bf16": None}, {"seq_length": 62}, {"seq_length": 16}, {"num_attention_heads": 2}):
        assert rules(**params) == []
    assert rules(num_attention_heads=2, micro_batch_size=2) == refused
    assert rules(tensor_model_parallel_size=4) == []


@pytest.mark.parametrize("release", RELEASES)
def test_experts_without_transformer_engine(release: str) -> None:
    """core_v0.16 alone forgets to say that the router's kernel is not there."""
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
    "log_interval": (0,),
    "num_workers": (-1,),
    "make_vocab_size_divisible_by": (0,),
    "rotary_base": (0, -1),
}
OF_ITS_OWN: dict[str, dict[str, Any]] = {"rotary_base": {"position_embedding_type": "rope"}}
"""What the value is used with, where the base model does not."""
BEGUN_WITH: tuple[dict[str, Any], ...] = (
    {"lr": 0.0},
    {"clip_grad": -1.0},
    {"init_method_std": 0.0},
    {"hidden_dropout": 1.0},
    {"rotary_base": 0},
    {"rotary_base": 0, "position_embedding_type": "rope", "kv_channels": 2},
    {"rotary_base": 0, "position_embedding_type": "rope", "check_for_nan_in_loss_and_grad": False},
    {"adam_beta1": 1.5, "optimizer": "sgd"},
    {"initial_loss_scale": 0.0},
    {"lr": None, "skip_train": True},
)
"""All but the last three were seen to begin in ``pretrain_gpt.py``; those do not use the value."""


@pytest.mark.parametrize("name", ENDED_BY_ITS_VALUE)
def test_values_that_end_a_job_as_it_begins(name: str) -> None:
    for value in ENDED_BY_ITS_VALUE[name]:
        params = {name: value, **OF_ITS_OWN.get(name, {})}
        assert rules_broken(line(params), RELEASE) == [f"value.{name}"]
        assert rules_broken(line(params, "core_v0.15.3"), "core_v0.15.3") == []  # was not asked


@pytest.mark.parametrize("params", BEGUN_WITH, ids=str)
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


def test_features_are_for_each_release() -> None:
    counts = [len(each_feature(release)) for release in RELEASES]
    assert min(counts) > 120
