"""Helpers of the tests of the AutoExperiment dialect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_megatron.spec.dialects.autoexperiment.expansion import Expansion, expand_document
from airflow_megatron.spec.dialects.autoexperiment.references import load_autoexperiment_yaml

CONFORMANCE = Path(__file__).parents[2] / "fixtures" / "conformance"
FIELDS = {"output_file": "o", "cmd": "c", "sbatch_script": "s"}
ENVIRONMENT = {"AE_TEST": "val"}


def as_job(text: str) -> str:
    """Add the fields that make a grammar example a job."""
    fields = "".join(f"{key}: {value}\n" for key, value in FIELDS.items())
    return f"{text.rstrip()}\n{fields}"


def expand(text: str) -> Expansion:
    """Expand a document."""
    document, _ = load_autoexperiment_yaml(text, "spec.yaml", ENVIRONMENT)
    return expand_document(document)


def params_of(text: str) -> list[dict[str, Any]]:
    """Expand a grammar example; return its jobs without the fields that were added."""
    return [
        {key: value for key, value in job.params.items() if key not in FIELDS}
        for job in expand(as_job(text)).jobs
    ]
