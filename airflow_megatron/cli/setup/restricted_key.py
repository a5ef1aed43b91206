"""``airflow-megatron cluster restrict``: let a key run only this package's programs on a cluster."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_megatron.cli.runs.login_node import command_line_hook
from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.hooks.restricted import dispatcher, programs
from airflow_megatron.hooks.restricted.requests import remote_command
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import QuotingError, quote, quote_path
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.trust.json_records import read_object, word
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_megatron.slurm.remote.profile import SlurmCommands
    from airflow_megatron.slurm.remote.transport import CommandResult

FOLDER: Final = ".airflow-megatron"
"""Folder of the installed programs, in the home of the account."""
_ASKED: Final = ("PATH", "SLURM_CONF", "SLURM_CLUSTERS", "TMPDIR")
"""Variables of the account that are passed to the programs."""


class RestrictionError(AirflowMegatronError):
    """The programs could not be installed, or do not run."""


def restrict_key(
    name: str, public_key: Path, *, conn_id: str | None, roots: Sequence[str], read_only: bool
) -> int:
    """Install the programs on a cluster and print the line of ``authorized_keys``; return the exit status.

    :param name: of the profile
    :param public_key: file
    :param conn_id: Airflow connection with an unrestricted key; None for the profile's
    :param roots: absolute paths on the cluster, in addition to the run root
    :param read_only: permit only the programs that change nothing
    :raises airflow_megatron.spec.documents.errors.SpecError: if the profile does not exist or is invalid
    """
    cluster = load_cluster(name)
    try:
        key = public_key_line(public_key)
        hook = command_line_hook(cluster.model_copy(update={"ssh_conn_id": conn_id or cluster.ssh_conn_id}))
        if hook.options().restricted:
            raise RestrictionError(
                f"connection {hook.ssh_conn_id!r} has a restricted key; name another one with --connection"
            )
        with hook.session() as run:
            command, lost = installed(run, hook.commands, [cluster.run_root, *roots], key)
    except (OSError, QuotingError, RestrictionError, TransportError) as error:
        print(f"no key is restricted on {name}: {error}", file=sys.stderr)
        return 1
    option = f"{command} --read-only" if read_only else command
    print(f'command="{option}",restrict {key}')
    print(
        "Write this line to ~/.ssh/authorized_keys of the account, in place of the key's own line, and set\n"
        f'"restricted": true in the extra of the Airflow connection and restricted: true in the profile {name}.',
        file=sys.stderr,
    )
    for root in lost:
        print(
            f"warning: the key no longer reaches {shown(root)}; to keep it, add --root {shown(root)}",
            file=sys.stderr,
        )
    return 0


def public_key_line(path: Path) -> str:
    """Return the type, the key and the comment of a public key.

    :raises RestrictionError: if the file cannot be read or is not one
    """
    try:
        words = path.read_text(encoding="utf-8", errors="replace").split()
    except OSError as error:
        raise RestrictionError(f"{path} cannot be read: {error.strerror}") from None
    if (
        len(words) < 2
        or not words[0].startswith(("ssh-", "ecdsa-", "sk-"))
        or not words[1].startswith("AAAA")
    ):
        raise RestrictionError(f"{path} is not a public key; name the file ending in .pub")
    return " ".join(words)


def installed(
    run: Callable[[str], CommandResult], commands: SlurmCommands, roots: Sequence[str], key: str
) -> tuple[str, list[str]]:
    """Copy the programs to a cluster, test them, and return the command line of the key, and folders that it loses.

    Programs of other versions and settings of other keys are kept, so that their callers continue to work.

    :param roots: folders below which paths may lie
    :param key: the line of the public key
    :raises RestrictionError: if they do not run there
    """
    for root in roots:
        quote_path(root)
    key_id = hashlib.sha256(key.split()[1].encode()).hexdigest()[:16]
    settings_file = f"settings-{key_id}.json"
    found = _account(run, settings_file)
    python, folder = found.pop("python"), f"{found.pop('home').rstrip('/')}/{FOLDER}"
    before = (read_object(found.pop("before", "")) or {}).get("roots")
    if not python:
        raise RestrictionError(
            "the login node has no python3, which checks the requests; install Python 3.6 or newer"
        )
    if any(character in python + folder for character in "\"'\\ $`"):
        raise RestrictionError(f"{python} or {folder} has a character that authorized_keys cannot hold")
    # the shell of every other connection, without its first word "exec"
    whole = 'script=$(cat) && eval "$script" </dev/null'
    shell = ["/bin/sh", "-c", whole]
    if commands.login_shell:
        shell = ["/bin/bash", "-l", "-c", f"exec /bin/sh -c {quote(whole)}"]
    settings = {"roots": [*roots], "environment": found, "shell": shell}
    files = {
        f"programs-{programs.digest(commands)}.json": programs.installed(commands),
        settings_file: json.dumps(settings).encode(),
        "restricted.py": Path(dispatcher.__file__).read_bytes(),
    }
    lines = [f"umask 077; mkdir -p {quote(folder)} && cd {quote(folder)} || exit"]
    for file, content in files.items():
        encoded = base64.b64encode(content).decode("ascii")
        new = quote(f".{file}.new")
        lines.append(f"printf %s {encoded} | base64 -d >{new} && mv -f {new} {quote(file)} || exit")
    command = f"{python} -I {folder}/restricted.py {key_id}"
    request = json.dumps({"program": "version", "values": []})
    lines.append(
        f"am_said=$(printf %s {quote(request)} | SSH_ORIGINAL_COMMAND={quote(remote_command(commands))} {command} 2>&1)"
        " && printf 'runs\\n' || printf 'failed %s\\n' \"$am_said\""
    )
    answer = unframed(run(framed("\n".join(lines))))
    if answer[-1:] != ["runs"]:
        raise RestrictionError(f"the programs do not run there: {' '.join(answer).removeprefix('failed ')}")
    known = [word(root) for root in before] if isinstance(before, list) else []
    return command, [root for root in known if root and root not in roots]


def _account(run: Callable[[str], CommandResult], settings_file: str) -> dict[str, str]:
    """Return the interpreter, the home, the variables of the account that are set, and the key's settings so far."""
    variables = "\n".join(f"printf '{name} %s\\n' \"${{{name}-}}\"" for name in _ASKED)
    body = (
        f"printf 'python %s\\n' \"$(command -v python3)\"\nprintf 'home %s\\n' \"$(cd && pwd -P)\"\n{variables}\n"
        f"am_file={FOLDER}/{settings_file}\n"
        'cd && [ -f "$am_file" ] && printf \'before %s\\n\' "$(head -c 65536 "$am_file")" || :'
    )
    found = {name: value for name, _, value in (line.partition(" ") for line in unframed(run(framed(body))))}
    return {name: value for name, value in found.items() if value or name in ("python", "home")}
