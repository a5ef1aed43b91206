"""Jobs control names and content of checkpoints: any content is judged in bounded time and memory."""

from __future__ import annotations

import itertools
import os
import pickle
import zipfile
from typing import TYPE_CHECKING

import pytest
from processor_limits import processor_limit

from airflow_megatron.megatron.checkpoints import evidence_reader
from airflow_megatron.megatron.checkpoints.completeness import (
    Evidence,
    checkpoint_verdict,
    has_marks,
    verdicts_by_iteration,
)
from airflow_megatron.megatron.checkpoints.deepspeed import DeepSpeedLayout
from airflow_megatron.megatron.checkpoints.folder import read_checkpoints
from airflow_megatron.megatron.checkpoints.legacy import LegacyLayout
from airflow_megatron.spec.layout.tracker import tracked_iteration

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MOST_S = 1.0
"""Of processor time; without bounds it is minutes, or all memory."""

NUMBERS = ("99", "099", "999", "99999", "999999999", "9" * 60)
LISTINGS = [
    *({f"mp_rank_{t}_{p}_{e}/model_optim_rng.pt": 1} for t, p, e in itertools.product(NUMBERS[1:], repeat=3)),
    *(
        {f"mp_rank_{t}_{p}/model_optim_rng.pt": 1, "mp_rank_00/model_optim_rng.pt": 1}
        for t, p in itertools.product(NUMBERS[1:], repeat=2)
    ),
    *(
        {f"zero_pp_rank_{d}_mp_rank_{m}_{kind}_states.pt": 1, "mp_rank_00_model_states.pt": 1}
        for d, m, kind in itertools.product(NUMBERS, NUMBERS, ("model", "optim"))
    ),
    *({f"layer_{n}-model_{n}-model_states.pt": 1, "layer_00-model_00-model_states.pt": 1} for n in NUMBERS),
    *({f"__{n}_{n}.distcp": 1, ".metadata": 1} for n in NUMBERS),
    *({".distcp." * 400 + ".tmp/" * 3: 1, "a" * 4000: 1} for _ in range(1)),
    {
        f"mp_rank_{t:02}_{p:03}_{e:03}/model_optim_rng.pt": 1
        for t, p, e in itertools.product(range(61), range(2), range(60))
    },
    {f"mp_rank_{t:02}_000_{t:03}/model_optim_rng.pt": 1 for t in range(2000)},
]  # fmt: skip


@pytest.mark.parametrize("files", LISTINGS, ids=lambda files: f"{len(files)} {next(iter(files))[:50]}")
@pytest.mark.parametrize("tracked", [None, 5])
def test_no_listing_takes_long(files: dict[str, int], tracked: int | None) -> None:
    with processor_limit(MOST_S):
        checkpoint_verdict(files, iteration=5, tracked=tracked)


@pytest.mark.parametrize("size", [10**9, 10**30])
@pytest.mark.parametrize("axis", ["tensor", "pipeline", "expert", "expert_tensor"])
def test_no_listed_layout_takes_long(axis: str, size: int) -> None:
    files = {"mp_rank_00/model_optim_rng.pt": 1}
    legacy = Evidence(legacy=LegacyLayout(**{axis: size}))
    deepspeed = Evidence(deepspeed=DeepSpeedLayout(size, size, 3))
    with processor_limit(MOST_S):
        checkpoint_verdict(files, iteration=5, evidence=legacy)
    told = {"mp_rank_00_model_states.pt": 1}
    with processor_limit(MOST_S):
        checkpoint_verdict(told, iteration=5, evidence=deepspeed)


@pytest.mark.parametrize("text", ["9" * 5000, "-1", "1e3", "٣", "\x00", "5\n6", "release", "9" * 16, ""])
def test_a_tracker_that_is_no_number(text: str) -> None:
    assert tracked_iteration(text) is None


@pytest.mark.parametrize("name", ["iter_" + "9" * 250, "global_step" + "9" * 250, "iter_٣٣٣٣٣٣٣"])
def test_a_directory_of_no_iteration(name: str) -> None:
    assert verdicts_by_iteration({name: {".metadata": 1}}, 5) == {}
    assert not has_marks({name: {}})


def nested_tuples(depth: int) -> bytes:
    """A dictionary whose key is a tuple of two times the same tuple, and so on: its hash takes 2**depth steps."""
    return b"\x80\x04}K\x01K\x01\x86" + b"2\x86" * depth + b"K\x01s."


PICKLES = {
    "nested tuples": nested_tuples(60),
    "deep lists": b"\x80\x04" + b"]" * 500_000 + b"a" * 499_999 + b".",
    "deep tuples": b"\x80\x04)" + b"\x85" * 500_000 + b".",
    "a large int": b"\x80\x04\x8b" + (1 << 24).to_bytes(4, "little") + b"\x7f" * (1 << 24) + b".",
    "a large memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "a large frame": b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f.",
    "a large text": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.",
    "large bytes": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x00.",
    "a call": pickle.dumps(print),
    "a set of nested tuples": b"\x80\x04\x8f(K\x01" + b"2\x86" * 60 + b"\x90.",
    "cut off": pickle.dumps({"state_dict_metadata": {}})[:-3],
    "nothing": b"\x80\x04N.",
    "no sizes": pickle.dumps({"state_dict_metadata": 5, "storage_data": []}),
}


def processor_time() -> float:
    """Return the seconds that this process and those that it has waited for have used."""
    return sum(os.times()[:4])


@pytest.mark.parametrize("content", PICKLES.values(), ids=PICKLES)
@pytest.mark.parametrize("place", [".metadata", "mp_rank_00/model_optim_rng.pt"])
def test_no_pickle_takes_all_time_or_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, place: str
) -> None:
    monkeypatch.setattr(evidence_reader, "SECONDS", 0.5)
    folder = tmp_path / "iter_0000005"
    other = tmp_path / "iter_0000006"
    for directory in (folder, other):
        (directory / place).parent.mkdir(parents=True)
    if place.endswith(".pt"):
        with zipfile.ZipFile(folder / place, "w") as archive:
            archive.writestr("archive/data.pkl", content)
    else:
        (folder / place).write_bytes(content)
        (folder / "__0_0.distcp").write_bytes(b"x")
    (other / place).write_bytes(b"")
    begin = processor_time()
    first, second = read_checkpoints(tmp_path)
    assert processor_time() - begin < 3
    assert not first.verdict.is_complete
    assert "is empty" in second.verdict.reason


DECLARATIONS = [
    "[" * 100_000,
    '{"a":' * 100_000,
    "{" * 5,
    "9" * 5000,
    "Infinity",
    '{"sharded_backend": 5}',
    "[]",
    "\x00",
    '"x',
    "nul",
]


@pytest.mark.parametrize("text", DECLARATIONS, ids=lambda text: text[:20])
def test_a_damaged_declaration_is_damage(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "iter_0000005"
    folder.mkdir()
    (folder / "metadata.json").write_text(text)
    (folder / "__0_0.distcp").write_bytes(b"x")
    (folder / ".metadata").write_bytes(b"no pickle")
    (checkpoint,) = read_checkpoints(tmp_path)
    assert checkpoint.verdict.verdict == "incomplete"


def header(length: int, text: bytes = b"{}") -> bytes:
    """Return the beginning of a safetensors file: the length of its JSON header, and the header."""
    return length.to_bytes(8, "little", signed=length < 0) + text


FOREIGN = {
    "safetensors with an enormous header": ("model.safetensors", header(2**63 - 1)),
    "safetensors with a negative length": ("model.safetensors", header(-1)),
    "safetensors with negative offsets": (
        "model.safetensors",
        header(80, b'{"w": {"dtype": "F32", "shape": [9999999999], "data_offsets": [-8, 1e308]}}'.ljust(80)),
    ),
    "safetensors with a header of brackets": ("model.safetensors", header(100_000, b"[" * 100_000)),
    "an index of enormous numbers": (
        "model.safetensors.index.json",
        b'{"metadata": {"total_size": ' + b"9" * 5000 + b'}, "weight_map": {"w": "../../x"}}',
    ),
    "HDF5 with offsets past its end": ("model.h5", b"\x89HDF\r\n\x1a\n" + b"\xff" * 4096),
    "HDF5 whose superblock is at another place": (
        "model.hdf5",
        b"\x00" * 512 + b"\x89HDF\r\n\x1a\n" + b"\x03\x08\x08\x00" + b"\xff" * 64,
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
@pytest.mark.parametrize("beside", [[], [".metadata"], ["common.pt"], ["latest"]], ids=str)
def test_weights_that_megatron_does_not_write_make_no_checkpoint(
    case: str, beside: list[str], tmp_path: Path
) -> None:
    name, content = FOREIGN[case]
    place = tmp_path / "iter_0000005"
    place.mkdir()
    (place / name).write_bytes(content)
    for file in beside:
        (place / file).touch()
    begin = processor_time()
    (checkpoint,) = read_checkpoints(tmp_path)
    assert processor_time() - begin < 20
    assert not checkpoint.verdict.is_complete
