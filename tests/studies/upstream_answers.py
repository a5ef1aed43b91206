"""Upstream's own verdicts on command lines: what ``upstream_verdicts.py`` prints, run by the trainer's Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_megatron.megatron.commands.commands import comparable_words
from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.spec.model.jobs import Job

PROGRAM = Path(__file__).with_name("upstream_verdicts.py")
HOPPER: dict[str, Any] = {"transformer_engine": "2.8", "compute_capability": 9}
"""Default of a cluster profile."""


def upstream_answers(
    lines: Sequence[Mapping[str, Any]], checkout: Path, release: str
) -> list[dict[str, Any]]:
    """Check command lines with a checkout.

    :param lines: as ``upstream_verdicts.py`` reads them
    :returns: a verdict each
    :raises RuntimeError: when the program does not answer all of them
    """
    done = subprocess.run(
        [local_dir() / "venv-trainer/bin/python", "-W", "ignore", PROGRAM, checkout, release],
        input="".join(json.dumps(line) + "\n" for line in lines),
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [json.loads(text) for text in done.stdout.splitlines()]
    if done.returncode or len(answers) != len(lines):
        raise RuntimeError(f"{PROGRAM.name} answered {len(answers)} of {len(lines)}: {done.stderr[-2000:]}")
    return answers


def command_line_of(job: Job) -> dict[str, Any]:
    """Return a job's training command as a line for :func:`upstream_answers`."""
    env = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", **{name: str(value) for name, value in job.env.items()}}
    return {"argv": comparable_words(job.command), "world_size": job.world_size, "env": env, **HOPPER}
