"""Reader of the checkpoints of a folder on this machine: listings, and the decisive part of their content.

Content can only lower the verdict: a file that begins correctly and is cut off, or is all zeros (a node that lost
power), makes a checkpoint incomplete. Content of an unknown kind is ignored.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.checkpoints.completeness import (
    Checkpoint,
    Evidence,
    is_checkpoint,
    list_checkpoints,
)
from airflow_megatron.megatron.checkpoints.dcp_metadata import (
    DamagedMetadataError,
    read_dcp_metadata,
    read_inert,
)
from airflow_megatron.megatron.checkpoints.deepspeed import FORMAT as DEEPSPEED
from airflow_megatron.megatron.checkpoints.deepspeed import DeepSpeedLayout, is_deepspeed, model_states
from airflow_megatron.megatron.checkpoints.evidence_reader import read_evidences
from airflow_megatron.megatron.checkpoints.legacy import MODEL_FILES, LegacyLayout, is_legacy
from airflow_megatron.spec.layout.run_layout import TRACKER_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.megatron.checkpoints.dcp_metadata import DcpMetadata

_CHECKPOINT_FORMAT = re.compile(rb"ckpt_format.{1,16}?(fsdp_dtensor|torch_dcp|torch_dist)", re.DOTALL)
_LARGEST_METADATA: Final = 1 << 30
_LARGEST_ARGUMENTS: Final = 1 << 24
_LARGEST_PICKLE: Final = 1 << 26
_LARGEST_DECLARATION: Final = 1 << 20
_HEAD: Final = 4096
_TAIL: Final = 64
_ARCHIVE: Final = b"PK\x03\x04"
"""The first bytes of a zip archive, which ``torch.save`` writes."""


def read_checkpoints(folder: Path) -> list[Checkpoint]:
    """Judge every checkpoint of a folder.

    :param folder: Megatron's ``--save`` directory, or one ``iter_*``, ``global_step*`` or ``release`` directory of it.
    :returns: the checkpoints in ascending order of iteration; those deleted in the meantime are left out.
    :raises NotADirectoryError, FileNotFoundError: if there is no such folder.
    """
    if not folder.is_dir():
        kind = NotADirectoryError if folder.exists() else FileNotFoundError
        raise kind(f"{folder} is not a folder; give Megatron's --save directory")
    folder = folder.absolute()  # "." has no name
    names = sorted(entry.name for entry in folder.iterdir())
    parent = folder
    if is_checkpoint(folder.name) and not any(map(is_checkpoint, names)):
        parent, names = folder.parent, [folder.name]
    listings: dict[str, dict[str, int]] = {}
    evidence: dict[str, Evidence] = {}
    for name in names:
        if not is_checkpoint(name) or not (parent / name).is_dir():
            continue
        try:
            files = list_files(parent / name)
        except OSError as error:
            listings[name], evidence[name] = {}, Evidence(unreadable=f"{name}: {error.strerror}")
            continue
        if not (parent / name).is_dir():
            continue  # --save-retain-interval may delete files during the reading
        listings[name] = files
    evidence |= read_evidences(
        parent, {name: files for name, files in listings.items() if name not in evidence}
    )
    return list_checkpoints(listings, tracker=_text(parent / TRACKER_FILE), evidence=evidence)


def list_files(directory: Path) -> dict[str, int]:
    """Return the files of a checkpoint, two levels deep: path below *directory* → size in bytes.

    Files that are deleted in the meantime are left out.

    :raises OSError: if a directory cannot be read.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    found: dict[str, int] = {}
    for root, directories, names in os.walk(directory, followlinks=True, onerror=refuse):
        below = Path(root).relative_to(directory)
        if len(below.parts) >= 1:
            directories.clear()
        for name in names:
            try:
                found[(below / name).as_posix()] = (Path(root) / name).stat().st_size
            except FileNotFoundError:
                continue
    return found


def read_evidence(directory: Path, files: Mapping[str, int]) -> Evidence:
    """Read the evidence in the content of a checkpoint's files.

    :param directory: the ``iter_*`` or ``global_step*`` directory.
    :param files: its listing.
    """
    if is_deepspeed(files):
        return _deepspeed_evidence(directory, files)
    if is_legacy(files):
        return _legacy_evidence(directory, files)
    damaged: dict[str, str] = {}
    form: str | None = None
    needed: Mapping[str, int] | None = None
    if 0 < files.get(".metadata", 0) <= _LARGEST_METADATA:
        try:
            metadata = read_dcp_metadata((directory / ".metadata").read_bytes())
        except DamagedMetadataError as error:
            damaged[".metadata"] = str(error)
        except OSError:
            metadata = None
        else:
            if metadata is not None:
                needed = metadata.sizes
                form = metadata.format or _format_of_arguments(directory, metadata)
    required: tuple[str, ...] = ()
    if files.get("metadata.json"):
        declared = _declared_backends(directory / "metadata.json", damaged)
        form = declared.get("sharded_backend") or form
        required = ("common.pt",) if declared.get("common_backend") == "torch" else ()
    if files.get("common.pt"):
        form = "torch_dist"
        _check_end(directory, "common.pt", damaged)
    for name in sorted(files):
        if name.endswith(".distcp") and files[name]:
            _check_data(directory, name, damaged)
    return Evidence(form, needed, damaged, required=required)


def _declared_backends(path: Path, damaged: dict[str, str]) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            content: Any = json.loads(stream.read(_LARGEST_DECLARATION))
    except OSError:
        return {}
    except (ValueError, RecursionError) as error:
        damaged[path.name] = f"it is not JSON: {error}"
        return {}
    if not isinstance(content, dict) or not isinstance(content.get("sharded_backend"), str):
        damaged[path.name] = "it names no sharded_backend"
        return {}
    return content


def _check_data(directory: Path, name: str, damaged: dict[str, str]) -> None:
    """Record damage of a data file whose beginning or end was never written; each part in it is an archive of
    ``torch.save``.
    """
    try:
        with (directory / name).open("rb") as stream:
            head = stream.read(_HEAD)
            if not head.strip(b"\0"):
                damaged[name] = "it begins with nothing but zero bytes"
            elif head.startswith(_ARCHIVE):
                stream.seek(-min(_TAIL, stream.seek(0, os.SEEK_END)), os.SEEK_END)
                if not stream.read(_TAIL).strip(b"\0"):
                    damaged[name] = "it ends with nothing but zero bytes"
    except OSError:
        pass


def _format_of_arguments(directory: Path, metadata: DcpMetadata) -> str | None:
    """Return ``--ckpt-format`` from the arguments that ``torch_dcp`` and ``fsdp_dtensor`` store."""
    part = metadata.parts.get("args")
    if part is None or Path(part.path).name != part.path or part.length > _LARGEST_ARGUMENTS:
        return None
    try:
        with (directory / part.path).open("rb") as stream:
            stream.seek(part.offset)
            match = _CHECKPOINT_FORMAT.search(stream.read(part.length))
    except OSError:
        return None
    return match.group(1).decode() if match else None


def _deepspeed_evidence(directory: Path, files: Mapping[str, int]) -> Evidence:
    damaged, whole = _checked_archives(directory, files)
    state_file = model_states(name for name in files if files[name] and name not in damaged)
    layout = _deepspeed_layout(_state_of(directory / state_file)) if state_file else None
    return Evidence(DEEPSPEED, damaged=damaged, deepspeed=layout, whole=whole)


def _deepspeed_layout(state: Mapping[str, Any]) -> DeepSpeedLayout | None:
    model, data, config = (state.get(key) for key in ("mp_world_size", "dp_world_size", "ds_config"))
    zero = config.get("zero_optimization") if isinstance(config, dict) else None
    stage = zero.get("stage", 0) if isinstance(zero, dict) else 0
    if not isinstance(model, int) or not isinstance(data, int) or not isinstance(stage, int):
        return None
    return DeepSpeedLayout(model, data, stage)


def _checked_archives(directory: Path, files: Mapping[str, int]) -> tuple[dict[str, str], bool]:
    """Return the problems of the files that ``torch.save`` wrote, and whether the end of each was found."""
    damaged: dict[str, str] = {}
    archives = [name for name in sorted(files) if name.endswith(".pt") and files[name]]
    ended = [_check_end(directory, name, damaged) for name in archives]
    return damaged, bool(archives) and all(ended)


def _legacy_evidence(directory: Path, files: Mapping[str, int]) -> Evidence:
    damaged, whole = _checked_archives(directory, files)
    layout: LegacyLayout | None = None
    for name in sorted(files):
        is_model = name.rpartition("/")[2] in MODEL_FILES
        if is_model and files[name] and name not in damaged:
            arguments = _state_of(directory / name).get("args")
            layout = _layout(getattr(arguments, "attributes", {}))
            break
    return Evidence("torch", damaged=damaged, legacy=layout, whole=whole)


def _check_end(directory: Path, name: str, damaged: dict[str, str]) -> bool:
    """Record damage of a file written by ``torch.save``; return whether its end was found.

    It is a zip archive, whose directory comes last. The format before PyTorch 1.6 has no end mark.
    """
    path = directory / name
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
        if head.startswith(_ARCHIVE) or _ARCHIVE.startswith(head):
            if zipfile.is_zipfile(path):
                return True
            damaged[name] = "the archive has no end: it was cut off"
        elif head and not head.strip(b"\0"):
            damaged[name] = "it begins with nothing but zero bytes"
    except OSError:
        pass
    return False


def _state_of(path: Path) -> Mapping[str, Any]:
    """Return the content of a ``torch.save`` file with inert tensors and objects; empty if it cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if member.filename.endswith("/data.pkl") and member.file_size <= _LARGEST_PICKLE:
                    state = read_inert(archive.read(member))
                    return state if isinstance(state, dict) else {}
    except (OSError, zipfile.BadZipFile, DamagedMetadataError):
        pass
    return {}


def _layout(arguments: Mapping[str, Any]) -> LegacyLayout | None:
    sizes = []
    for axis in ("tensor", "pipeline", "expert"):
        size = arguments.get(f"{axis}_model_parallel_size", None if axis == "tensor" else 1)
        if not isinstance(size, int) or size < 1:
            return None
        sizes.append(size)
    expert_tensor = arguments.get("expert_tensor_parallel_size")
    has_optimizer = arguments.get("use_distributed_optimizer") is True and not arguments.get("no_save_optim")
    tensor, pipeline, expert = sizes
    return LegacyLayout(
        tensor,
        pipeline,
        expert,
        expert_tensor=expert_tensor if isinstance(expert_tensor, int) and expert_tensor > 0 else None,
        distributed_optimizer=has_optimizer,
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
