"""The commands on the page of each site, run in order on the imitation of the site."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from typing import TYPE_CHECKING

import pytest
from blocks import INDENTED
from imitated_site import described_size, description
from site_profiles import VARIABLES, profile
from slurm_cluster import SlurmCluster

from airflow_megatron.cli.setup.new_project import site_names
from airflow_megatron.spec.documents.project import local_dir, project_root
from airflow_megatron.spec.trust.permitted_variables import SETTING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPRESENTATIVE = "leonardo"
"""The site whose page is followed by ``make soak`` too."""
MOST_COMMANDS = 6
_SOAKED = (pytest.mark.integration, pytest.mark.long)
SITES = [
    pytest.param(site, marks=_SOAKED if site == REPRESENTATIVE else pytest.mark.sites)
    for site in site_names()
]
PROGRAMS = {
    # runs the arguments after the image on the host, with the Python of the trainer
    "apptainer": """\
while [[ $# -gt 0 && "$1" != *.sif ]]; do shift; done
shift
# bash would take itself for a login by ssh, and read the .bashrc of this machine
unset SSH_CLIENT SSH_CONNECTION
# this machine lacks the site's networks
unset GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME
export PATH={trainer}:$PATH
exec "$@\"""",
    "singularity": 'exec "${BASH_SOURCE[0]%/*}/apptainer" "$@"',
    "module": "",
}
"""What the site has, and this machine has not: name → bash."""


class NewUser:
    """A user with an own Airflow, a wheel, and a login on the imitation of a site."""

    def __init__(self, site: str, place: Path, migrated_home: Path) -> None:
        self.site, self.place = site, place
        self.home = place / "home"
        self.cluster = SlurmCluster(place / "cluster")
        (self.home / "airflow").mkdir(parents=True)
        shutil.copy(migrated_home / "airflow.db", self.home / "airflow")

    def make_site(self) -> None:
        programs = self.place / "programs"
        programs.mkdir()
        trainer = local_dir() / "venv-trainer" / "bin"
        for name, text in PROGRAMS.items():
            _write_program(programs / name, text.replace("{trainer}", shlex.quote(str(trainer))))
        described = description(profile(self.site))
        described["environment"] = {"PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin"}
        path = self.place / "site.json"
        path.write_text(json.dumps(described))
        self.cluster.control("up", "--imitate", str(path), *described_size(profile(self.site)))

    def install_wheel_builder(self) -> None:
        """Build the wheel and create its environment; other packages are those of the tests."""
        words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(self.home)]
        subprocess.run(words, cwd=project_root(), check=True, capture_output=True)
        venv.create(self.home / "environment", symlinks=True)
        (packages,) = (self.home / "environment").glob("lib/python*/site-packages")
        # as plain folders, which excludes the editable package of the tests
        (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
        programs = self.home / "environment" / "bin"
        for name in ("pip", "airflow"):
            _write_program(programs / name, f'exec {programs / "python"} -m {name} "$@"')
        # the system's client reads its configuration from the home of the account, not from HOME
        _write_program(programs / "ssh", f'exec /usr/bin/ssh -F {self.home / ".ssh" / "config"} "$@"')

    def log_in_by_hand(self, host: str) -> None:
        """Fulfil the prerequisites of the page: keys and the host key are in ``~/.ssh``."""
        server, folder = self.cluster.description["ssh"], self.home / ".ssh"
        folder.mkdir(mode=0o700)
        for key in ("id_ed25519", "cscs-key", "cineca", "nersc"):
            shutil.copy(server["key_file"], folder / key)
        shutil.copy(server["known_hosts"], folder / "known_hosts")
        (folder / "config").write_text(
            f"Host {host}\n  HostName {server['host']}\n  Port {server['port']}\n  User {server['user']}\n"
            f"  IdentityFile {folder / 'id_ed25519'}\n  UserKnownHostsFile {folder / 'known_hosts'}\n"
        )

    def follow(self, commands: list[str]) -> list[tuple[str, str, float]]:
        """Run commands one after another in one shell; return each with its output and duration."""
        values = {
            "OUTPUT_DIR": str(self.place / "output"),
            "CONTAINER_CACHE_DIR": str(self.place / "images"),
            "HF_HOME": str(self.place / "hf"),
            "SLURM_ACCOUNT": "local",
            "SLURM_QOS": VARIABLES["SLURM_QOS"],
        }
        (self.place / "output").mkdir(exist_ok=True)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW", "SLURM", "PYTHON", "PYTEST", "MEGATRON"))
        }
        environment = {
            **kept,
            "HOME": str(self.home),
            "USER": str(self.cluster.description["ssh"]["user"]),
            "PATH": f"{self.home / 'environment' / 'bin'}:{os.environ['PATH']}",
            "AIRFLOW_HOME": str(self.home / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }
        done: list[tuple[str, str, float]] = []
        exports: list[str] = []
        for command in commands:
            if command.startswith("export "):
                exports.append(_with_values(command, values))
                continue
            began = time.monotonic()
            # a file, because `ssh -f` keeps a pipe open
            with (self.home / "output.txt").open("w+") as output:
                ended = subprocess.run(
                    ["bash", "-euc", "\n".join([*exports, command])],
                    cwd=self.home,
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
                output.seek(0)
                text = output.read()
            assert ended.returncode == 0, f"{command}\n{text[-4000:]}"
            done.append((command, text, time.monotonic() - began))
        return done


def _write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def _with_values(command: str, values: dict[str, str]) -> str:
    """Return an ``export`` command with the test's values instead of the placeholders of the page."""
    words = []
    for word in shlex.split(command)[1:]:
        name, _, value = word.partition("=")
        words.append(f"{name}={shlex.quote(values.get(name, value))}")
    return f"export {' '.join(words)}"


def commands_of(site: str) -> list[str]:
    """Return the commands of a page, in order."""
    page = (project_root() / "docs" / "sites" / f"{site}.md").read_text()
    text = "".join(match[0] for match in INDENTED.finditer(page))
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip()]


@pytest.fixture(params=SITES)
def user(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated_home: Path
) -> Iterator[NewUser]:
    user = NewUser(request.param, tmp_path_factory.mktemp(request.param), migrated_home)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(SETTING, ",".join(VARIABLES))
            for name, value in VARIABLES.items():
                patch.setenv(name, value)
            user.make_site()
        user.install_wheel_builder()
        yield user
    finally:
        socket = user.home / ".ssh" / f"{user.site}.socket"
        if socket.exists():
            subprocess.run(["ssh", "-S", str(socket), "-O", "exit", "any"], check=False, capture_output=True)
        user.cluster.control("down", "--purge")


def test_the_first_job_of_a_site(user: NewUser) -> None:
    commands = commands_of(user.site)
    (host,) = {match[1] for line in commands if (match := re.search(r"--conn-host (\S+)", line))}
    user.log_in_by_hand(host)
    own = [line for line in commands if not line.startswith(("export ", "ssh "))]
    assert own[0].startswith("pip install")
    assert len(own) <= MOST_COMMANDS
    done = {
        command.split(" -")[0].split(" '")[0]: (out, spent) for command, out, spent in user.follow(commands)
    }
    assert f"\nThe connection of {user.site}" in done['airflow-megatron init "$AIRFLOW_HOME"'][0]
    checked, seconds = done[f"airflow-megatron cluster check {user.site}"]
    assert "failed" not in checked
    print(f"cluster check {user.site}: {seconds:.0f} s")  # `make sites` shows it: 60 s is the goal
    results = user.home / "airflow" / ".local" / "results" / "first-sweep" / "results.json"
    branches = json.loads(results.read_text())
    assert {branch["branch"] for branch in branches} == {"pretrain", "cooldown"}
    assert all(0 < branch["validation_loss"] < 10 for branch in branches)
