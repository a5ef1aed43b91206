"""``cluster restrict`` with a real sshd: permitted and refused operations of a restricted key."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ssh_server import USER, make_key

from airflow_megatron.cli.local.free_ports import free_port
from airflow_megatron.hooks.restricted import dispatcher
from airflow_megatron.hooks.restricted.programs import request_for
from airflow_megatron.hooks.restricted.requests import remote_command
from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.slurm.remote.framing import framed
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.slurm.verdicts.stage_records import stage_state_script, write_record_script

if TYPE_CHECKING:
    from login_site import LoginSite

pytestmark = pytest.mark.slow  # a real sshd answers each request

REFUSAL = "airflow-megatron-restricted: refused: "


class RestrictedKey:
    """A key of the site's login node that runs only the programs.

    :param login: the site, whose own key is unrestricted
    """

    def __init__(self, login: LoginSite, environment: pytest.MonkeyPatch) -> None:
        self.login, self.environment = login, environment
        self.place, self.runs, self.server = login.place, login.runs, login.server
        self.unrestricted = login.connection()
        self.key = make_key(login.place / "restricted")
        self.commands = SlurmCommands("site", str(login.slurm))
        login.command("sinfo", "echo slurm 25.11")
        self.runs.mkdir()

    def restrict(self, *words: str) -> None:
        """Install the programs by the unrestricted key, and use the restricted one from now on."""
        self.environment.setenv("AIRFLOW_CONN_SLURM_SITE", self.unrestricted)
        answer = self.login.call("cluster", "restrict", "site", "--public-key", f"{self.key}.pub", *words)
        assert answer.status == 0, answer.stderr
        keys = self.server.place / "authorized_keys"
        keys.write_text((self.place / "key.pub").read_text() + answer.stdout)
        connection = json.loads(self.unrestricted)
        connection["extra"] |= {"key_file": str(self.key), "restricted": True}
        self.environment.setenv("AIRFLOW_CONN_SLURM_SITE", json.dumps(connection))

    @property
    def hook(self) -> SlurmHook:
        return SlurmHook("slurm_site", self.commands)

    def words(self, program: str, *options: str) -> list[str]:
        known = self.place / "known_hosts"
        known.write_text(f"[127.0.0.1]:{self.server.port} {self.server.public_host_key}\n")
        common = [
            "-F",
            "none",
            "-i",
            str(self.key),
            "-o",
            f"UserKnownHostsFile={known}",
            "-o",
            "BatchMode=yes",
        ]
        port = "-p" if program == "ssh" else "-P"
        return [program, *common, "-o", "IdentitiesOnly=yes", port, str(self.server.port), *options]

    def ssh(
        self, *words: str, given: str = "", options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        return self.called([*self.words("ssh", *options), f"{USER}@127.0.0.1", *words], given)

    def called(self, words: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            cwd=self.place,
        )

    def request(self, script: str) -> subprocess.CompletedProcess[str]:
        return self.ssh(remote_command(self.commands), given=json.dumps(request_for(script, self.commands)))


@pytest.fixture
def key(site: LoginSite, monkeypatch: pytest.MonkeyPatch) -> RestrictedKey:
    key = RestrictedKey(site, monkeypatch)
    site.server.stop()
    site.server.settings |= {"AcceptEnv": "*", "Subsystem": "sftp internal-sftp"}
    site.server.start()
    key.restrict()
    return key


def test_a_public_key_that_is_not_there(site: LoginSite) -> None:
    answer = site.call("cluster", "restrict", "site", "--public-key", "/nowhere.pub")
    assert answer.status == 1
    assert "/nowhere.pub cannot be read: No such file or directory" in answer.stderr
    assert "Errno" not in answer.stderr


def test_the_key_runs_nothing_else(key: RestrictedKey) -> None:
    touched = key.place / "touched"
    refused = [
        key.ssh(options=("-T",)),
        key.ssh("id"),
        key.ssh(f"touch {touched}"),
        key.ssh(f"{remote_command(key.commands)}; touch {touched}"),
        key.ssh(f"{remote_command(key.commands)}\ntouch {touched}"),
        key.ssh(f"{remote_command(key.commands)} --help"),
        key.ssh(remote_command(key.commands)[:-64] + "../../../etc/passwd"),
        key.ssh(key.commands.remote_shell(), given=f"touch {touched}\n"),
        key.ssh(remote_command(key.commands), given=f"touch {touched}\n"),
        key.ssh(remote_command(key.commands), given='{"program": "shell", "values": []}'),
        key.ssh(remote_command(SlurmCommands(slurm_bin="/tmp/own"))),
        key.request(stage_state_script(["/etc"])),
        key.request(stage_state_script([f"{key.runs}/../admin"])),
        key.request(write_record_script(f"{key.place}/sshd/home/.jobs/a.json", {})),
    ]
    for answer in refused:
        assert answer.returncode != 0
        assert answer.stdout == ""
        assert answer.stderr.count(REFUSAL) == 1, answer.stderr
        assert len([line for line in answer.stderr.split("\n") if line]) == 1, answer.stderr
    # sshd sends no standard error of a subsystem
    subsystem = key.called([*key.words("ssh", "-s"), f"{USER}@127.0.0.1", "sftp"])
    assert (subsystem.returncode, subsystem.stdout) == (dispatcher.REFUSED, "")
    (key.place / "file").write_text("x")
    for program in (["scp", "-O"], ["scp"]):
        words = key.words(program[0], *program[1:])
        assert key.called([*words, "file", f"{USER}@127.0.0.1:{touched}"]).returncode != 0
    assert not touched.exists()


def test_the_key_forwards_no_port_and_gets_no_terminal(key: RestrictedKey) -> None:
    port = free_port()
    options = ("-N", "-o", "ExitOnForwardFailure=yes", "-R", f"{port}:127.0.0.1:{key.server.port}")
    assert key.called([*key.words("ssh", *options), f"{USER}@127.0.0.1"]).returncode != 0
    through = key.ssh(options=("-W", f"127.0.0.1:{key.server.port}"))
    assert through.returncode != 0
    assert "SSH-2.0" not in through.stdout
    terminal = key.ssh("id", options=("-tt",))
    assert "uid=" not in terminal.stdout
    assert "PTY allocation request failed" in terminal.stderr


def test_variables_of_the_client_reach_no_program(key: RestrictedKey, tmp_path: Path) -> None:
    marker = tmp_path / "loaded"
    (tmp_path / "own.sh").write_text(f"touch {marker}\n")
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (tmp_path / "sinfo").chmod(0o755)
    request = json.dumps(request_for(f"{key.commands.command('sinfo')} --version", key.commands))
    options = (
        "-o",
        f"SetEnv=SLURM_CONF={tmp_path}/none SBATCH_ACCOUNT=x ENV={tmp_path}/own.sh SQUEUE_FORMAT=x",
    )
    answer = key.ssh(remote_command(key.commands), given=request, options=options)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("slurm")
    assert not marker.exists()


def test_an_unknown_program_is_refused_before_it_is_sent(key: RestrictedKey) -> None:
    with pytest.raises(TransportError, match="is restricted, and this is not one of its programs"):
        key.hook.run(framed("id"))


def test_a_key_that_only_reads(key: RestrictedKey) -> None:
    key.restrict("--read-only")
    hook = key.hook
    stage = f"{key.runs}/a/b/.jobs/c"
    assert hook.run(stage_state_script([stage])).exit_status == 0
    with pytest.raises(TransportError, match="'write-record' is not one that this key may run"):
        hook.run(write_record_script(f"{stage}/verdict.json", {}))
    assert not Path(stage).exists()


def test_programs_of_another_version_are_named(key: RestrictedKey) -> None:
    folder = key.server.home / ".airflow-megatron"
    (only,) = folder.glob("programs-*.json")
    only.write_text(only.read_text() + " ")
    with pytest.raises(TransportError, match="run 'airflow-megatron cluster restrict' again"):
        key.hook.run(stage_state_script([f"{key.runs}/a"]))
    assert key.request(stage_state_script([f"{key.runs}/a"])).returncode == dispatcher.REFUSED


def test_each_key_keeps_its_own_folders(key: RestrictedKey) -> None:
    """A second key of the account, with other folders, changes nothing about the first one."""
    keys = key.server.place / "authorized_keys"
    first, inside, outside = key.key, f"{key.runs}/point/.jobs/train", f"{key.place}/other/point/.jobs/train"
    lines = keys.read_text()
    key.key = make_key(key.place / "second")
    key.restrict("--root", f"{key.place}/other")
    keys.write_text(lines + keys.read_text().splitlines()[-1] + "\n")
    assert key.request(stage_state_script([outside])).returncode == 0
    key.key = first
    assert key.request(stage_state_script([inside])).returncode == 0
    refused = key.request(stage_state_script([outside]))
    assert refused.returncode == dispatcher.REFUSED, refused.stdout
    assert "is not below" in refused.stderr


def test_a_folder_that_a_key_loses_is_named(key: RestrictedKey) -> None:
    key.restrict("--root", f"{key.place}/other")
    key.environment.setenv("AIRFLOW_CONN_SLURM_SITE", key.unrestricted)
    again = key.login.call("cluster", "restrict", "site", "--public-key", f"{key.key}.pub")
    assert again.status == 0
    assert f"the key no longer reaches {key.place}/other" in again.stderr
    assert f"--root {key.place}/other" in again.stderr
