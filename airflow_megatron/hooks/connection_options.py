"""Options of an Airflow connection of type ``slurm`` or ``ssh`` that reaches a login node."""

from __future__ import annotations

import base64
import math
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from airflow_megatron.slurm.remote.profile import DEFAULT_COMMANDS, SlurmCommands
from airflow_megatron.slurm.remote.quoting import QuotingError, checked_path
from airflow_megatron.slurm.remote.transport import LoginRefusedError
from airflow_megatron.spec.documents.quantities import parse_duration
from airflow_megatron.spec.trust.plain_text import shown_value

if TYPE_CHECKING:
    from airflow.sdk import Connection

TransportName = Literal["asyncssh", "openssh"]
DEFAULT_CONNECT_TIMEOUT_S = 15.0
DEFAULT_LOGIN_PATIENCE_S = 7 * 86400.0
_PATHS: Final = ("key_file", "known_hosts", "ssh_config", "control_path", "slurm_bin", "work_dir")
_TEXTS: Final = (
    *_PATHS,
    "private_key",
    "private_key_passphrase",
    "passphrase",
    "host_key",
    "host_proxy_cmd",
)
_LONGEST_PART: Final = 255
"""Maximum number of bytes of a file name."""
_IN_PLACE: Final = {
    "key_file": "write the text of a key as private_key",
    "known_hosts": "write the text of a host's key as host_key",
}
"""Extra → the extra for the text itself."""


@dataclass(frozen=True)
class ConnectionOptions:
    """The checked fields and extras of a connection; for None the SSH configuration file decides.

    :param conn_id: id of the Airflow connection, for messages
    :param host: name or address, or a ``Host`` of the SSH configuration file
    :param port: TCP port
    :param user: login name
    :param password: of the account
    :param key_file: private key
    :param private_key: text of the private key
    :param passphrase: of the key
    :param host_key: the only accepted key of the login node, ``TYPE BASE64``
    :param known_hosts: file to check the host key against
    :param check_host_key: whether the host key is checked; a given *host_key* is always checked
    :param proxy_command: command whose standard input and output replace the TCP connection
    :param connect_timeout: seconds
    :param compress: whether to allow compression
    :param ssh_config: configuration file that replaces ``~/.ssh/config``
    :param transport: the implementation of SSH
    :param control_path: socket of an OpenSSH master connection that a user opens; ``openssh`` only
    :param renew_command: program and arguments that renew the credentials; run without a shell
    :param login_patience: seconds for which refusals of a login that worked before are retried
    :param commands: how Slurm's commands are found, for callers without a cluster profile
    :param restricted: whether its key runs only this package's programs (``cluster restrict``)
    :param work_dir: directory, shared by all nodes, of jobs outside of sweeps; None for one in the user's home
    """

    conn_id: str
    host: str
    port: int | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    key_file: Path | None = None
    private_key: str | None = field(default=None, repr=False)
    passphrase: str | None = field(default=None, repr=False)
    host_key: str | None = None
    known_hosts: Path | None = None
    check_host_key: bool = True
    proxy_command: str | None = None
    connect_timeout: float = DEFAULT_CONNECT_TIMEOUT_S
    compress: bool = True
    ssh_config: Path | None = None
    transport: TransportName = "asyncssh"
    control_path: str | None = None
    renew_command: tuple[str, ...] = ()
    login_patience: float = DEFAULT_LOGIN_PATIENCE_S
    commands: SlurmCommands = DEFAULT_COMMANDS
    restricted: bool = False
    work_dir: str | None = None

    @classmethod
    def of(cls, connection: Connection, conn_id: str) -> ConnectionOptions:
        """Read *connection*.

        :raises LoginRefusedError: if it is invalid
        """
        extra: Any = connection.extra_dejson
        _check_texts(extra, conn_id)
        if not connection.host:
            raise LoginRefusedError(f"connection {conn_id!r} names no host; give it the login node's name")
        transport: Any = extra.get("transport") or "asyncssh"
        if transport not in get_args(TransportName):
            raise LoginRefusedError(
                f"transport {shown_value(transport)} of connection {conn_id!r} is unknown; write one of "
                f"{', '.join(get_args(TransportName))}"
            )
        if extra.get("control_path") and transport != "openssh":
            raise LoginRefusedError(
                f"connection {conn_id!r} has a control_path, which only OpenSSH's own client can use; add "
                '"transport": "openssh"'
            )
        try:
            connect_timeout = float(extra.get("conn_timeout") or DEFAULT_CONNECT_TIMEOUT_S)
        except (TypeError, ValueError):
            connect_timeout = math.nan
        if not 0 < connect_timeout < math.inf:
            raise LoginRefusedError(f"conn_timeout of connection {conn_id!r} is not a number of seconds")
        return cls(
            conn_id=conn_id,
            host=connection.host,
            port=connection.port,
            user=connection.login or None,
            password=connection.password or None,
            key_file=_existing(extra, "key_file", conn_id),
            private_key=extra.get("private_key") or None,
            passphrase=extra.get("private_key_passphrase") or extra.get("passphrase") or None,
            host_key=_host_key(extra.get("host_key")),
            known_hosts=_path(extra.get("known_hosts")),
            check_host_key=not _is_on(extra, "no_host_key_check", conn_id),
            proxy_command=extra.get("host_proxy_cmd") or None,
            connect_timeout=connect_timeout,
            compress=_is_on(extra, "compress", conn_id, default=True),
            ssh_config=_existing(extra, "ssh_config", conn_id),
            transport=transport,
            control_path=os.path.expanduser(extra.get("control_path") or "") or None,  # noqa: PTH111 (it may hold %h)
            renew_command=_renew_command(extra.get("renew_command"), conn_id),
            login_patience=_login_patience(extra.get("login_patience"), conn_id),
            commands=SlurmCommands(
                slurm_bin=_remote_path(extra, "slurm_bin", conn_id) or "",
                login_shell=_is_on(extra, "login_shell", conn_id),
            ),
            restricted=_is_on(extra, "restricted", conn_id),
            work_dir=_remote_path(extra, "work_dir", conn_id),
        )

    @property
    def address(self) -> str:
        """``user@host:port``, without parts that the connection does not set."""
        user = f"{self.user}@" if self.user else ""
        return f"{user}{self.host}" + (f":{self.port}" if self.port else "")


def _check_texts(extra: Any, conn_id: str) -> None:
    """Refuse extras that are not texts, and texts that are not paths; messages do not repeat them, because a key may be
    in the wrong place.

    :raises LoginRefusedError: with the name of the extra
    """
    if not isinstance(extra, dict):
        raise LoginRefusedError(f"the extra of connection {conn_id!r} is not a JSON object")
    for name in _TEXTS:
        if extra.get(name) and not isinstance(extra[name], str):
            raise LoginRefusedError(
                f"{name} of connection {conn_id!r} is not a text; put its value into quotes"
            )
    for name in _PATHS:
        text = extra.get(name) or ""
        parts = (len(os.fsencode(part)) for part in text.split("/"))
        if not text.isprintable() or "-----BEGIN" in text or max(parts) > _LONGEST_PART:
            hint = f"; {_IN_PLACE[name]}" if name in _IN_PLACE else ""
            raise LoginRefusedError(f"{name} of connection {conn_id!r} is not a path{hint}")


def _path(text: Any) -> Path | None:
    return Path(str(text)).expanduser() if text else None


def _existing(extra: dict[str, Any], name: str, conn_id: str) -> Path | None:
    path = _path(extra.get(name))
    if path is not None and not path.is_file():
        raise LoginRefusedError(f"{name} {path} of connection {conn_id!r} does not exist")
    return path


def _remote_path(extra: dict[str, Any], name: str, conn_id: str) -> str | None:
    if not extra.get(name):
        return None
    try:
        return checked_path(str(extra[name]))
    except QuotingError as error:
        raise LoginRefusedError(f"{name} of connection {conn_id!r}: {error}") from None


def _renew_command(text: Any, conn_id: str) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        words = tuple(shlex.split(text)) if isinstance(text, str) else ()
    except ValueError:
        words = ()
    if not words:
        raise LoginRefusedError(
            f"renew_command of connection {conn_id!r} is not a command; write the program and its arguments as one text"
        )
    return words


def _login_patience(value: Any, conn_id: str) -> float:
    if value is None or value == "":
        return DEFAULT_LOGIN_PATIENCE_S
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise LoginRefusedError(f"login_patience of connection {conn_id!r}: {error}") from None
    if seconds < 0:
        raise LoginRefusedError(f"login_patience of connection {conn_id!r} is negative; write 0 or more")
    return float(seconds)


def _is_on(extra: dict[str, Any], name: str, conn_id: str, *, default: bool = False) -> bool:
    """Return a switch; an address such as ``slurm://…?login_shell=true`` contains it as text.

    :raises LoginRefusedError: if it is neither true nor false
    """
    value = extra.get(name)
    if value is None or value == "":
        return default
    word = str(value).lower()
    if word not in ("true", "false"):
        raise LoginRefusedError(
            f"{name} of connection {conn_id!r} is neither true nor false; write one of the two"
        )
    return word == "true"


def _host_key(text: Any) -> str | None:
    """Return type and key; a key alone is RSA, as in Airflow's SSH provider."""
    words = str(text or "").split()
    if not words:
        return None
    return " ".join(words[:2]) if len(words) > 1 else f"ssh-rsa {words[0]}"


def _is_public_key(text: str) -> bool:
    """Return whether a text is a key type and the key's base64, which repeats the type."""
    kind, _, key = text.partition(" ")
    try:
        content = base64.b64decode(key, validate=True)
    except ValueError:
        return False
    return content[4 : 4 + len(kind)] == kind.encode()


def host_key_refusal(options: ConnectionOptions, reason: str) -> str:
    """Explain why a login node's host key was refused: it differs from the known key, or no key is known.

    :param reason: message of the SSH client
    """
    where = f"connection {options.conn_id!r}"
    if options.host_key is not None and not _is_public_key(options.host_key):
        return (
            f"{options.address}: the host_key extra of {where} is not a public key (write type and key as ssh-keyscan "
            "prints them: ssh-ed25519 AAAA…)"
        )
    changed = "changed" in reason.lower()
    if options.host_key is not None or options.known_hosts is not None or changed:
        return (
            f"{options.address}: the login node's host key is not the one that {where} trusts ({reason}); if the key "
            "changed for a good reason, put the new one into the connection's host_key extra"
        )
    return (
        f"{options.address}: the login node's host key is not the one of a known host ({reason}): {where} has no "
        "host_key, and known_hosts no entry for this key; compare it with the key that the site publishes, and put "
        "that one into the connection's host_key extra"
    )
