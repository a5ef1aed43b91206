"""Install the programs of jobs, their environment and upstream Megatron-LM at the paths of a cluster's profile."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

import yaml

from airflow_megatron.cli.runs.login_node import command_line_hook
from airflow_megatron.cli.setup.installation_scripts import (
    LONGEST_S,
    InstallationError,
    LoginNode,
    encoded,
)
from airflow_megatron.cli.setup.job_programs import programs_archive
from airflow_megatron.cli.setup.offline_files import (
    RemotePython,
    checkout_archive,
    collected_wheels,
    send_file,
)
from airflow_megatron.slurm.remote.login_command import module_lines
from airflow_megatron.slurm.remote.quoting import QuotingError
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.documents.project import job_programs_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.schema import SweepSpecSection
from airflow_megatron.spec.model.trainers import TRAINERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

REPOSITORY_VARIABLE: Final = "MEGATRON_LM_REPOSITORY"
"""Environment variable with another repository of Megatron-LM, see ``checkout.sh``."""
PRUNED_AFTER_DAYS: Final = 30
"""Days after which a replaced version may be removed; no job that uses it runs for so long."""
PARTS: Final = ("programs", "environment", "checkout")
_TRAINER: Final = "megatron_lm"
_PYTHON_OF_ENVIRONMENT: Final = re.compile(r"(?P<venv>/.+)/bin/python[0-9.]*")


@dataclass(frozen=True)
class InstallationChoice:
    """The parts to install on a cluster, and options.

    :param parts: some of :data:`PARTS`
    :param releases: releases of Megatron-LM; empty for all that the profile names
    :param python: interpreter on the cluster that creates the environment
    :param offline: send wheels and checkouts over SSH
    :param wheels: folder with existing wheels; None to collect them
    :param pip_arguments: pip arguments for torch, such as an index
    :param prune: remove versions that were replaced :data:`PRUNED_AFTER_DAYS` days ago
    """

    parts: Sequence[str] = PARTS
    releases: Sequence[str] = ()
    python: str = "python3"
    offline: bool = False
    wheels: Path | None = None
    pip_arguments: Sequence[str] = field(default_factory=tuple)
    prune: bool = False


class ClusterInstallation:
    """Installs the parts on one cluster. Repeated calls keep the installed parts.

    :param cluster: its profile
    :param node: runs the scripts there
    :param say: reports a step
    """

    def __init__(self, cluster: ClusterProfile, node: LoginNode, say: Callable[[str], None]) -> None:
        self.cluster, self.node, self.say = cluster, node, say
        self.programs = cluster.megatron_lm_dir

    def install(self, choice: InstallationChoice) -> None:
        """Install all selected parts.

        :raises InstallationError: if a part cannot be installed; earlier parts are complete, later ones unchanged
        :raises airflow_megatron.slurm.remote.transport.TransportError: if the login node does not answer
        """
        if "programs" in choice.parts:
            self.put_programs()
        if "environment" in choice.parts:
            for venv in self._environments():
                self.make_environment(venv, choice)
        if "checkout" in choice.parts:
            for release, folder in self._checkouts(choice.releases).items():
                self.put_checkout(release, folder, choice)
        if choice.prune:
            self.prune(choice.parts)

    def prune(self, parts: Sequence[str]) -> None:
        """Remove old versions of programs and environments."""
        places = [self.programs] if "programs" in parts else []
        places += self._environments() if "environment" in parts else []
        for place in places:
            names = self.node.call("am_prune", place, str(PRUNED_AFTER_DAYS)).split()
            removed = f"removed {', '.join(names)} from" if names else "nothing to remove from"
            self.say(f"old versions: {removed} {place}.versions")

    def put_programs(self) -> None:
        """Copy the programs of jobs."""
        archive = programs_archive(job_programs_dir())
        answer = self.node.call(
            "am_put_programs", self.programs, archive.digest, archive.manifest, encoded(archive.content)
        )
        self._report("programs", answer, self.programs, "copied to")

    def make_environment(self, venv: str, choice: InstallationChoice) -> None:
        """Create the environment of jobs."""
        variables = {"PYTHON": choice.python}
        if self._current(venv):
            self._report("environment", "same", venv, "")
            return
        self.say(f"environment: creating {venv}, which takes some minutes")
        if choice.offline:
            variables |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self._send_wheels(venv, choice)}
        arguments = () if choice.offline else choice.pip_arguments
        answer = self.node.call("am_make_environment", venv, self.programs, *arguments, variables=variables)
        self._report("environment", answer, venv, "made")

    def put_checkout(self, release: str, folder: str, choice: InstallationChoice) -> None:
        """Install a pinned release of upstream Megatron-LM in a folder."""
        variables = {name: os.environ[name] for name in (REPOSITORY_VARIABLE,) if name in os.environ}
        if not choice.offline:
            answer = self.node.call("am_checkout", self.programs, release, folder, variables=variables)
            self._report(f"checkout of {release}", answer, folder, "made")
            return
        commit = pinned_commit(job_programs_dir(), release)
        there = self.node.call("am_commit_of", folder)
        if there == "absent":
            archive = checkout_archive(release, commit)
            remote = f"{PurePosixPath(folder).parent}/.{archive.name}"
            send_file(self.node, archive, remote, self.say)
            answer = self.node.call("am_unpack_checkout", folder, commit, remote)
        elif there == f"at {commit}":
            answer = "same"
        else:
            raise InstallationError(
                f"{folder} exists and is not {release} ({commit}); name another folder in the profile, or remove it"
            )
        self._report(f"checkout of {release}", answer, folder, "sent to")

    def _current(self, venv: str) -> bool:
        answer = self.node.call("am_report_environment_state", venv, self.programs)
        return answer == "same"

    def _send_wheels(self, venv: str, choice: InstallationChoice) -> str:
        """Send the wheels of the environment; return their folder on the cluster."""
        remote = RemotePython.of(self.node.call("am_about_python", choice.python))
        wheels = collected_wheels(job_programs_dir(), remote, choice.wheels, choice.pip_arguments, self.say)
        folder = f"{venv}.versions/wheels"
        for path in wheels:
            send_file(self.node, path, f"{folder}/{path.name}", self.say)
        return folder

    def _environments(self) -> list[str]:
        """Return the environments to create, and report those that this command does not create."""
        if self.cluster.container is not None:
            self.say(f"environment: not created, jobs run in the container {self.cluster.container.image}")
            return []
        pythons = {self.cluster.python: "python"}
        for trainer, section in self.cluster.trainers.items():
            if section.python and TRAINERS[trainer].environment_is_ours:
                pythons.setdefault(section.python, f"trainers.{trainer}.python")
        venvs = []
        for python, key in pythons.items():
            match = _PYTHON_OF_ENVIRONMENT.fullmatch(python)
            if match:
                venvs.append(match["venv"])
            else:
                self.say(
                    f"environment: not created, the profile's {key} is {python}; write the path of a new one, such "
                    "as /project/me/venv-trainer/bin/python"
                )
        return venvs

    def _checkouts(self, releases: Sequence[str]) -> dict[str, str]:
        """Return release → folder of the selected checkouts.

        :raises InstallationError: if the profile names no folder for one
        """
        named = self.cluster.trainer(_TRAINER).checkout
        known = named if isinstance(named, dict) else {}
        if named is None and not releases:
            self.say(f"checkout: not created, the profile names no trainers.{_TRAINER}.checkout")
        if isinstance(named, str):
            if len(releases) > 1:
                raise InstallationError(
                    f"the profile has one place for all releases, {named}; write one for each: "
                    f"trainers.{_TRAINER}.checkout: {{{releases[0]}: …, {releases[1]}: …}}"
                )
            return {releases[0] if releases else SweepSpecSection.model_fields["release"].default: named}
        missing = [release for release in releases if release not in known]
        if missing:
            raise InstallationError(
                f"the profile names no place for {missing[0]}; add it under trainers.{_TRAINER}.checkout"
            )
        return {release: folder for release, folder in known.items() if not releases or release in releases}

    def _report(self, part: str, answer: str, place: str, made: str) -> None:
        self.say(f"{part}: {place} is in place" if answer == "same" else f"{part}: {made} {place}")


def install_on(name: str, choice: InstallationChoice) -> int:
    """Install the selected parts on a cluster and report them; return the exit status.

    :raises airflow_megatron.spec.documents.errors.SpecError: if the profile does not exist or is invalid
    """
    cluster = load_cluster(name)
    try:
        with command_line_hook(cluster).session(LONGEST_S) as run:
            node = LoginNode(run, module_lines(cluster.modules))
            ClusterInstallation(cluster, node, lambda text: print(text, flush=True)).install(choice)
    except (InstallationError, QuotingError, TransportError) as error:
        print(f"not everything is installed on {name}: {error}", file=sys.stderr)
        return 1
    return 0


def pinned_commit(programs: Path, release: str) -> str:
    """Return the commit that a release is pinned to.

    :param programs: the folder of the programs of jobs, which contains ``releases.yaml``
    :raises InstallationError: if there is no such release
    """
    releases = yaml.safe_load((programs / "releases.yaml").read_text(encoding="utf-8"))["releases"]
    if release not in releases:
        raise InstallationError(
            f"there is no release {release} in releases.yaml; it has: {', '.join(releases)}"
        )
    return str(releases[release])
