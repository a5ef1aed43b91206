"""A site with the restrictions of real sites: no accounting, no internet on nodes, few files, slow logins and queues.

It is a separate login node of the tests' cluster. Its Slurm commands, which are first on its ``PATH``, hide each job
for some seconds and have no accounting. A stand-in for a container runtime starts jobs without a network.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

from imitated_site import WITHOUT_NETWORK
from ssh_server import USER, SshServer, make_key

from airflow_megatron.spec.documents.project import HOME_VARIABLE, local_dir

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

HIDDEN_S: Final = 4
"""How long a new job is invisible; real sites: up to 2 minutes."""
WINDOW_S: Final = 15
MOST_FILES: Final = 400
_PROFILE: Final = """\
ssh_conn_id: slurm_harsh
run_root: "{place}/runs"
python: "{trainer}/bin/python"
megatron_lm_dir: "{{{{ job_programs }}}}"
slurm: {{partition: main, cpus_per_task: 1}}
slurm_bin: "{place}/slurm"
setup: ['export PATH="{place}/programs:$PATH"']
container: {{runtime: apptainer, image: "{place}/image.sif"}}
visibility_window: {window}s
storage: {{quota: "df -i {place}/runs", purge_after: 30d}}
"""
_VISIBLE: Final = """\
#!/bin/bash
# Jobs older than {hidden} s, as a list with commas.
visible=$(SLURM_TIME_FORMAT=%s {squeue} --noheader --states=all --format='%A %V' |
  awk -v now="$(date +%s)" 'now - $2 >= {hidden} {{ printf "%s%s", (n++ ? "," : ""), $1 }}')
"""
_SQUEUE: Final = """\
[ "$1" != --version ] || exec {squeue} "$@"
[ -n "$visible" ] || exit 0
exec {squeue} "$@" --jobs="$visible"
"""
_SCONTROL: Final = """\
[ "$*" = -o ] || exec {scontrol} "$@"
awk -v visible=",$visible," '/job/ && !index(visible, "," $NF ",") {{ print "show job 99999999"; next }} {{ print }}' |
  {scontrol} -o
"""
_CONTAINER: Final = """\
#!/bin/bash
# Run what follows the image, without a network but the node's own loopback.
while [[ $# -gt 0 && "$1" != *.sif ]]; do shift; done
shift
{words} "$@"
"""


class HarshSite:
    """The site; a context manager.

    :param place: folder for its files
    """

    def __init__(self, place: Path, cluster: SlurmCluster) -> None:
        self.place, self.cluster = place, cluster
        self.runs, self.slurm = place / "runs", place / "slurm"

    def __enter__(self) -> HarshSite:
        self.runs.mkdir()
        limits = f"size=16m,nr_inodes={MOST_FILES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", limits, "runs", str(self.runs)], check=True)
        self._write_commands()
        profiles = self.place / "project" / "sbatch" / "clusters"
        profiles.mkdir(parents=True)
        (profiles / "harsh.yaml").write_text(
            _PROFILE.format(place=self.place, trainer=local_dir() / "venv-trainer", window=WINDOW_S)
        )
        key = make_key(self.place / "id")
        self.server = SshServer(
            self.place / "sshd",
            key,
            # drop further connections during a login
            MaxStartups="1:100:1",
            SetEnv=f"HOME={self.place / 'sshd' / 'home'} SLURM_CONF={self.cluster.description['slurm_conf']}",
        )
        self.server.start()
        connection = {
            "conn_type": "ssh",
            "host": "127.0.0.1",
            "port": self.server.port,
            "login": USER,
            "extra": {"key_file": str(key), "host_key": self.server.public_host_key},
        }
        self.variables = {
            HOME_VARIABLE: str(self.place / "project"),
            "AIRFLOW_CONN_SLURM_HARSH": json.dumps(connection),
        }
        return self

    def __exit__(self, *error: object) -> None:
        self.server.stop()
        subprocess.run(["umount", "--lazy", str(self.runs)], check=True)

    def _write_commands(self) -> None:
        real = {name: shutil.which(name) for name in ("squeue", "scontrol", "sbatch", "scancel", "sinfo")}
        visible = _VISIBLE.format(hidden=HIDDEN_S, squeue=real["squeue"])
        texts = {
            "slurm/squeue": visible + _SQUEUE.format(**real),
            "slurm/scontrol": visible + _SCONTROL.format(**real),
            "slurm/sacct": "#!/bin/sh\necho 'Slurm accounting storage is disabled' >&2\nexit 1\n",
            "programs/apptainer": _CONTAINER.format(words=WITHOUT_NETWORK),
            **{
                f"slurm/{name}": f'#!/bin/sh\nexec {real[name]} "$@"\n'
                for name in ("sbatch", "scancel", "sinfo")
            },
        }
        for name, text in texts.items():
            path = self.place / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
