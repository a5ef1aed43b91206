"""Data, and arguments that are no longer valid."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.arguments.data_blends import DEFAULT_SPLIT
from airflow_megatron.megatron.rules.rule import Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

_SHARE: Final = re.compile(r"\d*\.?\d+")
_FIM_TOKENS: Final = ("prefix", "middle", "suffix", "pad", "eod")


def _per_split(s: Settings) -> bool:
    return any(path is not None for path in (s.train_data_path, s.valid_data_path, s.test_data_path))


def has_test_data(s: Settings) -> bool:
    """Is there a test set, which is evaluated at the end: by its own path, or as the third share of ``--split``."""
    if _per_split(s):
        return s.test_data_path is not None
    if s.mock_data:  # split 1,1,1, whatever --split says
        return True
    return bool(s.data_path or s.data_args_path) and has_share(s.split, 2)


def lacks_validation_data(s: Settings) -> bool:
    """Is there certainly no validation set: without its own path, or with a ``--split`` that leaves it no share."""
    if _per_split(s):
        return s.valid_data_path is None
    return bool(s.data_path or s.data_args_path) and lacks_share(s.split, 1)


def has_share(split: str | None, part: int) -> bool:
    """Return whether ``--split`` gives a share to the training (0), validation (1) or test set (2)."""
    shares = _SHARE.findall(split or DEFAULT_SPLIT)
    return len(shares) > part and float(shares[part]) > 0


def lacks_share(split: str | None, part: int) -> bool:
    """Return whether ``--split`` gives shares to other sets only; one without any share is refused itself."""
    return not has_share(split, part) and any(has_share(split, other) for other in range(3))


def _sources(s: Settings) -> int:
    return (
        bool(s.mock_data) + bool(s.data_path) + any((s.train_data_path, s.valid_data_path, s.test_data_path))
    )


def _is_phase_list(text: str) -> bool:
    return all(part.strip().lstrip("+-").isdigit() for part in text.split(","))


OLD_FLAGS: Topic = tuple(
    Rule(
        f"old-flag.{old}",
        lambda s, old=old: vars(s)[old] is not None,  # type: ignore[misc]
        f"--{old.replace('_', '-')} is no longer valid",
        new,
    )
    for old, new in (
        ("batch_size", "--micro-batch-size"),
        ("warmup", "--lr-warmup-fraction"),
        ("model_parallel_size", "--tensor-model-parallel-size"),
    )
)

DATA: Topic = (
    Rule(
        "data.two-lists",
        lambda s: s.data_path is not None and s.data_args_path is not None,
        "--data-path and --data-args-path exclude each other",
        "keep one of them",
    ),
    Rule(
        "data.two-split-lists",
        lambda s: _per_split(s) and s.per_split_data_args_path is not None,
        "--per-split-data-args-path excludes --train-data-path, --valid-data-path and --test-data-path",
        "keep one of them",
    ),
    Rule(
        "data.phases",
        lambda s: (
            s.phase_transition_iterations
            and (
                not _is_phase_list(s.phase_transition_iterations)
                or (s.rampup_batch_size is not None and s.release < (0, 18))
            )
        ),
        "--phase-transition-iterations {phase_transition_iterations!r} must be iterations with commas between, and "
        "does not work with --rampup-batch-size",
        "write 1000,2000",
    ),
    Rule(
        "data.builder-threads",
        lambda s: s.num_dataset_builder_threads <= 0,
        "--num-dataset-builder-threads {num_dataset_builder_threads} must be positive",
        "1 or more",
    ),
    Rule(
        "data.one-source",
        lambda s: _sources(s) > 1,
        "--mock-data, --data-path and the paths per split exclude each other",
        "keep one of them",
    ),
    Rule(
        "data.yaml-file",
        lambda s: s.yaml_cfg is not None,
        "--yaml-cfg {yaml_cfg} replaces every other argument of the command line, where a job gets its folders",
        "write the file's values as arguments",
        "megatron/training/arguments.py parse_args",
    ),
    Rule(
        "data.fill-in-the-middle",
        lambda s: (
            s.fim_data
            and (
                s.mock_data
                or s.legacy_tokenizer
                or not s.fim_rate
                or not s.fim_spm_rate
                or any(vars(s)[f"fim_{token}_token"] is None for token in _FIM_TOKENS)
            )
        ),
        "--fim-data needs real data, --fim-rate, --fim-spm-rate and the five fill-in-the-middle tokens",
        "give them, or drop --fim-data",
    ),
    Rule(
        "data.storage-client",
        lambda s: (
            s.enable_msc and not s.disable_msc_deprecated and "multistorageclient" not in s.machine.packages
        ),
        "--enable-msc needs the package multistorageclient",
        "pip install multi-storage-client, or drop it",
        "megatron/training/arguments.py parse_args",
        since=(0, 18),
    ),
)
