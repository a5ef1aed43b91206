"""Install the Debian or Ubuntu packages of the local cluster.

The scripts of the packages would start system daemons and enable them for the next boot, which is unwanted on a
laptop. Therefore a ``policy-rc.d`` forbids the start while ``apt-get`` runs, and the units of newly installed packages
are disabled afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from local_cluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: Debian package -> programs that must exist.
PROGRAMS_BY_PACKAGE: dict[str, tuple[str, ...]] = {
    "munge": ("munged",),
    "mariadb-server": ("mariadbd", "mariadb-install-db"),
    "slurmdbd": ("slurmdbd",),
    "slurmctld": ("slurmctld",),
    "slurmd": ("slurmd",),
    "slurm-client": ("sbatch", "squeue", "sacct", "scancel", "sinfo", "scontrol", "sacctmgr", "srun"),
    "openssh-server": ("sshd",),
    "openssh-client": ("ssh", "ssh-keygen"),
}

#: Needed only by tests: the cluster starts without them.
TEST_PROGRAMS_BY_PACKAGE: dict[str, tuple[str, ...]] = {"faketime": ("faketime",)}

#: Needed by the tests of pages; large, and not available in every distribution.
BROWSER_PROGRAMS_BY_PACKAGE: dict[str, tuple[str, ...]] = {"chromium": ("chromium",)}

#: ``/usr/sbin`` is not in an ordinary user's PATH on Debian.
SEARCH_PATH = os.pathsep.join(
    [
        os.environ.get("PATH", ""),
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ]
)

#: The folder that Python runs as the program: in a checkout, or in an installed package.
_PROGRAM = Path(__file__).resolve().parent

POLICY_FILE = Path("/usr/sbin/policy-rc.d")
SAVED_POLICY_FILE = Path("/usr/sbin/policy-rc.d.saved-by-local-cluster")
#: Exit status 101 means "action forbidden by policy" (Debian's invoke-rc.d policy layer).
POLICY_FORBIDDEN = 101
POLICY_TEXT = f"#!/bin/sh\n# Written by local_cluster while it installs packages.\nexit {POLICY_FORBIDDEN}\n"

APT_OPTIONS = (
    "-o", "DPkg::Lock::Timeout=300",
    "-o", "Acquire::Retries=3",
    "-o", "Acquire::http::Timeout=30",
    "-o", "Acquire::https::Timeout=30",
)  # fmt: skip


def program(name: str) -> str:
    """Return the absolute path of an installed program.

    :param name: its file name.
    :raises ClusterError: if it is not installed.
    """
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        raise ClusterError(f"{name} is not installed; run: {sys.executable} {_PROGRAM} install")
    return str(Path.cwd() / found)


def missing_packages(wanted: Mapping[str, tuple[str, ...]] = PROGRAMS_BY_PACKAGE) -> list[str]:
    """Return the packages with missing programs, in a fixed order.

    :param wanted: package -> programs that must exist.
    """
    return [
        package
        for package, programs in wanted.items()
        if any(shutil.which(name, path=SEARCH_PATH) is None for name in programs)
    ]


def install(
    say: Callable[[str], None],
    wanted: Mapping[str, tuple[str, ...]] = PROGRAMS_BY_PACKAGE | TEST_PROGRAMS_BY_PACKAGE,
) -> None:
    """Install missing packages with ``apt-get``, as root or with ``sudo``; start no system daemon.

    :param say: receives one line for each step.
    :param wanted: package -> programs that must exist.
    :raises ClusterError: if the installation fails.
    """
    missing = missing_packages(wanted)
    if not missing:
        say("all packages are installed")
        return
    if shutil.which("apt-get") is None:
        raise ClusterError(
            f"this is not Debian or Ubuntu (no apt-get): install these packages yourself: {' '.join(missing)}"
        )
    as_root = _root_prefix(missing)
    say(f"installing {' '.join(missing)}")
    environment = ("env", "DEBIAN_FRONTEND=noninteractive", "DEBIAN_PRIORITY=critical")
    with _no_daemon_starts(as_root, say):
        say("apt-get update")
        update = [*as_root, *environment, "apt-get", *APT_OPTIONS, "-q", "update"]
        if _run_logged(update).returncode != 0:
            # One unreachable third-party source fails the whole update, but the required package lists may exist.
            say("apt-get update reported errors; continuing with the existing package lists")
        say("apt-get install (this takes a minute or two)")
        # --no-remove: never replace an installed MySQL server with MariaDB, for example.
        choices = ("--yes", "--no-remove", "--no-install-recommends")
        result = _run_logged(
            [*as_root, *environment, "apt-get", *APT_OPTIONS, "-q", "install", *choices, *missing]
        )
        if result.returncode != 0:
            raise ClusterError(
                f"apt-get could not install {' '.join(missing)}:\n{_last_lines(result.stdout)}"
            )
    _disable_units(as_root, missing, say)
    still_missing = missing_packages(wanted)
    if still_missing:
        raise ClusterError(f"apt-get succeeded, but programs of {' '.join(still_missing)} are still missing")
    say("installed")


def _root_prefix(missing: list[str]) -> tuple[str, ...]:
    if os.geteuid() == 0:
        return ()
    if shutil.which("sudo") is None:
        raise ClusterError(f"not root and no sudo: as root, run apt-get install {' '.join(missing)}")
    return ("sudo",)


def _run_logged(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )


def _last_lines(text: str, count: int = 15) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


@contextlib.contextmanager
def _no_daemon_starts(as_root: tuple[str, ...], say: Callable[[str], None]) -> Iterator[None]:
    """Forbid package scripts to start daemons; restore the previous state, also after a failure."""
    if SAVED_POLICY_FILE.exists():
        say(f"restoring {POLICY_FILE}, which a killed installation had renamed")
        _as_root_or_fail(as_root, "mv", "-f", str(SAVED_POLICY_FILE), str(POLICY_FILE))
    elif POLICY_FILE.exists() and POLICY_FILE.read_text(errors="replace") == POLICY_TEXT:
        _as_root_or_fail(as_root, "rm", "-f", str(POLICY_FILE))
    if _policy_forbids_starting():
        yield
        return
    had_policy = os.path.lexists(POLICY_FILE)
    try:
        if had_policy:
            _as_root_or_fail(as_root, "mv", "-f", str(POLICY_FILE), str(SAVED_POLICY_FILE))
        with tempfile.NamedTemporaryFile("w", prefix="policy-rc.d-") as policy:
            policy.write(POLICY_TEXT)
            policy.flush()
            _as_root_or_fail(as_root, "install", "-m", "0755", policy.name, str(POLICY_FILE))
        yield
    finally:
        if had_policy and os.path.lexists(SAVED_POLICY_FILE):
            _as_root_or_fail(as_root, "mv", "-f", str(SAVED_POLICY_FILE), str(POLICY_FILE))
        elif not had_policy:
            _as_root_or_fail(as_root, "rm", "-f", str(POLICY_FILE))


def _policy_forbids_starting() -> bool:
    if not os.access(POLICY_FILE, os.X_OK):
        return False
    answer = subprocess.run([str(POLICY_FILE), "mariadb", "start"], capture_output=True, check=False)
    return answer.returncode == POLICY_FORBIDDEN


def _as_root_or_fail(as_root: tuple[str, ...], *command: str) -> None:
    result = _run_logged([*as_root, *command])
    if result.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed: {result.stdout.strip()}")


def _disable_units(as_root: tuple[str, ...], packages: list[str], say: Callable[[str], None]) -> None:
    """Disable the units of newly installed packages, so that they do not start at the next boot."""
    systemctl = shutil.which("systemctl")
    if systemctl is None:
        return
    listing = _run_logged(["dpkg", "-L", *packages, *_also_installed(packages)]).stdout
    units = sorted(
        {
            Path(line).name
            for line in listing.splitlines()
            if "/systemd/system/" in line
            and line.endswith((".service", ".socket", ".timer"))
            and "@" not in line
        }
    )
    if units:
        _run_logged([*as_root, systemctl, "disable", *units])
        say(f"not enabled at boot: {' '.join(units)}")


def _also_installed(packages: list[str]) -> list[str]:
    """Return packages that contain the units of a meta package: the versioned MariaDB server."""
    if "mariadb-server" not in packages:
        return []
    names = _run_logged(["dpkg-query", "-W", "-f", "${binary:Package}\n", "mariadb-server-*"]).stdout.split()
    return [name for name in names if name.startswith("mariadb-server-") and "core" not in name]
