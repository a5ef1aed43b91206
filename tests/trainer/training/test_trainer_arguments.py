"""The trainer's command line: what is accepted, completed and refused. Needs no torch."""

from __future__ import annotations

import contextlib
import re
import struct
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_harness import LOOP, MODEL, SCHEDULE, SCRIPTS

from airflow_megatron.megatron.arguments.tables import argument_table

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from pathlib import Path

sys.path.insert(0, str(SCRIPTS))

from megatron_core_trainer import arguments
from megatron_core_trainer.arguments import ArgumentError
from megatron_core_trainer.data.tokenizer import load_tokenizer
from megatron_core_trainer.distributed import first_host, place_from_environment
from megatron_core_trainer.optimization.optimizer_choices import parse_settings

CONSTANT = ("--lr-decay-style", "constant")
DEPTH = ("--enable-depth-scale", "--depth-base", "1")
MOCK = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "255")


def index(lengths: Sequence[int]) -> bytes:
    """Return the index of documents with uint16 tokens."""
    count = len(lengths)
    offsets = [2 * sum(lengths[:number]) for number in range(count)]
    numbers = struct.pack(f"<{count}i{count}q{count + 1}q", *lengths, *offsets, *range(count + 1))
    return b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, count, count + 1) + numbers


def parse(extra: Sequence[str] = (), *, world_size: int = 1, has_cuda: bool = False) -> argparse.Namespace:
    """Parse and complete a good command line with further arguments."""
    argv = [*MODEL, *SCHEDULE, *LOOP, *MOCK, "--save", "/checkpoints", *extra]
    args = arguments.parse_args(argv, world_size=world_size, has_cuda=has_cuda)
    arguments.complete_args(args)
    arguments.pad_vocab(args, load_tokenizer(args))
    return args


def test_a_schedule_without_decay_is_taken() -> None:
    assert parse(["--lr-decay-style", "WSD", "--lr-wsd-decay-iters", "0"]).lr_wsd_decay_iters == 0


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--num-expert", "4"], "has no argument '--num-expert'"),
        (["--save-intervall", "4"], "did you mean --save-interval"),
        (["--global-batch-size", "5"], "--global-batch-size (5) must be a multiple of"),
        (["--lr-wsd-decay-iters", "13"], "--lr-wsd-decay-iters (13) must not exceed --lr-decay-iters (12)"),
        (["--train-samples", "48"], "--train-iters does not go with --train-samples"),
        (["--lr-decay-samples", "48"], "--lr-decay-samples does not go with --train-iters"),
        (["--rampup-batch-size", "1", "1", "8"], "--rampup-batch-size does not go with --train-iters"),
        (["--wandb-project", "p"], "--wandb-project needs --tensorboard-dir"),
        (
            ["--wandb-project", "p", "--wandb-exp-name", "", "--tensorboard-dir", "/t"],
            "--wandb-exp-name to be more than an empty text",
        ),
        (["--data-args-path", "/nowhere"], "give exactly one of --mock-data, --data-path"),
        (["--lr-wsd-decay-iters", "-1"], "--lr-wsd-decay-iters must not be negative"),
        (["--lr-warmup-iters", "12"], "--lr-warmup-iters (12) must be below --lr-decay-iters (12)"),
        (["--tensor-model-parallel-size", "2"], "the number of processes (1) must be a multiple of"),
        (
            ["--num-attention-heads", "5"],
            "--hidden-size (32) must be a multiple of --num-attention-heads (5)",
        ),
        (["--max-position-embeddings", "32"], "must reach --seq-length (64)"),
        (["--train-data-path", "/nowhere/x"], "give exactly one of --mock-data, --data-path"),
        (
            ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "/nowhere"],
            "--tokenizer-model must name a directory",
        ),
        (["--ckpt-step", "3"], "--ckpt-step needs --load"),
        (["--overlap-param-gather"], "needs --use-distributed-optimizer"),
        (["--min-lr", "1"], "--min-lr (1.0) must lie between 0 and --lr"),
        (["--exit-signal", "SIGNONE"], "no signal is called 'SIGNONE'"),
        (["--hidden-size", "many"], "invalid int value: 'many'"),
        (
            ["--optimizer", "lamb", "--use-distributed-optimizer"],
            "divides the state of adam, adamw, sgd only",
        ),
        (["--optimizer-settings", "betas=(0.9,0.95)"], "adam has flags of its own"),
        (["--optimizer", "lion", "--optimizer-settings", "betas"], "takes NAME=VALUE, not 'betas'"),
        (["--optimizer", "adamwschedulefree"], "give --lr-decay-style constant"),
        (["--lr_constant_plus_cooldown"], "goes with --lr-decay-style constant"),
        (
            [*CONSTANT, "--lr_constant_plus_cooldown", "--lr_constant_plus_cooldown_frac", "0.9"],
            "must fit into --lr-decay-iters (12)",
        ),
        (
            ["--lr-decay-style", "infinite-cosine"],
            "0 < --min-lr (0.001) < --constant-lr (0.00011) <= --lr (0.01)",
        ),
        (
            ["--lr-decay-style", "infinite-cosine", "--constant-lr", "2e-3", "--lr-cooldown-fraction", "0.8"],
            "must leave something of --lr-decay-iters (12)",
        ),
        (["--lr-finder", "--load", "/c"], "give --finetune with --load"),
        (
            ["--lr-finder", "--lr-finder-start-lr", "2"],
            "must be above zero and below --lr-finder-end-lr (1.0)",
        ),
        (["--lr-finder", "--lr-finder-stop-factor", "-1"], "must be 0, for never, or at least 1"),
        (["--lr-finder", "--train-iters", "9"], "--train-iters (9) must be at least 10 with --lr-finder"),
        (["--mup-base-hidden-size", "16"], "--mup-base-hidden-size has no meaning without --use-mup"),
        (["--use-mup", "--mup-base-hidden-size", "0"], "--mup-base-hidden-size must be above zero"),
        (["--use-mup", "--optimizer", "lamb"], "--use-mup knows no rule for --optimizer lamb"),
        (["--use-mup", "--depth-base", "2"], "--depth-base has no meaning without --enable-depth-scale"),
        (["--use-mup", "--enable-depth-scale"], "--depth-base"),
        (["--use-mup", *DEPTH, "--depth-alpha", "2"], "must lie between 0.5 and 1 (CompleteP), not 2.0"),
        (["--use-mup", *DEPTH, "--optimizer", "sgd"], "not for --optimizer sgd"),
    ],
)
def test_wrong_combinations_are_refused(extra: list[str], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        parse(extra)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("flag", "value", "wanted"),
    [
        ("--kv-channels", "0", "must be above zero, not 0"),
        ("--make-vocab-size-divisible-by", "0", "must be above zero, not 0"),
        ("--make-vocab-size-divisible-by", "-128", "must be above zero, not -128"),
        ("--rotary-base", "0", "must be above zero, not 0"),
        ("--rotary-percent", "-1", "must not be negative, not -1.0"),
        ("--norm-epsilon", "-1", "must not be negative, not -1.0"),
        ("--attention-dropout", "-0.1", "must lie between 0 and 1, not -0.1"),
        ("--hidden-dropout", "2", "must lie between 0 and 1, not 2.0"),
        ("--adam-beta1", "-1", "must lie in [0, 1), not -1.0"),
        ("--adam-beta2", "1", "must lie in [0, 1), not 1.0"),
        ("--adam-eps", "-1", "must not be negative, not -1.0"),
        ("--num-workers", "-1", "must not be negative, not -1"),
        ("--distributed-timeout-minutes", "-1", "must not be negative, not -1"),
        ("--tensorboard-log-interval", "0", "must be above zero, not 0"),
        ("--vocab-size", "-1", "must not be negative, not -1"),
        ("--lr", "inf", "must be a finite number, not inf"),
        ("--lr-warmup-init", "nan", "must be a finite number, not nan"),
        ("--weight-decay", "1e400", "must be a finite number, not inf"),
        ("--weight-decay", "nan", "must be a finite number, not nan"),
        ("--init-method-std", "inf", "must be a finite number, not inf"),
        ("--norm-epsilon", "nan", "must not be negative, not nan"),
        ("--seed", "4294967296", "must be below 4294967296, not 4294967296"),
    ],
)
def test_values_that_would_end_a_training_at_its_start(flag: str, value: str, wanted: str) -> None:
    with pytest.raises(ArgumentError) as error:
        parse(["--position-embedding-type", "rope", flag, value])
    assert str(error.value) == f"{flag} {wanted}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lion rho=1", "has no setting 'rho'; it has betas, fixed_decay, foreach, maximize, weight_decouple"),
        ("lion lr=1", "has no setting 'lr'; it has betas, "),
        ("lars nesterov=no", "takes nesterov=True or nesterov=False, not 'no'"),
        ("soap eps=small", "takes a number as eps, not 'small'"),
        ("adopt eps=None", "takes a number as eps, not None"),
        ("lion betas=(0.9,)", "takes 2 numbers as betas, such as betas=(0.9, 0.99), not (0.9,)"),
        ("lion betas=0.9", "takes 2 numbers as betas, such as betas=(0.9, 0.99), not 0.9"),
        ("ademamix betas=(0.9,0.99)", "takes 3 numbers as betas, such as betas=(0.9, 0.99, 0.999), not"),
    ],
)
def test_optimizer_settings_that_the_library_does_not_take(words: str, message: str) -> None:
    name, setting = words.split()
    with pytest.raises(ArgumentError, match="^" + re.escape(f"--optimizer {name} {message}")):
        parse(["--optimizer", name, "--optimizer-settings", setting])


@pytest.mark.parametrize(
    "words",
    [
        "lion betas=[0.9,0.95] foreach=None",
        "lars nesterov=0 momentum=0",
        "muon nesterov=true ns_coeffs=original adamw_lr=1e-3 ns_steps=5",
        "sophia hessian_distribution=gaussian p=1",
        "soap shampoo_beta=0.9 merge_dims=False",
    ],
)
def test_optimizer_settings_that_the_library_takes(words: str) -> None:
    name, *settings = words.split()
    assert parse(["--optimizer", name, "--optimizer-settings", *settings]).optimizer == name


def test_flags_of_optimizers_as_in_yaml() -> None:
    assert parse_settings(["nesterov=false", "maximize=true", "data_format=False"]) == {
        "nesterov": False,
        "maximize": True,
        "data_format": False,
    }


def split(shares: str, extra: Sequence[str] = ()) -> argparse.Namespace:
    """Parse a good command line whose data set is divided."""
    argv = [*MODEL, *SCHEDULE, *LOOP, *MOCK[1:], "--data-path", "/nowhere/x", "--split", shares, *extra]
    args = arguments.parse_args(argv, world_size=1, has_cuda=False)
    arguments.complete_args(args)
    return args


@pytest.mark.parametrize(
    "shares",
    ["abc", "", "0", "0,0,0", "1,1,1,1", "90,5,3,2", "1e2,5,5", "90..1,5,5", "9" * 400, ".", "-1,1,1,1"],
)
def test_a_split_without_shares_of_three_parts(shares: str) -> None:
    argv = [*MODEL, *SCHEDULE, *LOOP, *MOCK[1:], "--data-path", "/nowhere/x", f"--split={shares}"]
    args = arguments.parse_args(argv, world_size=1, has_cuda=False)
    with pytest.raises(
        ArgumentError, match=r"^--split \S+ must give shares of training, .* such as 969,30,1$"
    ):
        arguments.complete_args(args)


def test_a_split_without_training_data() -> None:
    with pytest.raises(ArgumentError, match=r"^--split 0,50,50 leaves nothing for training; give the first"):
        split("0,50,50")
    assert split("0,50,50", ["--skip-train"]).split == "0,50,50"


@pytest.mark.parametrize("shares", ["1", "100,0,0", "90/5/5", "0.9,0.05,0.05", "[90, 5, 5]", ".9,.1"])
def test_splits_that_are_taken(shares: str) -> None:
    assert split(shares).split == shares


@pytest.mark.parametrize("name", ["embedding-mult", "output-mult", "base-head-dim", "attn-scale-power"])
def test_multipliers_of_mup_without_end(name: str) -> None:
    words = ["--use-mup", "--mup-base-hidden-size", "16", f"--mup-{name}", "inf"]
    with pytest.raises(ArgumentError, match=f"^--mup-{name} must be a finite number, not inf$"):
        parse(words)


def test_a_constant_phase_that_is_no_number() -> None:
    infinite = [
        "--lr-decay-style",
        "infinite-cosine",
        "--constant-lr",
        "2e-3",
        "--lr-cooldown-fraction",
        "0.3",
    ]
    with pytest.raises(ArgumentError, match=r"^--lr-constant-fraction must not be negative, not nan$"):
        parse([*infinite, "--lr-constant-fraction", "nan"])


def test_names_of_no_letters() -> None:
    with pytest.raises(ArgumentError, match=r"^--tokenizer-model is empty; give a directory with tokenizer"):
        parse(["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", ""])
    argv = [*MODEL, *SCHEDULE, *LOOP, *MOCK[1:], "--train-data-path", "0.5", "", "0.5", "/nowhere/x"]
    args = arguments.parse_args(argv, world_size=1, has_cuda=False)
    with pytest.raises(ArgumentError, match=r"^--train-data-path names a data set with an empty text$"):
        arguments.complete_args(args)


def test_a_growing_weight_decay_without_end() -> None:
    growth = ["--weight-decay-incr-style", "linear", "--start-weight-decay", "0", "--end-weight-decay", "inf"]
    with pytest.raises(ArgumentError, match=r"^--end-weight-decay must be a finite number, not inf$"):
        parse(growth)


def test_a_seed_that_only_the_first_pipeline_stage_takes() -> None:
    stages = ["--pipeline-model-parallel-size", "2"]
    assert parse([*stages, "--seed", "4294967195"], world_size=2).seed == 4294967195
    with pytest.raises(ArgumentError, match=r"^--seed must be below 4294967196, not 4294967196$"):
        parse([*stages, "--seed", "4294967196"], world_size=2)


@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP", "9"])
def test_an_exit_signal_that_no_process_handles(signal: str) -> None:
    with pytest.raises(ArgumentError, match=r"^--exit-signal SIG(KILL|STOP) does not go with"):
        parse(["--exit-signal-handler", "--exit-signal", signal])
    assert parse(["--exit-signal", signal]).exit_signal > 0


def test_a_momentum_that_sgd_does_not_take() -> None:
    with pytest.raises(ArgumentError, match=r"--sgd-momentum must not be negative, not -1\.0"):
        parse(["--optimizer", "sgd", "--sgd-momentum", "-1"])
    with pytest.raises(ArgumentError, match=r"--sgd-momentum must be a finite number, not inf"):
        parse(["--optimizer", "sgd", "--sgd-momentum", "inf"])


@pytest.mark.parametrize(
    "words",
    [
        ["--hidden-dropout", "1", "--attention-dropout", "0"],
        ["--adam-beta1", "0", "--adam-beta2", "0", "--adam-eps", "0"],
        ["--optimizer", "sgd", "--adam-beta1", "2", "--sgd-momentum", "0"],
        ["--position-embedding-type", "learned_absolute", "--rotary-base", "0"],
        ["--position-embedding-type", "rope", "--rotary-percent", "0"],
        ["--tensorboard-log-interval", "-1", "--num-workers", "0", "--distributed-timeout-minutes", "0"],
        ["--norm-epsilon", "0", "--lr-warmup-iters", "-1"],
        ["--lr", "0", "--min-lr", "0", "--lr-warmup-init", "-1", "--clip-grad", "-1"],
        ["--seed", "4294967295", "--exit-signal", "SIGUSR1", "--exit-signal-handler"],
    ],
)
def test_unusual_values_with_which_a_training_works(words: list[str]) -> None:
    assert parse(words).train_iters == 12


@pytest.mark.parametrize(
    "schedule",
    [
        ["--lr-warmup-samples", "24", "--lr-decay-samples", "48", "--lr-wsd-decay-samples", "8"],
        ["--lr-warmup-iters", "3000", "--lr-decay-iters", "2000", "--lr-wsd-decay-iters", "5000"],
        ["--lr-warmup-fraction", "0.5", "--lr-warmup-init", "5"],
        ["--lr-decay-style", "infinite-cosine"],
    ],
)
def test_a_search_ignores_the_schedule_of_a_training(schedule: list[str]) -> None:
    args = parse(["--lr-finder", *schedule])
    assert (args.lr_warmup_iters, args.lr_warmup_samples, args.lr_warmup_fraction) == (0, 0, None)
    assert (args.lr_decay_iters, args.lr_decay_style) == (args.train_iters, "constant")


def test_a_search_counts_iterations() -> None:
    argv = [*MODEL, *MOCK, "--micro-batch-size", "2", "--train-samples", "100", "--lr-finder", "--save", "/c"]
    args = arguments.parse_args(argv, world_size=1, has_cuda=False)
    with pytest.raises(
        ArgumentError, match="--train-iters, the number of its steps, in place of --train-samples"
    ):
        arguments.complete_args(args)


def test_data_paths_are_prefixes() -> None:
    argv = [
        *MODEL,
        *SCHEDULE,
        "--tokenizer-type",
        "NullTokenizer",
        "--vocab-size",
        "9",
        "--data-path",
        "0.5",
        "/no/x",
    ]
    args = arguments.parse_args(argv, world_size=1, has_cuda=False)
    arguments.complete_args(args)
    with pytest.raises(ArgumentError, match=r"/no/x\.idx does not exist: data paths are prefixes"):
        arguments.check_machine(args)


@pytest.mark.parametrize(
    ("documents", "words", "message"),
    [
        (
            4,
            ["--data-path", "PREFIX", "--split", "90,10,0"],
            "--split 90,10,0 leaves no document of .*4 documents",
        ),
        (
            20,
            ["--data-path", "PREFIX", "--split", "949,50,1"],
            r"\(20 documents\) for test; give this part a larger",
        ),
        (
            400,
            ["--data-path", "PREFIX"],
            r"--split 969,30,1 leaves no document of .* \(400 documents\) for test",
        ),
        (0, ["--train-data-path", "PREFIX"], "--train-data-path: .* contains no document"),
        (None, ["--train-data-path", "PREFIX"], "not an index of a data set: it has 3 bytes"),
        (4, ["--data-path", "PREFIX", "--split", "70,30,0"], None),
        (4, ["--data-path", "PREFIX", "--split", "70/30"], None),
        (4, ["--data-path", "0.5", "PREFIX", "--split", "100"], None),
        (501, ["--data-path", "PREFIX"], None),
    ],
)
def test_each_part_of_a_data_set_has_a_document(
    documents: int | None, words: list[str], message: str | None, tmp_path: Path
) -> None:
    """megatron-core's own loop over epochs does not end without one."""
    prefix = tmp_path / "set"
    prefix.with_suffix(".idx").write_bytes(b"MMI" if documents is None else index([1] * documents))
    prefix.with_suffix(".bin").write_bytes(bytes(2 * (documents or 0)))
    given = [str(prefix) if word == "PREFIX" else word for word in words]
    _check_data(given, message)


@pytest.mark.parametrize(
    ("suffix", "change", "message"),
    [
        (
            ".idx",
            lambda data: data[:-1],
            r"set\.idx is cut off: it has 101 of 102 bytes; prepare the data again",
        ),
        (
            ".idx",
            lambda data: b"X" + data[1:],
            r"set\.idx is not an index of a data set that preprocess_data\.py",
        ),
        (".idx", lambda data: data[:9] + b"\x02" + data[10:], r"set\.idx is not an index of a data set that"),
        (
            ".idx",
            lambda data: data[:17] + b"\x09" + data[18:],
            r"set\.idx is not an index of a data set that",
        ),
        (
            ".bin",
            lambda data: data[:-1],
            r"set\.bin is cut off: it has 15 of 16 bytes; prepare the data again",
        ),
        (
            ".bin",
            lambda data: None,
            r"set\.bin does not exist: data paths are prefixes of a \.bin and an \.idx",
        ),
        (".bin", lambda data: data + b"\x00", None),
    ],
)
def test_damaged_files_of_a_data_set(
    suffix: str, change: Callable[[bytes], bytes | None], message: str | None, tmp_path: Path
) -> None:
    prefix = tmp_path / "set"
    prefix.with_suffix(".idx").write_bytes(index([5, 1, 2]))
    prefix.with_suffix(".bin").write_bytes(bytes(16))
    damaged = prefix.with_suffix(suffix)
    content = change(damaged.read_bytes())
    damaged.unlink()
    if content is not None:
        damaged.write_bytes(content)
    _check_data(["--train-data-path", str(prefix)], message)


def _check_data(given: list[str], message: str | None) -> None:
    """Check a training's data on this machine, which is refused with a message unless it is None."""
    null = ("--tokenizer-type", "NullTokenizer", "--vocab-size", "9")
    args = arguments.parse_args([*MODEL, *SCHEDULE, *null, *given], world_size=1, has_cuda=False)
    arguments.complete_args(args)
    with pytest.raises(ArgumentError, match=message) if message else contextlib.nullcontext():
        arguments.check_machine(args)


def test_an_index_cache_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    args = parse(["--data-cache-path", str(tmp_path / "file" / "cache")])
    with pytest.raises(
        ArgumentError, match=r"--data-cache-path .*/file/cache cannot be created: Not a directory"
    ):
        arguments.check_machine(args)


def test_derived_values() -> None:
    args = parse(["--group-query-attention", "--num-query-groups", "2"], world_size=2)
    assert (args.data_parallel_size, args.num_microbatches, args.kv_channels) == (2, 1, 8)
    assert (args.num_query_groups, args.lr_decay_iters, args.padded_vocab_size) == (2, 12, 256)
    assert args.start_weight_decay == args.end_weight_decay == 0.01


def test_cuda_features_are_disabled_without_cuda() -> None:
    on_gpu, on_cpu = parse(["--transformer-impl", "local"], has_cuda=True), parse()
    assert on_gpu.distributed_backend == "nccl"
    assert on_gpu.masked_softmax_fusion
    assert on_gpu.apply_rope_fusion
    assert (on_cpu.distributed_backend, on_cpu.transformer_impl) == ("gloo", "local")
    assert not on_cpu.masked_softmax_fusion
    assert not on_cpu.apply_rope_fusion


@pytest.mark.parametrize("optimizer", ["lamb", "muon", "shampoo"])
def test_whole_matrices_and_tensor_parallelism_exclude_each_other(optimizer: str) -> None:
    with pytest.raises(ArgumentError, match="needs whole weight matrices"):
        parse(["--optimizer", optimizer, "--tensor-model-parallel-size", "2"], world_size=2)


@pytest.mark.parametrize(
    ("optimizer", "unused"),
    [
        ("lamb", ["--adam-beta2", "--sgd-momentum"]),
        ("sgd", ["--adam-beta2"]),
        ("adam", ["--sgd-momentum"]),
        ("adamw", ["--sgd-momentum"]),
    ],
)
def test_settings_of_other_optimizers_are_named(optimizer: str, unused: list[str]) -> None:
    args = parse(
        ["--optimizer", optimizer, "--adam-beta1", "0.9", "--adam-beta2", "0.95", "--sgd-momentum", "0.5"]
    )
    assert arguments.unused_settings(args, arguments.build_parser()) == unused


def test_small_init() -> None:
    args = parse(["--small-init", "--embedding-init-method-std", "0.632"])
    assert args.init_method_std == pytest.approx((2 / (5 * 32)) ** 0.5, rel=1e-15)
    assert args.embedding_init_method_std == 0.632


def test_small_init_of_the_base_width() -> None:
    args = parse(["--small-init", "--use-mup", "--mup-base-hidden-size", "8"])
    assert args.init_method_std == pytest.approx((2 / (5 * 8)) ** 0.5, rel=1e-15)


def test_missing_transformer_engine_is_reported_early() -> None:
    args = parse(has_cuda=True)
    with pytest.raises(ArgumentError, match="give --transformer-impl local"):
        arguments.check_machine(args)


@pytest.mark.parametrize(
    ("implementation", "installed", "expected"),
    [
        ("transformer_engine", (), ["--no-gradient-accumulation-fusion"]),
        (
            "local",
            (),
            ["--no-gradient-accumulation-fusion", "--no-masked-softmax-fusion", "--no-persist-layer-norm"],
        ),
        ("local", ("apex", "scaled_masked_softmax_cuda"), ["--no-gradient-accumulation-fusion"]),
        ("local", ("apex", "scaled_masked_softmax_cuda", "fused_weight_gradient_mlp_cuda"), []),
    ],
)
def test_fusions_without_their_kernels_are_switched_off(
    implementation: str,
    installed: Sequence[str],
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in installed:
        (tmp_path / f"{module}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    chosen = ["--transformer-impl", implementation, "--normalization", "LayerNorm"]
    args = parse(chosen, has_cuda=True)
    assert arguments.switch_off_missing_kernels(args) == expected
    off = parse([*chosen, *expected], has_cuda=True)
    for name in ("gradient_accumulation_fusion", "masked_softmax_fusion", "no_persist_layer_norm"):
        assert getattr(args, name) == getattr(off, name)
    assert arguments.switch_off_missing_kernels(args) == []


def test_flags_are_those_of_upstream() -> None:
    table = argument_table("core_v0.16.1")
    for action in arguments.build_parser()._actions:
        if action.dest == "help":
            continue
        upstream = table.get(action.dest)
        if action.dest in arguments.EXTENSIONS:
            assert upstream is None, f"upstream has {action.dest}"
            if "mup" not in action.dest:
                continue
            upstream = argument_table("core_v0.19.0").get(action.dest)
        assert upstream is not None, f"upstream has no {action.dest}"
        assert set(action.option_strings) <= set(upstream.flags)
        if action.dest not in ("exit_signal", "attention_backend"):
            assert action.default == upstream.default or not (action.default or upstream.default), action.dest


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("n1", "n1"),
        ("n[3-5,9]", "n3"),
        ("gpu-a[01-12]-ib,x", "gpu-a01-ib"),
        ("a,b", "a"),
        ("r1n[007]", "r1n007"),
    ],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


@given(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), st.integers(0, 999), st.integers(1, 4))
def test_first_host_of_any_range(prefix: str, number: int, width: int) -> None:
    first = f"{number:0{width}d}"
    assert first_host(f"{prefix}[{first}-9999]") == prefix + first


def test_place_in_the_job() -> None:
    alone = place_from_environment({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"})
    # a batch script that started no step
    assert (alone.rank, alone.world_size, alone.master_port) == (0, 1, 0)
    srun = {
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NODELIST": "n[2-3]",
    }
    step = place_from_environment({**srun, "SLURM_JOB_ID": "7"})
    assert (step.rank, step.world_size, step.local_rank) == (3, 4, 1)
    assert (step.master_addr, step.master_port) == ("n2", 10007)
    torchrun = place_from_environment(
        {**srun, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_PORT": "9"}
    )
    assert (torchrun.rank, torchrun.world_size, torchrun.master_port) == (1, 2, 9)


@pytest.mark.parametrize(
    ("ramp", "message"),
    [
        (["8", "8", "24"], "does not lead to --global-batch-size (8)"),
        (["2", "4", "24"], "does not lead to --global-batch-size (8)"),
        (["2", "0", "24"], "does not lead to --global-batch-size (8)"),
        (["4", "1", "24"], "the increment of --rampup-batch-size (1) must be a multiple of"),
    ],
)
def test_batches_that_cannot_grow_so(ramp: list[str], message: str) -> None:
    length = ["--micro-batch-size", "2", "--global-batch-size", "8", "--train-samples", "60", "--lr", "1e-3"]
    argv = [*MODEL, *length, *MOCK, "--rampup-batch-size", *ramp]
    args = arguments.parse_args(argv, world_size=1, has_cuda=False)
    with pytest.raises(arguments.ArgumentError, match=re.escape(message)):
        arguments.complete_args(args)
