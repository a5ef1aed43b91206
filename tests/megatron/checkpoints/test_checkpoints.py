from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_megatron.megatron.checkpoints.completeness import (
    Evidence,
    checkpoint_verdict,
    list_checkpoints,
)
from airflow_megatron.megatron.checkpoints.legacy import LegacyLayout
from airflow_megatron.spec.layout.tracker import tracked_iteration

LISTINGS: dict[str, dict[str, int]] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "checkpoints" / "listings.json").read_text()
)
TORCH_DIST = LISTINGS["core_v0.16.0"]


@pytest.mark.parametrize(
    ("release", "verdict"),
    [("core_v0.12.0", "incomplete"), ("core_v0.16.0", "complete"), ("core_v0.19.0", "complete")],
)
def test_recorded_torch_dist_checkpoints(release: str, verdict: str) -> None:
    found = checkpoint_verdict(LISTINGS[release])
    assert (found.verdict, found.format) == (verdict, "torch_dist")
    assert found.is_complete is (verdict == "complete")


@pytest.mark.parametrize("name", [".metadata", "metadata.json", "__1_0.distcp"])
def test_torch_dist_with_an_empty_file(name: str) -> None:
    found = checkpoint_verdict({**TORCH_DIST, name: 0}, iteration=7, tracked=7)
    assert found.verdict == "incomplete"
    assert name in found.reason


@pytest.mark.parametrize("name", [".metadata", "metadata.json"])
def test_torch_dist_cut_short(name: str) -> None:
    files = {file: size for file, size in TORCH_DIST.items() if file != name}
    found = checkpoint_verdict(files)
    assert found.verdict == "incomplete"
    assert name in found.reason


def test_torch_dist_without_rank_files() -> None:
    files = {file: size for file, size in TORCH_DIST.items() if not file.endswith(".distcp")}
    assert checkpoint_verdict(files).verdict == "incomplete"


def test_without_metadata_json_the_tracker_decides() -> None:
    files = {".metadata": 9, "__0_0.distcp": 9, "__1_0.distcp": 9}
    assert checkpoint_verdict(files).verdict == "unverifiable"
    assert checkpoint_verdict(files, iteration=20, tracked=10).verdict == "unverifiable"
    assert checkpoint_verdict(files, iteration=20, tracked=20).verdict == "complete"
    assert checkpoint_verdict({"__0_0.distcp": 9}, iteration=20, tracked=20).verdict == "incomplete"


LEGACY = [
    ["mp_rank_00/model_optim_rng.pt"],
    ["mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"],
    [f"mp_rank_{t:02d}_{p:03d}/model_optim_rng.pt" for t in range(2) for p in range(2)],
    [
        f"mp_rank_{t:02d}_{p:03d}_{e:03d}/model_optim_rng.pt"
        for t in range(2)
        for p in range(2)
        for e in range(4)
    ],
]


def legacy(*ranks: str) -> dict[str, int]:
    return {f"mp_rank_{rank}/model_optim_rng.pt": 9 for rank in ranks}


def legacy_by_layout(layout: LegacyLayout, *ranks: str) -> str:
    evidence = Evidence("torch", legacy=layout, whole=True)
    return checkpoint_verdict(legacy(*ranks), evidence=evidence).verdict


def test_legacy_experts_without_a_pipeline() -> None:
    """Without a pipeline the second number is the experts' rank (``get_checkpoint_name``)."""
    names = [f"00_{expert:03d}" for expert in range(4)]
    assert legacy_by_layout(LegacyLayout(expert=4), *names) == "complete"
    assert legacy_by_layout(LegacyLayout(expert=4), *names[:3]) == "incomplete"
    assert legacy_by_layout(LegacyLayout(pipeline=4), *names) == "complete"
    assert legacy_by_layout(LegacyLayout(pipeline=4, expert=2), *names) == "incomplete"
    assert checkpoint_verdict(legacy(*names), iteration=5, tracked=5).verdict == "complete"
    assert checkpoint_verdict(legacy(*names[1:]), iteration=5, tracked=5).verdict == "incomplete"


def test_legacy_experts_that_are_split_otherwise() -> None:
    """With ``--expert-tensor-parallel-size 1`` not every pair of tensor and expert rank exists.

    The names are those of Megatron-LM's own ``RankGenerator``.
    """
    two, four = ["00_000", "01_001"], ["00_000_000", "00_000_002", "01_000_001", "01_000_003"]
    stages = [name.replace("_000_", f"_{stage:03d}_") for stage in range(2) for name in four]
    for names, layout in (
        (two, LegacyLayout(2, 1, 2, expert_tensor=1)),
        (stages, LegacyLayout(2, 2, 4, expert_tensor=1)),
    ):
        assert legacy_by_layout(layout, *names) == "complete"
        assert legacy_by_layout(replace(layout, expert_tensor=None), *names) == "incomplete"
        assert checkpoint_verdict(legacy(*names), iteration=5, tracked=5).verdict == "complete"
        assert (
            checkpoint_verdict(legacy(*names[:-1], "01_001_000"), iteration=5, tracked=5).verdict
            == "incomplete"
        )


def test_legacy_optimizer_that_the_arguments_promise() -> None:
    layout = LegacyLayout(distributed_optimizer=True)
    assert legacy_by_layout(layout, "00") == "incomplete"
    files = {**legacy("00"), "mp_rank_00/distrib_optim.pt": 9}
    found = checkpoint_verdict(files, evidence=Evidence("torch", legacy=layout, whole=True))
    assert found.verdict == "complete"


def test_legacy_names_of_2022() -> None:
    assert checkpoint_verdict(legacy("00_dp_000"), iteration=5, tracked=5).verdict == "complete"
    assert (
        checkpoint_verdict(legacy("00_000_dp_000", "00_002_dp_000"), iteration=5, tracked=5).verdict
        == "incomplete"
    )


@pytest.mark.parametrize("paths", LEGACY)
def test_legacy_torch(paths: list[str]) -> None:
    files = dict.fromkeys(paths, 100)
    assert checkpoint_verdict(files).verdict == "unverifiable"
    found = checkpoint_verdict(files, iteration=5, tracked=5)
    assert (found.verdict, found.format) == ("complete", "torch")
    assert checkpoint_verdict({**files, paths[-1]: 0}, iteration=5, tracked=5).verdict == "incomplete"
    if len(paths) > 1:
        del files[paths[0]]
        assert checkpoint_verdict(files, iteration=5, tracked=5).verdict == "incomplete"


def test_legacy_torch_with_the_optimizer_of_some_ranks() -> None:
    files = {
        "mp_rank_00/model_optim_rng.pt": 9,
        "mp_rank_01/model_optim_rng.pt": 9,
        "mp_rank_00/distrib_optim.pt": 9,
    }
    assert checkpoint_verdict(files, iteration=5, tracked=5).verdict == "incomplete"


def test_what_is_no_checkpoint() -> None:
    assert checkpoint_verdict({}).verdict == "incomplete"
    assert checkpoint_verdict({"notes.txt": 4}).verdict == "unverifiable"


@pytest.mark.parametrize(
    ("text", "iteration"), [("20\n", 20), ("release", None), ("", None), (None, None), ("2e3", None)]
)
def test_tracker(text: str | None, iteration: int | None) -> None:
    assert tracked_iteration(text) == iteration


def test_list_is_exact_and_sorted() -> None:
    folder = {
        "iter_0012000": TORCH_DIST,
        "iter_0002000": TORCH_DIST,
        "iter_0022000": {"common.pt": 1},
        "tensorboard": {"x": 1},
    }
    found = list_checkpoints(folder, tracker="12000")
    assert [(checkpoint.iteration, checkpoint.verdict.verdict) for checkpoint in found] == [
        (2000, "complete"),
        (12000, "complete"),
        (22000, "incomplete"),
    ]


def test_one_that_is_half_deleted_among_marked_ones() -> None:
    """``--save-retain-interval`` deletes in any order: without its mark it looks like torch_dcp."""
    half = {".metadata": 9, "__0_0.distcp": 9}
    whole = {**half, "__1_0.distcp": 9, "metadata.json": 9}
    found = list_checkpoints(
        {"iter_0000010": half, "iter_0000020": whole, "iter_0000030": half}, tracker="20"
    )
    assert [(one.verdict.format, one.verdict.verdict) for one in found] == [
        ("torch_dist", "incomplete"),
        ("torch_dist", "complete"),
        ("torch_dist", "incomplete"),
    ]
    # formats may change between two attempts, and the tracker names a complete checkpoint
    assert list_checkpoints({"iter_0000010": whole, "iter_0000020": half}, tracker="20")[
        1
    ].verdict.is_complete
    read = {"iter_0000010": Evidence("torch_dcp", needed={"__0_0.distcp": 9})}
    found = list_checkpoints({"iter_0000010": half, "iter_0000020": whole}, tracker="20", evidence=read)
    assert (found[0].verdict.format, found[0].verdict.verdict) == ("torch_dcp", "complete")
    assert all(one.verdict.is_complete for one in list_checkpoints({"iter_0000010": half}, tracker="20"))
