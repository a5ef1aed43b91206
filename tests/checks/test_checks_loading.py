"""A training that loads a checkpoint with another schedule is checked by the rules of its release."""

from __future__ import annotations

import pytest
from checked_chain import alps, checked, errors_of, line_of

from airflow_megatron.spec.model.schema import TrainerSection

UPSTREAM = """\
name: trunk
point: "lr{{ lr }}"
trainer: megatron_lm
release: RELEASE
megatron:
  {num_layers: 2, hidden_size: 64, num_attention_heads: 2, seq_length: 64, max_position_embeddings: 64,
   micro_batch_size: 1, global_batch_size: 4, mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 100,
   lr_decay_style: WSD, lr_warmup_iters: 10, min_lr: 1e-5, save_interval: 60, bf16: true}
sweep: {lr: [1e-3, 4e-3]}
stages:
  pretrain:
    kind: train
    megatron: {train_iters: 300, lr_decay_iters: 360, lr_wsd_decay_iters: 60}
  cooldown:
    kind: train
    parent: pretrain
    start: {checkpoint: 240}
    megatron: {train_iters: 300, lr_decay_iters: 300, lr_wsd_decay_iters: 60, override_opt_param_scheduler: true}
"""
CLUSTER = alps().model_copy(update={"trainers": {"megatron_lm": TrainerSection(checkout="/opt/Megatron-LM")}})


def upstream(release: str, *pairs: tuple[str, str]) -> str:
    text = UPSTREAM.replace("RELEASE", release)
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("release", "message"),
    [
        (
            "core_v0.16.1",
            "core_v0.16.1 continues with the min_lr of pretrain, despite override_opt_param_scheduler",
        ),
        ("core_v0.18.2", "core_v0.18.2 continues with the min_lr of pretrain"),
        ("core_v0.19.0", "core_v0.19.0 cannot load the optimizer of pretrain with another min_lr"),
    ],
)
def test_a_cooldown_to_zero_that_upstream_would_not_make(release: str, message: str) -> None:
    text = upstream(release, ("lr_decay_iters: 300,", "lr_decay_iters: 300, min_lr: 0,"))
    (problem,) = errors_of(text, CLUSTER)
    assert message in problem.message
    assert problem.hint == "keep the min_lr of pretrain; or write trainer: megatron_core, which uses new ones"
    assert problem.line == line_of(text, "megatron: {train_iters: 300, lr_decay_iters: 300")


@pytest.mark.parametrize("release", ["core_v0.16.1", "core_v0.19.0"])
def test_bounds_that_stay(release: str) -> None:
    assert checked(upstream(release), CLUSTER).warnings == ()
    weights_alone = (", override_opt_param_scheduler: true", ", min_lr: 0, no_load_optim: true")
    assert errors_of(upstream(release, weights_alone), CLUSTER) == []


@pytest.mark.slow
def test_our_trainer_takes_new_bounds() -> None:
    pairs = (("lr_decay_iters: 300,", "lr_decay_iters: 300, min_lr: 0,"), ("megatron_lm", "megatron_core"))
    assert errors_of(upstream("core_v0.16.1", *pairs), CLUSTER) == []


BLOCK = (
    "    megatron: {train_iters: 300, lr_decay_iters: 300, lr_wsd_decay_iters: 60, override_opt_param_scheduler: true}",
    "    megatron:\n      train_iters: 300\n      lr_decay_iters: 360\n      lr_wsd_decay_iters: 60",
)


@pytest.mark.parametrize("trainer", ["megatron_lm", "megatron_core"])
def test_another_schedule_is_reported_where_it_is_written(trainer: str) -> None:
    style = ("      lr_wsd_decay_iters: 60", "      lr_decay_style: linear")
    text = upstream("core_v0.16.1", ("megatron_lm", trainer), BLOCK, style)
    (problem,) = (item for item in errors_of(text, CLUSTER) if "its schedule differs" in item.message)
    assert "(lr_decay_style differs), which Megatron refuses to load" in problem.message
    assert problem.line == line_of(text, "lr_decay_style: linear")


@pytest.mark.slow
def test_another_learning_rate_after_a_rollback() -> None:
    rollback = ("sweep:", 'restart: {after_rollback: {lr: "{{ lr / 2 }}"}}\nsweep:')
    text = upstream("core_v0.16.1", rollback)
    kept, refused = errors_of(text, CLUSTER)
    assert "(lr differs), which Megatron refuses to load" in refused.message
    assert refused.line == kept.line == line_of(text, "restart:")
    assert "continues with the lr of cooldown" in kept.message
    ours = text.replace("megatron_lm", "megatron_core").replace(
        "{lr: ", "{override_opt_param_scheduler: true, lr: "
    )
    assert errors_of(ours, CLUSTER) == []


ADAM = ("lr_decay_style: WSD", "optimizer: adam, lr_decay_style: WSD")
COOLDOWN = ("lr_decay_iters: 300,", "lr_decay_iters: 300, optimizer: sgd,")


@pytest.mark.parametrize("trainer", ["megatron_lm", "megatron_core"])
def test_another_optimizer_in_the_branch(trainer: str) -> None:
    text = upstream("core_v0.16.1", ADAM, COOLDOWN, ("megatron_lm", trainer))
    (problem,) = errors_of(text, CLUSTER)
    assert (
        "its optimizer is sgd, and the checkpoint of pretrain that it loads has the state of adam: the job would end as"
        " it loads it"
    ) in problem.message
    assert problem.line == line_of(text, "megatron: {train_iters: 300, lr_decay_iters: 300, optimizer: sgd")
    assert "no_load_optim: true" in problem.hint


@pytest.mark.slow
@pytest.mark.parametrize("given", ["no_load_optim: true", "finetune: true", "optimizer: adamw"])
def test_another_optimizer_that_loads_no_state_of_another(given: str) -> None:
    pairs = (ADAM, COOLDOWN, ("optimizer: sgd,", f"optimizer: sgd, {given},".replace("sgd, optimizer: ", "")))
    assert errors_of(upstream("core_v0.16.1", *pairs, ("megatron_lm", "megatron_core")), CLUSTER) == []


@pytest.mark.parametrize(
    ("arguments", "loads"),
    [
        ("no_save_optim: true", False),
        ("no_save_optim: true, no_load_optim: true", True),
        ("no_save_rng: true", True),
        ("no_save_rng: true, ckpt_format: torch", False),
    ],
)
def test_checkpoints_without_a_state(arguments: str, loads: bool) -> None:
    text = upstream("core_v0.16.1", ("lr_decay_style: WSD", f"{arguments}, lr_decay_style: WSD"))
    problems = errors_of(text, CLUSTER)
    assert len(problems) == (0 if loads else 1)
    warnings = checked(text[: text.index("  cooldown:")], CLUSTER).warnings
    assert len(warnings) == (0 if loads else 1)
    for problem in problems:
        assert "the checkpoints of pretrain are saved with no_save_" in problem.message
        assert "core_v0.16.1 loads none of them without no_load_" in problem.message
        assert "the job would end at its start" in problem.message
        assert problem.line == line_of(text, "no_save_")
    for problem in warnings:
        assert "every attempt after the first would end at its start" in problem.message
    ours = text.replace("megatron_lm", "megatron_core").replace(", ckpt_format: torch", "")
    assert errors_of(ours, CLUSTER) == []


@pytest.mark.parametrize(
    ("branch", "hint"),
    [
        ("tensor_model_parallel_size: 2,", "make_vocab_size_divisible_by: 64"),
        ("make_vocab_size_divisible_by: 256,", "make_vocab_size_divisible_by: 128"),
        ("tensor_model_parallel_size: 2, make_vocab_size_divisible_by: 64,", None),
    ],
)
def test_a_branch_with_a_larger_padding_of_the_vocabulary(branch: str, hint: str | None) -> None:
    cooldown = ("lr_decay_iters: 300,", f"lr_decay_iters: 300, {branch}")
    two = ("sweep:", "slurm: {gpus_per_node: 2}\nsweep:")
    text = upstream("core_v0.16.1", cooldown, two, ("megatron_lm", "megatron_core"))
    found = checked(text, CLUSTER).warnings
    if hint is None:
        assert found == ()
        return
    (problem,) = found
    assert (
        "its vocabulary is padded to 256 tokens, and that of the checkpoint of pretrain that it loads to 128: the"
        " further ones are not trained, and the loss jumps"
    ) in problem.message
    assert problem.hint == hint
    assert problem.line == line_of(text, f"megatron: {{train_iters: 300, lr_decay_iters: 300, {branch}")


def test_a_branch_with_a_smaller_padding_of_the_vocabulary() -> None:
    trunk = ("lr_decay_iters: 360,", "lr_decay_iters: 360, make_vocab_size_divisible_by: 256,")
    (problem,) = checked(upstream("core_v0.16.1", trunk, ("megatron_lm", "megatron_core")), CLUSTER).warnings
    assert (
        "its vocabulary is padded to 128 tokens, and that of the checkpoint of pretrain that it loads to 256: the"
        " last ones are left out, and the loss changes"
    ) in problem.message
    assert problem.hint == "make_vocab_size_divisible_by: 256"


DIVIDED = ("lr_decay_iters: 300,", "lr_decay_iters: 300, use_distributed_optimizer: true,")


@pytest.mark.parametrize("trainer", ["megatron_lm", "megatron_core"])
@pytest.mark.parametrize(
    ("pair", "message", "hint"),
    [
        (DIVIDED, "pretrain, whose checkpoint it loads, does not divide", "use_distributed_optimizer: false"),
        (
            ("lr_decay_iters: 360,", "lr_decay_iters: 360, use_distributed_optimizer: true,"),
            "pretrain, whose checkpoint it loads, divides the optimizer's state",
            "use_distributed_optimizer: true",
        ),
    ],
    ids=["in the branch", "in the trunk"],
)
def test_a_distributed_optimizer_in_one_of_both(
    trainer: str, pair: tuple[str, str], message: str, hint: str
) -> None:
    (problem,) = errors_of(upstream("core_v0.16.1", pair, ("megatron_lm", trainer)), CLUSTER)
    assert message in problem.message
    assert hint in problem.hint


def test_a_distributed_optimizer_that_loads_no_state() -> None:
    pairs = (DIVIDED, ("lr_decay_iters: 300,", "lr_decay_iters: 300, no_load_optim: true,"))
    assert errors_of(upstream("core_v0.16.1", *pairs), CLUSTER) == []


TRUNK_DIVIDED = ("lr_decay_iters: 360,", "lr_decay_iters: 360, use_distributed_optimizer: true,")
SWEEP = "sweep: {lr: [1e-3, 4e-3]}"
TWO_GPUS = (SWEEP, f"{SWEEP}\nslurm: {{gpus_per_node: 2}}\nenv: {{CUDA_DEVICE_MAX_CONNECTIONS: 1}}")
IN_PARTS = ("lr_decay_iters: 300,", "lr_decay_iters: 300, tensor_model_parallel_size: 2,")


@pytest.mark.parametrize(
    ("trainer", "pairs", "hint"),
    [
        (
            "megatron_lm",
            (TRUNK_DIVIDED, DIVIDED),
            "tensor_model_parallel_size: 1; or dist_ckpt_optim_fully_reshardable: true in pretrain, before it",
        ),
        ("megatron_core", (TRUNK_DIVIDED, DIVIDED), "tensor_model_parallel_size: 1; or no_load_optim: true"),
        (
            "megatron_core",
            (("bf16: true", "bf16: true, optimizer: lion"),),
            "tensor_model_parallel_size: 1; or no_load_optim: true",
        ),
    ],
)
def test_an_optimizer_of_another_layout(trainer: str, pairs: tuple[tuple[str, str], ...], hint: str) -> None:
    (problem,) = errors_of(
        upstream("core_v0.16.1", *pairs, IN_PARTS, TWO_GPUS, ("megatron_lm", trainer)), CLUSTER
    )
    assert (
        "the optimizer's state in the checkpoint of pretrain that it loads has other model-parallel sizes"
        " (tensor_model_parallel_size 2 instead of 1)"
    ) in problem.message
    assert problem.hint.startswith(hint)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "release", "more"),
    [
        (
            "megatron_lm",
            "core_v0.16.1",
            ("bf16: true", "bf16: true, dist_ckpt_optim_fully_reshardable: true"),
        ),
        (
            "megatron_lm",
            "core_v0.16.1",
            ("lr_decay_iters: 300,", "lr_decay_iters: 300, no_load_optim: true,"),
        ),
        ("megatron_lm", "core_v0.14.0", ("bf16: true", "bf16: true")),
        ("megatron_core", "core_v0.16.1", None),
    ],
)
def test_an_optimizer_that_loads_with_another_layout(
    trainer: str, release: str, more: tuple[str, str] | None
) -> None:
    pairs = (IN_PARTS,) if more is None else (TRUNK_DIVIDED, DIVIDED, IN_PARTS, more)
    assert errors_of(upstream(release, *pairs, TWO_GPUS, ("megatron_lm", trainer)), CLUSTER) == []


HALF = ("lr_decay_iters: 300,", "lr_decay_iters: 300, bf16: false,")
SINGLE = ("bf16: true", "bf16: false")


@pytest.mark.parametrize("trainer", ["megatron_lm", "megatron_core"])
@pytest.mark.parametrize(
    ("pairs", "message", "hint"),
    [
        ((HALF,), "it trains in fp32, and pretrain, whose checkpoint it loads, in bf16", "bf16: true; or"),
        (
            (SINGLE, ("lr_decay_iters: 300,", "lr_decay_iters: 300, bf16: true,")),
            "it trains in bf16, and pretrain, whose checkpoint it loads, in fp32",
            "bf16: false; or",
        ),
    ],
    ids=["to fp32", "from fp32"],
)
def test_another_number_format_in_the_branch(
    trainer: str, pairs: tuple[tuple[str, str], ...], message: str, hint: str
) -> None:
    (problem,) = errors_of(upstream("core_v0.16.1", *pairs, ("megatron_lm", trainer)), CLUSTER)
    assert message in problem.message
    assert problem.hint.startswith(hint)


@pytest.mark.parametrize(
    "pairs",
    [
        (("lr_decay_iters: 300,", "lr_decay_iters: 300, bf16: false, fp16: true,"),),
        (HALF, ("lr_decay_iters: 300,", "lr_decay_iters: 300, no_load_optim: true,")),
        (SINGLE,),
    ],
    ids=["two halves", "no state", "both in fp32"],
)
def test_number_formats_that_fit(pairs: tuple[tuple[str, str], ...]) -> None:
    assert errors_of(upstream("core_v0.16.1", *pairs), CLUSTER) == []


def test_another_optimizer_after_a_rollback() -> None:
    rollback = ("sweep:", "restart: {after_rollback: {optimizer: sgd}}\nsweep:")
    text = upstream("core_v0.16.1", rollback, ("megatron_lm", "megatron_core"))
    for problem in errors_of(text, CLUSTER):
        assert "has the state of adam" in problem.message
        assert problem.line == line_of(text, "restart:")


SGD = ("lr_decay_style: WSD", "optimizer: sgd, lr_decay_style: WSD")


def test_sgd_that_upstream_cannot_continue() -> None:
    text = upstream("core_v0.16.1", SGD)
    (branch,) = errors_of(text, CLUSTER)
    assert (
        "core_v0.16.1 cannot load the state of sgd from checkpoints in the format torch_dist"
        in branch.message
    )
    assert branch.hint == "add ckpt_format: torch; or trainer: megatron_core"
    (warning,) = checked(text.partition("  cooldown:")[0], CLUSTER).warnings
    assert "torch_dist: every attempt after the first would end at its start" in warning.message


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair", [("bf16: true", "bf16: true, ckpt_format: torch"), ("megatron_lm", "megatron_core")]
)
def test_sgd_that_can_be_continued(pair: tuple[str, str]) -> None:
    assert checked(upstream("core_v0.16.1", SGD, pair), CLUSTER).warnings == ()


IN_FILES = ("bf16: true", "bf16: true, ckpt_format: torch")
TRUNK_IN_PARTS = ("lr_decay_iters: 360,", "lr_decay_iters: 360, tensor_model_parallel_size: 2,")


def in_branch(arguments: str) -> tuple[str, str]:
    return "lr_decay_iters: 300,", f"lr_decay_iters: 300, {arguments},"


@pytest.mark.parametrize("release", ["core_v0.12.0", "core_v0.16.1", "core_v0.19.0"])
def test_files_of_other_model_parallel_sizes(release: str) -> None:
    """Tried with core_v0.16.1 on a CPU, in both directions."""
    text = upstream(release, IN_FILES, IN_PARTS, TWO_GPUS)
    (problem,) = errors_of(text, CLUSTER)
    assert (
        "the checkpoint of pretrain that it loads has the format torch, and other model-parallel sizes"
        " (tensor_model_parallel_size 2 instead of 1)"
    ) in problem.message
    assert problem.hint == "tensor_model_parallel_size: 1; or ckpt_format: torch_dist in pretrain"
    assert problem.line == line_of(text, "lr_decay_iters: 300, tensor_model_parallel_size: 2")


@pytest.mark.parametrize(
    "pairs",
    [
        (IN_FILES, in_branch("pipeline_model_parallel_size: 2")),
        (IN_FILES, in_branch("tensor_model_parallel_size: 2, finetune: true")),
        (IN_FILES, in_branch("tensor_model_parallel_size: 2, no_load_optim: true")),
        (IN_FILES, in_branch("tensor_model_parallel_size: 2, use_checkpoint_args: true")),
        (
            IN_FILES,
            in_branch("tensor_model_parallel_size: 2, use_distributed_optimizer: true"),
            TRUNK_DIVIDED,
        ),
        (IN_FILES, TRUNK_IN_PARTS),
        (
            ("bf16: true", "bf16: true, ckpt_format: torch, num_experts: 4"),
            in_branch("expert_model_parallel_size: 2"),
        ),
        (("lr_decay_iters: 360,", "lr_decay_iters: 360, ckpt_format: torch,"), IN_PARTS),
    ],
    ids=lambda pairs: pairs[-1][1],
)
def test_files_of_other_sizes_are_of_no_use(pairs: tuple[tuple[str, str], ...]) -> None:
    assert any(
        "has the format torch, and other model-parallel sizes" in problem.message
        for problem in errors_of(upstream("core_v0.16.1", *pairs, TWO_GPUS), CLUSTER)
    )


def test_sizes_that_are_taken_from_the_checkpoint() -> None:
    given = "tensor_model_parallel_size: 2, use_checkpoint_args: true, use_mp_args_from_checkpoint_args: true"
    for pairs in ((IN_FILES,), (TRUNK_DIVIDED, DIVIDED)):
        assert errors_of(upstream("core_v0.16.1", *pairs, in_branch(given), TWO_GPUS), CLUSTER) == []


def test_arguments_of_the_checkpoint_leave_the_sizes() -> None:
    given = in_branch("tensor_model_parallel_size: 2, use_checkpoint_args: true")
    text = upstream("core_v0.16.1", TRUNK_DIVIDED, DIVIDED, given, TWO_GPUS)
    (problem,) = errors_of(text, CLUSTER)
    assert "has other model-parallel sizes (tensor_model_parallel_size 2 instead of 1)" in problem.message


@pytest.mark.parametrize("more", ["", ", auto_detect_ckpt_format: true", ", finetune: true"])
def test_the_format_of_the_checkpoint_that_another_format_does_not_read(more: str) -> None:
    text = upstream("core_v0.16.1", in_branch(f"ckpt_format: torch{more}"))
    (problem,) = errors_of(text, CLUSTER)
    assert (
        "its ckpt_format is torch, and the checkpoint of pretrain that it loads has the format torch_dist"
        in problem.message
    )
    assert problem.hint == "ckpt_format: torch_dist, which loads both"
    assert problem.line == line_of(text, "lr_decay_iters: 300, ckpt_format: torch")


def test_formats_that_are_read() -> None:
    trunk = ("lr_decay_iters: 360,", "lr_decay_iters: 360, ckpt_format: torch,")
    assert errors_of(upstream("core_v0.16.1", trunk), CLUSTER) == []
    assert errors_of(upstream("core_v0.16.1", IN_FILES), CLUSTER) == []


@pytest.mark.parametrize("release", ["core_v0.12.0", "core_v0.16.1", "core_v0.19.0"])
def test_a_distributed_optimizer_that_upstream_takes_from_the_newest_checkpoint(release: str) -> None:
    """Tried with core_v0.16.1: the branch counts on from the newest checkpoint, with the weights of the other."""
    text = upstream(release, IN_FILES, TRUNK_DIVIDED, DIVIDED)
    (problem,) = errors_of(text, CLUSTER)
    assert (
        f"with use_distributed_optimizer and the format torch, {release} loads the weights of checkpoint 240 of"
        " pretrain, and the optimizer's state and iteration of the newest one there"
    ) in problem.message
    assert (
        problem.hint
        == "ckpt_format: torch_dist in pretrain; or no_load_optim: true for an optimizer without a state"
    )
    assert problem.line == line_of(text, "start: {checkpoint: 240}")


@pytest.mark.parametrize(
    "pairs",
    [
        (IN_FILES, TRUNK_DIVIDED, in_branch("use_distributed_optimizer: true, no_load_optim: true")),
        (IN_FILES, TRUNK_DIVIDED, in_branch("use_distributed_optimizer: true, finetune: true")),
        (IN_FILES,),
        (TRUNK_DIVIDED, DIVIDED),
        (
            IN_FILES,
            TRUNK_DIVIDED,
            ("checkpoint: 240", "checkpoint: 300"),
            (
                "megatron: {train_iters: 300, lr_decay_iters: 300,",
                "megatron: {train_iters: 360, lr_decay_iters: 360,",
            ),
            (
                "lr_decay_iters: 360, lr_wsd_decay_iters: 60, o",
                "lr_decay_iters: 360, lr_wsd_decay_iters: 60, use_distributed_optimizer: true, o",
            ),
        ),
    ],
    ids=["no state", "only weights", "whole optimizer", "torch_dist", "newest"],
)
def test_an_optimizer_of_the_right_checkpoint(pairs: tuple[tuple[str, str], ...]) -> None:
    assert errors_of(upstream("core_v0.16.1", *pairs), CLUSTER) == []


FOUND = "    parent: pretrain\n    start: {checkpoint: 240}"


@pytest.mark.parametrize(
    ("source", "warned"),
    [
        ("{from: /old, iteration: 240}", True),
        ("{from: /old/iter_0000240}", True),
        ("{from: /old}", False),
        ("{from: /old, iteration: 240, mode: finetune}", False),
    ],
)
def test_a_distributed_optimizer_of_a_checkpoint_outside_the_sweep(source: str, warned: bool) -> None:
    outside = (FOUND, f"    start: {source}")
    text = upstream("core_v0.16.1", IN_FILES, TRUNK_DIVIDED, DIVIDED, outside)
    assert errors_of(text, CLUSTER) == []
    found = [item for item in checked(text, CLUSTER).warnings if "newest one there" in item.message]
    assert [item.line for item in found] == [line_of(text, "start: {from")] * warned
    for item in found:
        assert (
            "loads the weights of checkpoint 240 of /old, and the optimizer's state and iteration"
            in item.message
        )
        assert item.hint.startswith("a checkpoint in the format torch_dist; or")
