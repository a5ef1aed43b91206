"""Checkpoints on a disk: the evidence in their content, in addition to names and sizes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.megatron.checkpoints.dcp_metadata import (
    DamagedMetadataError,
    read_dcp_metadata,
    read_inert,
)
from airflow_megatron.megatron.checkpoints.folder import list_files, read_checkpoints

RECORDED = Path(__file__).parents[2] / "fixtures" / "checkpoints"
METADATA = {path.stem: path.read_bytes() for path in (RECORDED / "metadata").glob("*.pickle")}
LEGACY = (RECORDED / "legacy_tp2_pp2_rank0.pt").read_bytes()
RANKS = [f"mp_rank_{tensor:02d}_{pipeline:03d}" for tensor in range(2) for pipeline in range(2)]
OLD_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The beginning of what ``torch.save`` wrote before 1.6: it has no end to look for."""
METADATA_JSON = json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1})


def verdicts(folder: Path) -> list[tuple[int, str, str]]:
    return [(one.iteration, one.verdict.format, one.verdict.verdict) for one in read_checkpoints(folder)]


def write_distributed(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True)
    (directory / ".metadata").write_bytes(METADATA[name])
    described = read_dcp_metadata(METADATA[name])
    assert described is not None
    for path, size in described.sizes.items():
        (directory / path).write_bytes(b"x" * size)
    return directory


def write_torch_dist(directory: Path) -> Path:
    write_distributed(directory, "torch_dist")
    (directory / "metadata.json").write_text(METADATA_JSON)
    return directory


def write_legacy(directory: Path) -> Path:
    for rank in RANKS:
        (directory / rank).mkdir(parents=True)
        (directory / rank / "model_optim_rng.pt").write_bytes(LEGACY)
    return directory


def test_recorded_metadata_locates_the_state() -> None:
    torch_dist = read_dcp_metadata(METADATA["torch_dist"])
    assert torch_dist is not None
    assert torch_dist.sizes == {"__0_0.distcp": 1577, "__1_0.distcp": 1577}
    torch_dcp = read_dcp_metadata(METADATA["torch_dcp"])
    assert torch_dcp is not None
    assert torch_dcp.keys == {"model.w", "model.b", "iteration"}
    assert torch_dcp.sizes == {"__0_0.distcp": 4671}
    fsdp_dtensor = read_dcp_metadata(METADATA["fsdp_dtensor"])
    assert fsdp_dtensor is not None
    assert fsdp_dtensor.format == "fsdp_dtensor"


@pytest.mark.parametrize("name", METADATA)
def test_metadata_cut_anywhere_is_damaged(name: str) -> None:
    for end in range(1, len(METADATA[name])):
        with pytest.raises(DamagedMetadataError):
            read_dcp_metadata(METADATA[name][:end])


@given(st.binary())
def test_metadata_of_any_bytes(data: bytes) -> None:
    try:
        found = read_dcp_metadata(b"\x80" + data)
    except DamagedMetadataError:
        return
    assert found is not None


def test_nothing_of_a_pickle_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    state = read_inert(f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode())
    assert not marker.exists()
    assert state.attributes == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch_dcp", "fsdp_dtensor"])
def test_formats_that_look_the_same_by_name(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_distributed(tmp_path / "iter_0000007", name)
    assert verdicts(tmp_path) == [(7, name, "complete")]
    assert verdicts(directory) == [(7, name, "complete")]
    monkeypatch.chdir(directory)
    assert verdicts(Path()) == [(7, name, "complete")]
    (directory / ".metadata").rename(directory / ".metadata.tmp")
    assert verdicts(tmp_path)[0][2] == "incomplete"


@pytest.mark.slow
def test_arguments_tell_the_format(tmp_path: Path) -> None:
    directory = tmp_path / "iter_0000007"
    directory.mkdir()
    # the recorded fsdp_dtensor metadata, without the names of its random state
    data = (
        METADATA["fsdp_dtensor"]
        .replace(b"rng_state.(0, 0)", b"rng_state_of_0_0")
        .replace(b"args.ckpt_format", b"argsXckpt_format")
    )
    (directory / ".metadata").write_bytes(data)
    (directory / "__0_0.distcp").write_bytes(b"x" * 5360)
    assert verdicts(tmp_path) == [(7, "torch_dcp", "complete")]


@pytest.mark.slow
def test_torch_dist_without_metadata_json_is_incomplete_by_its_state(tmp_path: Path) -> None:
    directory = write_distributed(tmp_path / "iter_0000007", "torch_dist")
    assert verdicts(tmp_path) == [(7, "torch_dcp", "complete")]  # this tiny state looks the same as torch_dcp
    named = METADATA["torch_dcp"].replace(b"\x07model.w", b"\x0ccommon_state")
    (directory / ".metadata").write_bytes(named)
    (directory / "__0_0.distcp").write_bytes(b"x" * 4671)
    assert verdicts(tmp_path) == [(7, "torch_dist", "incomplete")]


@pytest.mark.slow
def test_async_save_in_flight(tmp_path: Path) -> None:
    write_torch_dist(tmp_path / "iter_0000010")
    directory = tmp_path / "iter_0000020"
    directory.mkdir()
    assert verdicts(tmp_path)[1] == (20, "unknown", "incomplete")
    (directory / "common.pt").write_bytes(LEGACY)
    (directory / "__0_0.distcp").write_bytes(b"x" * 100)
    assert verdicts(tmp_path)[1] == (20, "torch_dist", "incomplete")
    (directory / "common.pt").unlink()  # from 0.19 on
    assert verdicts(tmp_path) == [(10, "torch_dist", "complete"), (20, "torch_dist", "incomplete")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda d: (d / "__1_0.distcp").unlink(), "__1_0.distcp is missing"),
        (lambda d: (d / "__1_0.distcp").write_bytes(b"x" * 1576), "has 1576 bytes"),
        (lambda d: (d / ".metadata").write_bytes(METADATA["torch_dist"][:-9]), ".metadata is damaged"),
        (lambda d: (d / ".metadata").write_bytes(bytes(1332)), "zero bytes"),
        (lambda d: (d / "metadata.json").write_text('{"sharded_ba'), "not JSON"),
        (lambda d: (d / "metadata.json").write_text(""), "metadata.json is empty"),
        (lambda d: (d / "common.pt").write_bytes(LEGACY[:-30]), "cut off"),
    ],
)
def test_damage_that_names_alone_do_not_show(tmp_path: Path, damage, said: str) -> None:
    directory = write_torch_dist(tmp_path / "iter_0000007")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("7")
    assert verdicts(tmp_path) == [(7, "torch_dist", "complete")]
    damage(directory)
    (found,) = read_checkpoints(tmp_path)
    assert found.verdict.verdict == "incomplete"
    assert said in found.verdict.reason


@pytest.mark.slow
def test_legacy_with_the_files_of_all_ranks(tmp_path: Path) -> None:
    write_legacy(tmp_path / "iter_0000005")
    assert verdicts(tmp_path) == [(5, "torch", "complete")]


@pytest.mark.slow
@pytest.mark.parametrize("rank", RANKS)
def test_legacy_without_one_rank(tmp_path: Path, rank: str) -> None:
    """The sizes stored with the arguments show even the last rank's absence."""
    directory = write_legacy(tmp_path / "iter_0000005")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5\n")
    shutil.rmtree(directory / rank)
    assert verdicts(tmp_path) == [(5, "torch", "incomplete")]


@pytest.mark.slow
def test_legacy_cut_off(tmp_path: Path) -> None:
    directory = write_legacy(tmp_path / "iter_0000005")
    (directory / RANKS[3] / "model_optim_rng.pt").write_bytes(LEGACY[:500])
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5\n")
    assert verdicts(tmp_path) == [(5, "torch", "incomplete")]


@pytest.mark.slow
def test_legacy_of_a_kind_without_an_end_needs_the_tracker(tmp_path: Path) -> None:
    file = tmp_path / "iter_0000005" / "mp_rank_00" / "model_optim_rng.pt"
    file.parent.mkdir(parents=True)
    file.write_bytes(OLD_LEGACY)
    assert verdicts(tmp_path) == [(5, "torch", "unverifiable")]
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5\n")
    assert verdicts(tmp_path) == [(5, "torch", "complete")]


@pytest.mark.slow
def test_links_and_other_names(tmp_path: Path) -> None:
    write_torch_dist(tmp_path / "elsewhere" / "iter_0000007")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "iter_0000007").symlink_to(tmp_path / "elsewhere" / "iter_0000007")
    (folder / "iter_0000008").symlink_to(tmp_path / "gone")
    (folder / "iter_0000009").write_text("a file")
    (folder / "failed_iter_0000010").mkdir()
    assert verdicts(folder) == [(7, "torch_dist", "complete")]
    assert read_checkpoints(tmp_path / "elsewhere" / "iter_0000007")
    assert list_files(folder / "iter_0000007")["metadata.json"] == len(METADATA_JSON)


def test_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="--save"):
        read_checkpoints(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        read_checkpoints(tmp_path / "file")


@pytest.mark.slow
def test_common_state_that_metadata_json_promises(tmp_path: Path) -> None:
    """Up to 0.18 a checkpoint without its common.pt cannot be loaded; from 0.19 on there is none."""
    directory = write_torch_dist(tmp_path / "iter_0000007")
    assert verdicts(tmp_path) == [(7, "torch_dist", "complete")]
    promised = json.dumps({"sharded_backend": "torch_dist", "common_backend": "torch"})
    (directory / "metadata.json").write_text(promised)
    (found,) = read_checkpoints(tmp_path)
    assert found.verdict.verdict == "incomplete"
    assert "common.pt is missing" in found.verdict.reason
    (directory / "common.pt").write_bytes(LEGACY)
    assert verdicts(tmp_path) == [(7, "torch_dist", "complete")]
    (directory / "common.pt").write_bytes(LEGACY[:1])
    assert verdicts(tmp_path) == [(7, "torch_dist", "incomplete")]


@pytest.mark.slow
@pytest.mark.parametrize("part", ["all", "end"])
def test_data_that_was_never_written(tmp_path: Path, part: str) -> None:
    """A node that loses power leaves files of the right length, with zeros in the parts that were not written."""
    directory = write_torch_dist(tmp_path / "iter_0000007")
    archive = (LEGACY * 2)[:1577]
    (directory / "__1_0.distcp").write_bytes(archive)
    assert verdicts(tmp_path) == [(7, "torch_dist", "complete")]
    kept = b"" if part == "all" else archive[:1000]
    (directory / "__1_0.distcp").write_bytes(kept + bytes(1577 - len(kept)))
    (found,) = read_checkpoints(tmp_path)
    assert found.verdict.verdict == "incomplete"
    assert "__1_0.distcp is damaged" in found.verdict.reason


@pytest.mark.slow
def test_zarr_is_not_judged(tmp_path: Path) -> None:
    """Releases before 0.13 could store arrays in chunks, of which those that are all zero may be left out."""
    directory = tmp_path / "iter_0000007"
    (directory / "decoder.weight").mkdir(parents=True)
    (directory / "decoder.weight" / ".zarray").write_text("{}")
    (directory / "metadata.json").write_text(json.dumps({"sharded_backend": "zarr"}))
    assert verdicts(tmp_path) == [(7, "zarr", "unverifiable")]


@pytest.mark.slow
def test_checkpoints_that_are_deleted_while_they_are_read(tmp_path: Path) -> None:
    """``--save-retain-interval``: the one before the last goes away, whole or half of it."""
    stop = threading.Event()

    write_torch_dist(tmp_path / "iter_0000001")

    def save_and_delete() -> None:
        iteration = 2
        while not stop.is_set():
            write_torch_dist(tmp_path / f"iter_{iteration:07d}")
            if iteration > 2:
                shutil.rmtree(tmp_path / f"iter_{iteration - 2:07d}")
            iteration += 1

    saver = threading.Thread(target=save_and_delete)
    saver.start()
    try:
        seen = {checkpoint.verdict.verdict for _ in range(15) for checkpoint in read_checkpoints(tmp_path)}
    finally:
        stop.set()
        saver.join()
    assert "complete" in seen
    assert seen <= {"complete", "incomplete"}


def write_release(folder: Path) -> None:
    (folder / "release" / "mp_rank_00").mkdir(parents=True)
    (folder / "release" / "mp_rank_00" / "model_optim_rng.pt").write_bytes(OLD_LEGACY)
    (folder / "latest_checkpointed_iteration.txt").write_text("release")


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["converted", "release"])
def test_release(tmp_path: Path, folder: str) -> None:
    """The output of a converter has no iteration, so a training that loads it starts at 0."""
    write_release(tmp_path / folder)
    assert verdicts(tmp_path / folder) == [(0, "torch", "complete")]
    assert verdicts(tmp_path / folder / "release") == [(0, "torch", "complete")]
    write_torch_dist(tmp_path / folder / "iter_0000007")
    assert verdicts(tmp_path / folder) == [(0, "torch", "complete"), (7, "torch_dist", "complete")]


@pytest.mark.slow
def test_what_cannot_be_read_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_torch_dist(tmp_path / "iter_0000007")
    shut = write_torch_dist(tmp_path / "iter_0000008")
    scan = os.scandir

    def refusing(path: str) -> object:
        if Path(path) == shut:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    whole, unread = read_checkpoints(tmp_path)
    assert whole.verdict.is_complete
    assert unread.verdict.verdict == "unverifiable"
    assert "Permission denied" in unread.verdict.reason
