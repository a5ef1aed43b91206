"""muP and CompleteP: their factors, the coordinate check, and learning rates that transfer to other widths."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from trainer_harness import SCRIPTS, Data, Outcome, Trainer, pretrain_args

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

sys.path.insert(0, str(SCRIPTS))

from megatron_core_trainer.optimization.parametrization import Factors, difference, parametrization

BASE_WIDTH, WIDE, DEEP = 32, 128, 16
MUP = ("--use-mup", "--mup-base-hidden-size", str(BASE_WIDTH))
COMPLETEP = (*MUP, "--enable-depth-scale", "--depth-base", "2")
RATES = [2.0**-power for power in (9, 7, 5, 3)]
LONG, SHORT = 40, 6
FC1, NORM = "decoder.layers.0.mlp.linear_fc1.weight", "decoder.layers.0.input_layernorm.weight"
FINAL_NORM, EMBEDDING = "decoder.final_layernorm.weight", "embedding.word_embeddings.weight"
SETTINGS = {
    **{"use_mup": True, "mup_base_hidden_size": 64, "hidden_size": 256, "num_layers": 8, "kv_channels": 16},
    **{"init_method_std": 0.02},
}


def training(
    data: Data, *extra: str, width: int = BASE_WIDTH, layers: int = 2, rate: float = 1e-2, steps: int = SHORT
) -> list[str]:
    """Return arguments for a model of a width, with heads of one size."""
    return [
        *("--num-layers", str(layers), "--hidden-size", str(width), "--ffn-hidden-size", str(2 * width)),
        *("--num-attention-heads", str(width // 16), "--seq-length", "64", "--max-position-embeddings", "64"),
        *(
            "--position-embedding-type",
            "rope",
            "--normalization",
            "RMSNorm",
            "--swiglu",
            "--disable-bias-linear",
        ),
        *("--untie-embeddings-and-output-weights", "--attention-dropout", "0", "--hidden-dropout", "0"),
        *(
            "--micro-batch-size",
            "16",
            "--train-iters",
            str(steps),
            "--lr",
            str(rate),
            "--lr-warmup-iters",
            "4",
        ),
        *("--adam-beta2", "0.95", "--log-interval", "1", "--eval-iters", "0", "--num-workers", "0"),
        *data.args(),
        *extra,
    ]


@pytest.fixture(scope="module")
def outcomes(trainer: Trainer, data: Data) -> Mapping[str, Any]:
    """The results of the trainings below, from one process."""
    cases = {
        "base": training(data, *MUP),
        "wide": training(data, *MUP, width=WIDE),
        "wide, standard": training(data, width=WIDE),
        "deep": training(data, *MUP, layers=DEEP),
        "deep, CompleteP": training(data, *COMPLETEP, layers=DEEP),
        "lion": training(data, *COMPLETEP, "--optimizer", "lion", width=WIDE, layers=1),
    }
    for rate in RATES:
        cases[f"base {rate}"] = training(data, *MUP, rate=rate, steps=LONG)
        cases[f"wide {rate}"] = training(data, *MUP, width=WIDE, rate=rate, steps=LONG)
        cases[f"wide, standard {rate}"] = training(data, width=WIDE, rate=rate, steps=LONG)
    return {
        found["case"]: found
        for found in trainer.answers(Path(__file__).with_name("width_transfer.py"), json.dumps(cases))
    }


def test_coordinates_move_alike_at_every_width(outcomes: Mapping[str, Any]) -> None:
    """The coordinate check (Tensor Programs V, appendix D.1): no output's change grows with the width."""
    base, wide, standard = (outcomes[case]["moved"] for case in ("base", "wide", "wide, standard"))
    for name in ("0", "1", "output_layer"):
        assert wide[name] == pytest.approx(base[name], rel=0.5), name
        assert standard[name] > 3 * base[name], name


def test_coordinates_move_alike_at_every_depth(outcomes: Mapping[str, Any]) -> None:
    last = {case: list(outcomes[case]["moved"].values())[-2] for case in ("base", "deep", "deep, CompleteP")}
    assert last["deep"] > 5 * last["base"]
    assert last["deep, CompleteP"] < 2.5 * last["base"]


def test_the_best_rate_stays_the_best_at_another_width(outcomes: Mapping[str, Any]) -> None:
    def best(model: str) -> float:
        """Return log2 of the rate at the minimum of a parabola through the losses, because single losses are noisy."""
        losses = [outcomes[f"{model} {rate}"]["loss"] for rate in RATES]
        curvature, slope, _ = np.polyfit(np.log2(RATES), losses, 2)
        assert curvature > 0
        return float(-slope / (2 * curvature))

    assert best("wide") == pytest.approx(best("base"), abs=1)
    assert best("wide, standard") < best("base") - 2


def test_groups_of_the_optimizers(outcomes: Mapping[str, Any]) -> None:
    wide = outcomes["wide"]["groups"]
    assert wide[FC1] == [0.25, 1.0, 0.25]
    assert wide[NORM] == wide[FINAL_NORM] == [1.0, 0.0, 1.0]
    assert wide[EMBEDDING] == wide["output_layer.weight"] == [1.0, 1.0, 1.0]
    deep = outcomes["deep, CompleteP"]["groups"]
    assert deep[FC1] == deep[EMBEDDING] == [1.0, 1.0, 1 / 8]
    assert outcomes["lion"]["groups"][FC1] == [0.25, 4.0, 1.0]


@pytest.mark.parametrize(
    ("name", "dimensions", "adam", "completep", "sgd"),
    [
        (FC1, 2, Factors(1 / 4, 1.0, 1 / 4), Factors(1 / 8, 4.0, 1 / 8), Factors(1.0)),
        (NORM, 1, Factors(), Factors(1 / 2, 1.0, 1 / 8), Factors(4.0)),
        (FINAL_NORM, 1, Factors(), Factors(1.0, 1.0, 1 / 8), Factors(4.0)),
        (EMBEDDING, 2, Factors(), Factors(1.0, 1.0, 1 / 8), Factors(4.0)),
    ],
)
def test_factors_of_a_model_four_times_as_wide_and_deep(
    name: str, dimensions: int, adam: Factors, completep: Factors, sgd: Factors
) -> None:
    width_only = parametrization(SETTINGS)
    both = parametrization({**SETTINGS, "enable_depth_scale": True, "depth_base": 2, "depth_alpha": 0.5})
    assert width_only is not None
    assert both is not None
    assert width_only.factors(name, dimensions, optimizer="adam") == adam
    assert both.factors(name, dimensions, optimizer="adam") == completep
    assert width_only.factors(name, dimensions, optimizer="sgd") == sgd


def test_deviations_and_multipliers() -> None:
    assert parametrization({"use_mup": False}) is None
    ours = parametrization({**SETTINGS, "embedding_init_method_std": 0.5, "mup_base_head_dim": 4.0})
    assert ours is not None
    assert (ours.hidden_std, ours.outer_std) == (0.01, 0.5)
    assert ours.projection_std == pytest.approx(0.01 / math.sqrt(2 * 8))
    assert (ours.attention, ours.residual, ours.output) == (2 / 16, 1.0, 1 / 4)
    deep = parametrization({**SETTINGS, "enable_depth_scale": True, "depth_base": 2, "mup_output_mult": 3.0})
    assert deep is not None
    assert (deep.residual, deep.output) == (1 / 4, 3.0)
    assert deep.projection_std == pytest.approx(0.01 / math.sqrt(2 * 2))
    # The initial deviations do not change the function of a model.
    assert difference(ours, parametrization({**SETTINGS, "mup_base_head_dim": 4.0})) is None
    assert difference(ours, None) == "--use-mup True (now False)"
    assert difference(None, None) is None


def test_a_checkpoint_of_another_parametrization_is_refused(
    trainer: Trainer, data: Data, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    extra: Sequence[object] = ("--load", reference[1], *MUP)
    outcome = trainer.run("pretrain_gpt.py", *pretrain_args(data, tmp_path / "c", extra))
    assert outcome.status == 2
    assert "has other multipliers: --use-mup False (now True); give the checkpoint's values" in outcome.stderr
