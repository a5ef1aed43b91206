"""The probe of a hostile spec: load, expand, plan and render it, and collect all output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from processor_limits import processor_limit

from airflow_megatron.plan.sweep_plan import check_document, check_sweep
from airflow_megatron.slurm.submission.job_script import JobScriptError, render_job_script
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import templates_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path

MOST_SECONDS = 5.0
"""Processor time that reading and planning any file may take, on a processor of usual speed."""

AUTOEXPERIMENT = """\
template: job.sbatch
cmd: "sbatch --nice=5 {sbatch_script}"
check_interval_secs: 60
termination_str: "done"
steps: 10
output_file: "logs/{name}.out"
sbatch_script: "scripts/{name}.sbatch"
name: "job_{steps}"
"""
OELLM = """\
job: {name: study, base_output_dir: "out/${.name}"}
backend: {class_name: NullBackend, command: [echo, hello]}
slurm: {sbatch: {nodes: 1, account: abc, time: "00:10:00"}, env: {}}
sweep: {base_values: {}}
"""
NATIVE = """\
name: study
cluster: local
point: only
stages:
  run:
    kind: command
    command: [echo, hello]
    slurm: {time: 10m}
"""
TEMPLATE = "#!/bin/bash\necho {steps}\n"


def shown(path: Path) -> str:
    """Return everything that lint, plan and render would show of a spec, errors included; its time is checked."""
    parts: list[str] = []
    with processor_limit(MOST_SECONDS, path.name):
        try:
            sweep = load_sweep(path)
            check_document(sweep)
            plan = check_sweep(sweep, load_cluster("local"))
            parts += [str(warning) for warning in plan.warnings]
            for job in plan.jobs:
                parts.append(json.dumps(job.to_json()))
                try:
                    parts.append(render_job_script(job, load_cluster("local"), 1, templates_dir()))
                except JobScriptError as error:
                    parts.append(str(error))
        except SpecError as error:
            parts.append(str(error))
    return "\n".join(parts)


def errors_of(path: Path) -> str:
    """Return the errors of a spec, empty for a good one."""
    try:
        sweep = load_sweep(path)
        check_document(sweep)
        check_sweep(sweep, load_cluster("local"))
    except SpecError as error:
        return str(error)
    return ""
