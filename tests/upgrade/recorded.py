"""What commit 7332a23 left of four sweeps under way: Airflow's rows, run directories, what the command line printed."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from airflow_megatron.spec.model.jobs import Job

FIXTURES = Path(__file__).parents[1] / "fixtures" / "upgrade_from_7332a23"
SWEEPS = ("carried", "crowd", "row", "trained")
_SITE = "/site"


@cache
def _text(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


class Recording:
    """The recording, moved to another folder.

    :param place: replaces the folder of the recorded site, with ``local/runs``, ``sweep_specs`` and ``project``.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.runs_dir = place / "local" / "runs"

    def json(self, name: str) -> Any:
        """Return a file of the recording with its paths in ``place``."""
        return json.loads(self.moved(_text(name)))

    def moved(self, text: str) -> str:
        return text.replace(f"{_SITE}/", f"{self.place}/")

    def as_recorded(self, job: Job) -> Job:
        """Return a job with its paths on the recorded site, because paths are part of its digest."""
        return Job.from_json(json.loads(json.dumps(job.to_json()).replace(f"{self.place}/", f"{_SITE}/")))

    def text(self, name: str) -> str:
        return self.moved(_text(name))

    @property
    def environment(self) -> dict[str, str]:
        """Variables that name the folders and the trainer of the recording."""
        return {
            "AIRFLOW_MEGATRON_HOME": str(self.place / "project"),
            "AIRFLOW_MEGATRON_LOCAL": str(self.place / "local"),
            "AIRFLOW_MEGATRON_SWEEP_SPECS": str(self.place / "sweep_specs"),
            "AIRFLOW_MEGATRON_SPEC_VARIABLES": "TEST_PYTHON,TEST_PARTITION,FAULTS_TRAINER",
            "FAULTS_TRAINER": "/checkout/tests/pretend.sh",
        }

    def plant_runs(self) -> None:
        """Create the recorded run directories."""
        for name, content in self.json("run_directories.json").items():
            path = self.runs_dir / name
            if name.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if "link" in content:
                path.symlink_to(content["link"])
            elif "zeros" in content:
                path.write_bytes(bytes(content["zeros"]))
            else:
                path.write_text(content["text"], encoding="utf-8")

    def plant_project(self, checkout: Path) -> None:
        """Create the folders of project and specs: recorded profiles and specs, other files from a checkout."""
        sbatch, specs = self.place / "project" / "sbatch", self.place / "sweep_specs"
        shutil.copytree(FIXTURES / "clusters", sbatch / "clusters")
        shutil.copytree(FIXTURES / "specs", specs)
        for template in (checkout / "sbatch").glob("*.j2"):
            (sbatch / template.name).symlink_to(template)
        (self.place / "project" / "Megatron-LM").symlink_to(checkout / "Megatron-LM")

    def spec(self, sweep: str) -> Path:
        return self.place / "sweep_specs" / f"{sweep}.yaml"

    def deferred(self) -> list[dict[str, Any]]:
        """Return the task instances that waited for a trigger."""
        return [row for row in self.json("task_instances.json") if row.get("trigger")]

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        names = (dag_id, run_id, task_id)
        rows = self.json("task_instances.json")
        return next(row for row in rows if (row["dag_id"], row["run_id"], row["task_id"]) == names)

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        names = (dag_id, run_id, task_id, key)
        rows = self.json("xcoms.json")
        found = [
            row["value"]
            for row in rows
            if (row["dag_id"], row["run_id"], row["task_id"], row["key"]) == names
        ]
        return found[0] if found else None

    def runs(self, dag_id: str) -> dict[str, dict[str, Any]]:
        """Return run id → row of the runs of a DAG."""
        return {row["run_id"]: row for row in self.json("dag_runs.json") if row["dag_id"] == dag_id}
