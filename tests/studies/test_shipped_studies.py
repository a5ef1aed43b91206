"""The table of studies has each shipped spec, and each kind of parallelism runs or has a reason not to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from shipped import shipped_plan
from studies import STUDIES, TRAINED, Study

from airflow_megatron.plan.point_choice import choose_points
from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep, spec_files

SPECS = project_root() / "sweep_specs"
CHOSEN = [
    pytest.param(
        study,
        id=f"{study.spec} {study.label}",
        marks=() if study.spec == "quickstart" else pytest.mark.long,
    )
    for study in STUDIES
    if study.select
]


def shrunk_plan(study: Study) -> Plan:
    settings = [text.replace("{data}", "/data").replace("{place}", "/tests") for text in study.settings]
    sweep = load_sweep(SPECS / f"{study.spec}.yaml", settings)
    return check_sweep(sweep, load_cluster("local"), choose_points(sweep, study.select))


def test_no_shipped_spec_is_forgotten() -> None:
    assert {study.spec for study in STUDIES} == {path.stem for path in spec_files(SPECS)}


@pytest.mark.slow
@pytest.mark.parametrize("study", CHOSEN)
def test_the_shrunk_spec_is_linted_clean_and_keeps_every_stage(study: Study) -> None:
    plan = shrunk_plan(study)
    assert plan.warnings == ()
    kinds = {job.stage.split("_")[0].split(".")[-1] for job in plan.jobs}
    shipped = {job.stage.split("_")[0].split(".")[-1] for job in shipped_plan(study.spec).jobs}
    assert kinds == shipped
    trainings = [job.params["train_iters"] for job in plan.jobs if job.runs_trainer]
    assert TRAINED <= min(trainings) <= max(trainings) <= 3 * TRAINED


@pytest.mark.parametrize(
    "spec", ["parallelism_gpt2_large", "parallelism_scaling", "parallelism_model_scaling"]
)
def test_every_way_of_parallelism_runs_or_has_a_reason(spec: str) -> None:
    (study,) = (study for study in STUDIES if study.spec == spec)
    ways = {way(point) for point in shipped_plan(spec).points}
    ran = {way(point) for point in study.select.split(",")}
    assert ways == ran | {pattern.rstrip("*") for pattern in study.not_run}
    assert len(ways) >= 3


def way(point: str) -> str:
    """Return the letters that a point's name begins with: ``tp`` of ``tp2_weak``."""
    return next(iter(re.findall(r"^[a-z]+", point)))


COUNTED = """\
import sys
from processor_time import run_counted
burn = "import time\\nwhile time.process_time() < 0.3: pass"
left = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}], start_new_session=True)"
left += "; sys.exit(3)"
status, used = run_counted([sys.executable, "-c", left])
print(status, used)
"""


@pytest.mark.slow
def test_daemons_are_counted() -> None:
    """Processor time holds that of processes which others have left behind."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    status, used = done.stdout.split()
    assert status == "3"
    assert 0.3 < float(used) < 10
