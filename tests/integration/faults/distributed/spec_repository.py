"""A git repository of specs that Airflow reads as a bundle."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DAG_FILE = """\
from pathlib import Path

from airflow_megatron.dag_factory.spec_files import build_sweep_dags

for dag in build_sweep_dags(Path(__file__).with_name("sweep_specs")):
    globals()[dag.dag_id] = dag
"""
SPEC = """\
name: bundled
cluster: proxied
point: only
poll_interval: 1
slurm: {{time: 5m}}
stages:
  hold: {{kind: command, command: [bash, -c, "until test -e '{{{{ run_dir }}}}/go'; do sleep 0.2; done"]}}
  {stage}: {{kind: command, parent: hold, command: [bash, -c, "echo {text} >> '{{{{ run_dir }}}}/texts'"]}}
"""


class SpecRepository:
    """The repository.

    :param place: its folder
    """

    def __init__(self, place: Path) -> None:
        self.place = place

    def create(self) -> None:
        """Make the repository with the DAG file, and the first version of the spec."""
        (self.place / "sweep_specs").mkdir(parents=True)
        (self.place / "sweeps.py").write_text(DAG_FILE)
        self._git("init", "--quiet", "--initial-branch", "main")
        self.commit("first", "first")

    def commit(self, stage: str, text: str) -> str:
        """Commit a spec whose second stage has this name and writes this text; return the commit."""
        (self.place / "sweep_specs" / "bundled.yaml").write_text(SPEC.format(stage=stage, text=text))
        self._git("add", ".")
        self._git("-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "--quiet", "-m", text)
        return self._git("rev-parse", "HEAD").strip()

    def bundles(self) -> str:
        """Return Airflow's list of bundles: the folder of DAGs, and this repository."""
        git = {"repo_url": str(self.place), "tracking_ref": "main", "refresh_interval": 5}
        return json.dumps(
            [
                {
                    "name": "dags-folder",
                    "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                    "kwargs": {},
                },
                {
                    "name": "specs",
                    "classpath": "airflow.providers.git.bundles.git.GitDagBundle",
                    "kwargs": git,
                },
            ]
        )

    def _git(self, *words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(self.place), *words], check=True, capture_output=True, text=True
        ).stdout
