"""DeepSpeed's checkpoints: names and sizes, and what their content adds. The recorded one is of two ranks, ZeRO-1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_megatron.megatron.checkpoints.completeness import checkpoint_verdict
from airflow_megatron.megatron.checkpoints.folder import read_checkpoints

RECORDED = Path(__file__).parents[2] / "fixtures" / "checkpoints"
RANK_0 = (RECORDED / "deepspeed_zero1_dp2_rank0.pt").read_bytes()
"""The recorded model states without their tensors."""

ZERO_1: dict[str, int] = json.loads((RECORDED / "listings.json").read_text())["deepspeed 0.17.6, zero 1"]
MODEL, FIRST, SECOND = (
    "mp_rank_00_model_states.pt",
    "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
)
ZERO_3 = [
    f"zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt" for kind in ("model", "optim") for rank in range(2)
]
PIPELINE = [
    *(f"layer_{layer:02d}-model_{tensor:02d}-model_states.pt" for layer in (1, 3) for tensor in range(2)),
    *(f"mp_rank_{rank:02d}_model_states.pt" for rank in range(4)),
]


def judged(files: dict[str, int], *, tracked: int | None = 8) -> tuple[str, str]:
    found = checkpoint_verdict(files, iteration=8, tracked=tracked)
    assert found.format == "deepspeed"
    return found.verdict, found.reason


@pytest.mark.parametrize("files", [ZERO_1, dict.fromkeys(ZERO_3, 9), dict.fromkeys(PIPELINE, 9)])
def test_all_ranks_and_the_tracker(files: dict[str, int]) -> None:
    assert judged(files)[0] == "complete"
    assert judged(files, tracked=4)[0] == "unverifiable"
    assert judged(files, tracked=None)[0] == "unverifiable"


@pytest.mark.parametrize(
    ("files", "missing", "reason"),
    [
        (ZERO_1, MODEL, "no model states of rank (model 0)"),
        (ZERO_1, FIRST, "no optimizer states of rank (model 0, data 0)"),
        (ZERO_3, ZERO_3[0], "no model states of rank (model 0, data 0)"),
        (ZERO_3, ZERO_3[2], "no optimizer states of rank (model 0, data 0)"),
        (PIPELINE, PIPELINE[1], "no states of layer 1 of tensor-parallel rank 1"),
        (PIPELINE, PIPELINE[5], "no model states of rank (model 1)"),
    ],
)
def test_a_rank_that_is_missing(files: list[str], missing: str, reason: str) -> None:
    assert judged({name: 9 for name in files if name != missing}) == ("incomplete", reason)


def test_an_empty_file() -> None:
    assert judged({**ZERO_1, FIRST: 0}) == ("incomplete", f"{FIRST} is empty")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (MODEL, FIRST, SECOND):
        (tmp_path / "global_step8" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "global_step8" / name).write_bytes(RANK_0)
    (tmp_path / "latest").write_text("global_step8")
    return tmp_path


@pytest.mark.slow
def test_the_number_of_ranks_is_read_from_the_content(folder: Path) -> None:
    def verdicts() -> list[tuple[int, str, str]]:
        return [(one.iteration, one.verdict.verdict, one.verdict.reason) for one in read_checkpoints(folder)]

    whole = "the files of all ranks that its state names are there, each to its end"
    assert verdicts() == [(8, "complete", whole)]
    last = folder / "global_step8" / SECOND
    last.write_bytes(RANK_0[:-30])
    assert verdicts() == [(8, "incomplete", f"{SECOND} is damaged: the archive has no end: it was cut off")]
    last.unlink()
    assert verdicts() == [(8, "incomplete", "no optimizer states of rank (model 0, data 1)")]
