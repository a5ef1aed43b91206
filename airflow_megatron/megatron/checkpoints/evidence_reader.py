"""Read the evidence in checkpoints' content, in a separate process with limited time and memory.

A pickle of a few bytes can need more time and memory than available, in one step that cannot be interrupted: sixty
nested tuples as the key of a dictionary. It is therefore read in a process that the system ends at a limit.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import airflow_megatron
from airflow_megatron.megatron.checkpoints.completeness import Evidence
from airflow_megatron.megatron.checkpoints.deepspeed import DeepSpeedLayout
from airflow_megatron.megatron.checkpoints.legacy import LegacyLayout

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY_BYTES: Final = 8 << 30
SECONDS: Final = 5.0
SECONDS_PER_GIB: Final = 300.0
"""Limits of processor time in seconds: for a small checkpoint, and additionally for each GiB of its pickles."""

_TOO_MUCH: Final = "reading it takes more time or memory than that of a checkpoint"


def read_evidences(folder: Path, listings: Mapping[str, Mapping[str, int]]) -> dict[str, Evidence]:
    """Read the evidence in the content of each checkpoint's files.

    :param folder: the checkpoints folder
    :param listings: name of a directory in it → its files
    :returns: name → evidence; a checkpoint that cannot be read within the limits has a damaged file
    """
    found: dict[str, Evidence] = {}
    while left := [name for name in listings if name not in found]:
        before = len(found)
        found |= _read_some(folder, {name: listings[name] for name in left})
        if len(found) - before < len(left):
            blamed = next(name for name in left if name not in found)
            found[blamed] = Evidence(damaged={_pickle_of(listings[blamed]): _TOO_MUCH})
    return found


def _read_some(folder: Path, listings: Mapping[str, Mapping[str, int]]) -> dict[str, Evidence]:
    """Read until all evidence is read, or the process is ended."""
    root = str(Path(airflow_megatron.__file__).parent.parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
    }
    asked = json.dumps([str(folder), listings, SECONDS])
    done = subprocess.run(
        [sys.executable, "-m", "airflow_megatron.megatron.checkpoints.evidence_reader"],
        input=asked.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        check=False,
    )
    found: dict[str, Evidence] = {}
    for line in done.stdout.split(b"\n")[:-1]:
        name, value = json.loads(line)
        found[name] = _evidence(value)
    return found


def _evidence(value: dict[str, Any]) -> Evidence:
    made = Evidence(**{**value, "required": tuple(value["required"])})
    return replace(
        made,
        legacy=LegacyLayout(**value["legacy"]) if value["legacy"] else None,
        deepspeed=DeepSpeedLayout(**value["deepspeed"]) if value["deepspeed"] else None,
    )


def _pickle_of(files: Mapping[str, int]) -> str:
    return (
        ".metadata"
        if ".metadata" in files
        else min((name for name in files if name.endswith(".pt")), default="")
    )


def _main() -> None:
    from airflow_megatron.megatron.checkpoints.folder import read_evidence

    folder, listings, seconds = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, files in listings.items():
        size = sum(size for path, size in files.items() if path == ".metadata")
        signal.setitimer(signal.ITIMER_PROF, seconds + SECONDS_PER_GIB * size / 2**30)
        evidence = asdict(read_evidence(Path(folder) / name, files))
        print(json.dumps([name, evidence]), flush=True)


if __name__ == "__main__":
    _main()
