"""Scripts of a planned job's attempts, and the digest of what the job computes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from airflow_megatron.megatron.commands.commands import branch_arguments, input_words, needed_to_start
from airflow_megatron.plan.job_origins import job_origins
from airflow_megatron.slurm.submission.job_script import render_job_script
from airflow_megatron.spec.model.stage_kinds import PREFETCHED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from airflow_megatron.slurm.submission.queue_ahead import StageBefore
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job


def job_digest(job: Job) -> str:
    """Return a digest of a job's command and inputs, without its resources."""
    # a longer list of prefetched items does not change what the job computes
    env = {name: value for name, value in job.env.items() if name != PREFETCHED}
    what = [input_words(job), job.outputs, job.parent_dir, job.iteration, sorted(env.items())]
    what += [job.source.inputs] if job.source else []
    what += [job.script] if job.script else []
    what += [sorted(job.files.items())] if job.files else []
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]


def job_script(
    job: Job,
    cluster: ClusterProfile,
    number: int,
    exclude: Iterable[str] = (),
    *,
    chained: bool = False,
    before: StageBefore | None = None,
    templates: Path | Mapping[str, str] | None = None,
) -> str:
    """Return the sbatch script of an attempt of a planned job; see :func:`.render_job_script`.

    :param templates: folder of the templates; default: the folder in the profile, else that of the project
    """
    return render_job_script(
        job,
        cluster,
        number,
        cluster.templates_folder if templates is None else templates,
        branch_arguments=branch_arguments(job),
        needed_to_start=needed_to_start(job),
        exclude=exclude,
        chained=chained,
        before=before,
        origins=job_origins(job, cluster),
    )
