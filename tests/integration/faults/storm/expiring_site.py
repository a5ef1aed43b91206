"""A site whose login node trusts a certificate authority, and closes each connection when its certificate expires."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING
from unittest.mock import patch

from aftermath import settled
from patience import wait_until
from proxied_site import HERE, planned_jobs
from ssh_server import USER, SshServer, make_key
from sweep_site import SweepSite
from worked_sweep import WorkedSweep

from airflow_megatron.hooks.shared_master import private_folder

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from slurm_cluster import SlurmCluster

LOOK_S = 0.2
LONGEST_STANDSTILL_S = 180.0


class ExpiringSite(SweepSite):
    """Folders, specs, and a login node that accepts certificates; a context manager.

    :param place: as in :class:`SweepSite`
    :param cluster: a running cluster
    :param lifetime_s: lifetime of a certificate in seconds
    :param settings: additional lines of sshd_config(5)
    """

    def __init__(self, place: Path, cluster: SlurmCluster, lifetime_s: int, **settings: Any) -> None:
        super().__init__(place, cluster)
        self.lifetime_s = lifetime_s
        self.ended = 0
        """Connections that ended with their certificates."""
        self._ends: dict[int, float] = {}
        self._closing = threading.Event()
        self._settings = settings
        self._thread = threading.Thread(target=self._end_sessions)

    def __enter__(self) -> ExpiringSite:
        self.prepare_folders()
        shutil.copytree(HERE / "clusters", self.place / "project" / "sbatch" / "clusters", dirs_exist_ok=True)
        shutil.rmtree(self.specs)
        shutil.copytree(HERE / "specs", self.specs)
        self.runs.mkdir()
        key, authority = make_key(self.place / "id"), make_key(self.place / "authority")
        conf = self.cluster.description["slurm_conf"]
        self.server = SshServer(
            self.place / "sshd",
            make_key(self.place / "other"),
            TrustedUserCAKeys=f"{authority}.pub",
            SetEnv=f"HOME={self.place / 'sshd' / 'home'} SLURM_CONF={conf}",
            **self._settings,
        )
        renew = self._renew_program(key, authority)
        subprocess.run(renew, check=True)
        self.server.start()
        (self.place / "ssh_config").touch()
        extra = {
            "key_file": str(key),
            "host_key": self.server.public_host_key,
            "ssh_config": str(self.place / "ssh_config"),
            "renew_command": " ".join(renew),
        }
        connection = {
            "conn_type": "ssh",
            "host": "127.0.0.1",
            "port": self.server.port,
            "login": USER,
            "extra": extra,
        }
        self.folders |= {
            "AIRFLOW_CONN_SLURM_EXPIRING": json.dumps(connection),
            "FAULTS_TRAINER": str(HERE / "pretend_training.sh"),
            "SSH_AUTH_SOCK": "",
        }
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._thread.join()
        self.server.stop()  # closes the shared connection
        with patch.dict(os.environ, self.folders):
            shutil.rmtree(private_folder(), ignore_errors=True)  # ssh removes its socket concurrently

    @property
    def renewals(self) -> int:
        """The number of issued certificates."""
        return len((self.place / "renewals").read_text().splitlines())

    @property
    def refused(self) -> int:
        """The number of refused logins."""
        return self.server.log.read_text().count("by authenticating user")

    def _renew_program(self, key: Path, authority: Path) -> list[str]:
        program = self.place / "renew.py"
        program.write_text(
            "import subprocess, time\n"
            f"subprocess.run(['ssh-keygen', '-q', '-s', {str(authority)!r}, '-I', 'test', '-n', {USER!r},\n"
            f"    '-V', '-1s:+{self.lifetime_s}s', {f'{key}.pub'!r}], check=True)\n"
            f"open({str(self.place / 'renewals')!r}, 'a').write(f'{{time.time() + {self.lifetime_s}}}\\n')\n"
        )
        return [sys.executable, str(program)]

    def _end_sessions(self) -> None:
        while not self._closing.wait(LOOK_S):
            sessions = self.server.sessions()
            newest = float((self.place / "renewals").read_text().split()[-1])
            self._ends = {pid: self._ends.get(pid, newest) for pid in sessions}
            for pid, end in self._ends.items():
                if time.time() >= end:
                    self.server.signal_session(pid, signal.SIGKILL)
                    self.ended += 1


class ExpiringSweep:
    """A sweep of many short jobs on such a site.

    :param site: the site
    :param jobs: number of jobs
    :param expiries: minimum number of connections that end during the sweep
    :param seconds: time until the last job is admitted; None for the lifetime of ``expiries`` certificates
    """

    def __init__(self, site: ExpiringSite, jobs: int, expiries: int, seconds: float | None = None) -> None:
        self.site, self.expiries = site, expiries
        # a certificate is renewed when a quarter of its lifetime is left
        self.planned_s = expiries * site.lifetime_s * 0.75 if seconds is None else seconds
        numbers = list(range(jobs))
        self.jobs = planned_jobs(site, "expiring", f"sweep.params.number={numbers}", cluster="expiring")
        self.sweep = WorkedSweep(site, self.jobs)
        self.began = time.time()
        self.seconds = 0.0

    def run(self) -> list[str]:
        """Run the sweep and return the violations."""
        with self.sweep:
            before, changed = "", time.monotonic()
            while not self.sweep.has_succeeded:
                part = (time.time() - self.began) / self.planned_s
                most = len(self.jobs) - (self.site.ended < self.expiries)
                self.sweep.admit(min(4 + round(part * len(self.jobs)), most))
                self.sweep.clear_failed()
                now = f"{self.sweep.states()} {self.site.ended}"
                if now != before:
                    before, changed = now, time.monotonic()
                if time.monotonic() - changed > LONGEST_STANDSTILL_S + min(
                    self.site.lifetime_s, self.planned_s
                ):
                    return [f"nothing happens any more: {Counter(self.sweep.phases().values())}"]
                time.sleep(0.5)
        self.seconds = time.time() - self.began
        wrong = [f"{task} failed: {self.sweep.last_words[task]}" for task in self.sweep.cleared]
        if self.site.server.logins > self.site.renewals:
            wrong.append(f"{self.site.server.logins} logins with {self.site.renewals} certificates")
        if self.site.refused:
            wrong.append(f"{self.site.refused} refused logins")
        prefix = f"{self.jobs[0].sweep}."
        wait_until(
            lambda: len(self.site.submissions(prefix)) >= len(self.jobs), 60, "accounting to know all jobs"
        )
        return wrong + settled(self.site, self.jobs)

    def summary(self) -> str:
        """Return a summary in one line."""
        tries = sum(state["try"] - 1 for state in self.sweep.states().values())
        submitted = sum(len(rows) for rows in self.site.submissions(f"{self.jobs[0].sweep}.").values())
        return (
            f"{len(self.jobs)} jobs, {submitted} submitted, in {self.seconds:.0f} s; certificates of "
            f"{self.site.lifetime_s} s: {self.site.renewals} certificates, {self.site.ended} expiries, "
            f"{self.site.server.logins} logins, {self.site.refused} refused; {tries} tasks tried again, "
            f"{self.sweep.cleared.total()} failed"
        )
