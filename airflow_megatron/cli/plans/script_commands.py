"""The commands ``render`` and ``build``, which write sbatch scripts without submitting them."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_megatron.cli.plans.spec_options import (
    ClusterOption,
    SelectOption,
    SetOption,
    SpecArgument,
    checked_plan,
    complete_job,
    load_own_spec,
)
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.slurm.submission.job_script import JobScriptError, attempt_of
from airflow_megatron.spec.documents.quantities import counted
from airflow_megatron.spec.model.cluster_profile import load_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

_UNSAFE = re.compile(r"[^A-Za-z0-9._=+-]")
_LONGEST_NAME = 200

AttemptOption = Annotated[int, typer.Option("--attempt", min=1, help="Number of the attempt")]


def render(
    spec: SpecArgument,
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="The job: POINT.STAGE, or its full name", autocompletion=complete_job
        ),
    ] = "",
    job: Annotated[str, typer.Option("--job", help="The same as JOB", autocompletion=complete_job)] = "",
    attempt: AttemptOption = 1,
    settings: SetOption = None,
    cluster: ClusterOption = None,
) -> None:
    """Print the exact sbatch script of a job."""
    if bool(name) == bool(job):
        raise typer.BadParameter("name one job: airflow-megatron render SPEC POINT.STAGE")
    planned = checked_plan(load_own_spec(spec, settings), cluster)
    try:
        script = job_script(planned.job(name or job), load_cluster(planned.cluster), attempt)
    except (KeyError, JobScriptError) as error:
        print(error.args[0], file=sys.stderr)
        raise typer.Exit(1) from None
    sys.stdout.write(script)


def build(
    spec: SpecArgument,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder for the scripts")],
    attempt: AttemptOption = 1,
    select: SelectOption = "",
    settings: SetOption = None,
    cluster: ClusterOption = None,
) -> None:
    """Write JOB.sbatch for every job, and plan.json, to a folder. Nothing is submitted."""
    _require_room(directory)
    planned = checked_plan(load_own_spec(spec, settings), cluster, select)
    profile = load_cluster(planned.cluster)
    try:
        _write_whole(directory, planned, _scripts(planned.jobs, profile, attempt))
    except JobScriptError as error:
        print(error.args[0], file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        print(f"{directory} cannot be written: {error.strerror}", file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"wrote {counted(len(planned.jobs), 'script')} and plan.json to {directory}", file=sys.stderr)


def _write_whole(directory: Path, planned: Plan, scripts: Iterable[tuple[str, str]]) -> None:
    """Write a temporary folder and rename it, so that the folder appears complete or not at all."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        for file, script in scripts:
            (new / file).write_text(script, encoding="utf-8")
        with (new / "plan.json").open("wb") as output:
            output.writelines(planned.json_text())
        new.chmod(0o777 & ~_umask())
        new.replace(directory)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _require_room(directory: Path) -> None:
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise typer.BadParameter(f"{directory} is not a folder")
    if directory.is_dir() and any(directory.iterdir()):
        raise typer.BadParameter(f"{directory} is not empty; name a new folder, or empty it first")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _scripts(jobs: Iterable[Job], profile: ClusterProfile, attempt: int) -> Iterator[tuple[str, str]]:
    """Yield the file name and script of each job; use the Slurm job name if the job's name is not a valid file name."""
    taken: set[str] = set()
    for job in jobs:
        name = _UNSAFE.sub("_", job.name).lstrip(".")
        if not name or len(name) > _LONGEST_NAME or name in taken:
            name = attempt_of(job, attempt).job_name
        taken.add(name)
        yield f"{name}.sbatch", job_script(job, profile, attempt)
