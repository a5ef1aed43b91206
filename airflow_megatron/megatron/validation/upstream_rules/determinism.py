"""``--deterministic-mode``: the arguments and environment variables that it permits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.rules.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

_HELPERS: Final = "megatron/training/determinism.py"
_ENGINE: Final = "megatron/core/extensions/transformer_engine.py TEDotProductAttention"
_OWN_MODULE_SINCE: Final = (0, 19)
_ALGORITHMS: Final = ("Ring", "CollnetDirect", "CollnetChain", "^NVLS")
_NONDETERMINISTIC: Final = "NVTE_ALLOW_NONDETERMINISTIC_ALGO"


def _when_deterministic(broken: Callable[[Settings], object]) -> Callable[[Settings], object]:
    return lambda s: s.deterministic_mode and broken(s)


def _has_other_algorithm(s: Settings) -> bool:
    """Return whether the environment selects an algorithm of NCCL that is not accepted; since 0.19 it may be a
    list.
    """
    chosen = s.machine.environment.get("NCCL_ALGO")
    if s.release < _OWN_MODULE_SINCE:
        return chosen not in ("Tree", *_ALGORITHMS)
    if chosen is None:
        return False
    words = {word.strip() for word in chosen.split(",") if word.strip()}
    return not words or not words <= set(_ALGORITHMS)


def _is_set_otherwise(name: str, *accepted: str) -> Callable[[Settings], object]:
    return lambda s: s.machine.environment.get(name, accepted[0]) not in accepted


def _engine_may_be_nondeterministic(s: Settings) -> bool:
    if s.transformer_impl != "transformer_engine" or not s.machine.has_transformer_engine():
        return False
    value: str = s.machine.environment.get(_NONDETERMINISTIC, "1")
    return value.strip().lstrip("+-0_") != ""


DETERMINISM: Topic = (
    Rule(
        "determinism",
        _when_deterministic(_has_other_algorithm),
        "--deterministic-mode needs the environment variable NCCL_ALGO to be one of "
        + ", ".join(_ALGORITHMS),
        "set NCCL_ALGO=Ring in the cluster profile",
    ),
    Rule(
        "determinism.cross-entropy",
        _when_deterministic(lambda s: s.cross_entropy_loss_fusion),
        "--deterministic-mode does not work with --cross-entropy-loss-fusion",
        "drop one of them",
    ),
    Rule(
        "determinism.flash-attention",
        _when_deterministic(lambda s: s.use_flash_attn),
        "--deterministic-mode does not work with --use-flash-attn",
        "drop one of them",
        until=_OWN_MODULE_SINCE,
    ),
    Rule(
        "determinism.communication-overlap",
        _when_deterministic(lambda s: s.tp_comm_overlap),
        "--deterministic-mode does not work with --tp-comm-overlap",
        "drop one of them",
        f"{_HELPERS} apply_determinism_to_args",
        since=_OWN_MODULE_SINCE,
    ),
    *(
        Rule(
            f"determinism.{name.lower().replace('_', '-')}",
            _when_deterministic(broken),
            f"--deterministic-mode needs the environment variable {name} to be {accepted}, or not set",
            f"set {name} to {accepted.partition(' ')[0]} in the cluster profile, or drop it",
            f"{_HELPERS} apply_determinism_env",
            since=_OWN_MODULE_SINCE,
        )
        for name, accepted, broken in (
            (_NONDETERMINISTIC, "0", _is_set_otherwise(_NONDETERMINISTIC, "0")),
            (
                "CUBLAS_WORKSPACE_CONFIG",
                ":4096:8 or :16:8",
                _is_set_otherwise("CUBLAS_WORKSPACE_CONFIG", ":4096:8", ":16:8"),
            ),
            (
                "MAMBA_DETERMINISTIC",
                "1",
                lambda s: not (s.machine.environment.get("MAMBA_DETERMINISTIC") or "1").startswith("1"),
            ),
        )
    ),
)

ENGINE: Topic = (
    Rule(
        "determinism.transformer-engine",
        _when_deterministic(_engine_may_be_nondeterministic),
        f"--deterministic-mode with Transformer Engine needs the environment variable {_NONDETERMINISTIC}=0",
        f"set {_NONDETERMINISTIC}=0 in the cluster profile",
        _ENGINE,
        until=_OWN_MODULE_SINCE,  # which sets it
    ),
)
