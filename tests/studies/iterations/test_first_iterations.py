"""Small models through upstream's first iterations: the rules refuse what ends there, and take what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from first_iterations import BASE, EXPERTS, MACHINE, WORLD, each_feature, first_iterations, rules_broken
from upstream import UpstreamMissingError, find_upstream

from airflow_megatron.megatron.arguments.tables import argument_table, to_argv
from airflow_megatron.megatron.rules.command_line import reader
from airflow_megatron.megatron.rules.settings import Machine
from airflow_megatron.megatron.validation import check
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


def test_what_layer_specs_and_einops_are_refused_for() -> None:
    own = {"spec": ["my_package.layers", "my_spec"]}
    assert rules_broken(line(own), RELEASE) == []
    instances = line({"num_distributed_optimizer_instances": 2, "use_distributed_optimizer": True})["argv"]
    for machine in (Machine(packages=frozenset({"einops"}), is_complete=True), Machine()):
        found = check(instances, WORLD, RELEASE, machine=machine, first_iteration=True)
        assert "iteration.einops" not in [problem.rule for problem in found]


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
}
BEGUN_WITH: tuple[dict[str, Any], ...] = (
    {"lr": 0.0},
    {"clip_grad": -1.0},
    {"init_method_std": 0.0},
    {"hidden_dropout": 1.0},
    {"adam_beta1": 1.5, "optimizer": "sgd"},
    {"initial_loss_scale": 0.0},
    {"lr": None, "skip_train": True},
)
"""All but the last three were seen to begin in ``pretrain_gpt.py``; those do not use the value."""


@pytest.mark.parametrize("name", ENDED_BY_ITS_VALUE)
def test_values_that_end_a_job_as_it_begins(name: str) -> None:
    for value in ENDED_BY_ITS_VALUE[name]:
        assert rules_broken(line({name: value}), RELEASE) == [f"value.{name}"]
        assert rules_broken(line({name: value}, "core_v0.15.3"), "core_v0.15.3") == []  # was not asked


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
