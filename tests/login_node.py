"""An SSH server inside the test's process, for tests of code that connects to a login node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncssh

if TYPE_CHECKING:
    from pathlib import Path

HOST_KEY = asyncssh.generate_private_key("ssh-ed25519")
OTHER_KEY = asyncssh.generate_private_key("ssh-ed25519")
USER_KEY = asyncssh.generate_private_key("ssh-ed25519")
PASSWORD = "correct horse"


def public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip()


class LoginNode:
    """An SSH server on this machine that runs commands in the real shell."""

    def __init__(self) -> None:
        self.connections: list[asyncssh.SSHServerConnection] = []
        self.commands: list[str] = []
        self.shells: list[asyncio.subprocess.Process] = []
        self.logins = 0
        self.port = 0
        self.refusal = ""
        """What it answers to each command, with exit status 77, before it reads the input."""

    async def start(self, **options: Any) -> None:
        node = self

        class Server(asyncssh.SSHServer):
            def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
                node.connections.append(conn)

            def auth_completed(self) -> None:
                node.logins += 1

            def password_auth_supported(self) -> bool:
                return True

            def validate_password(self, username: str, password: str) -> bool:
                return password == PASSWORD

        self.acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=Server,
            server_host_keys=[HOST_KEY],
            authorized_client_keys=asyncssh.import_authorized_keys(public(USER_KEY)),
            process_factory=self._run,
            encoding=None,
            **options,
        )
        self.port = self.acceptor.get_port()

    async def stop(self) -> None:
        self.cut()
        for shell in self.shells:
            if shell.returncode is None:
                shell.kill()
            await shell.wait()
        self.acceptor.close()
        await self.acceptor.wait_closed()

    def connection(self, folder: Path) -> dict[str, Any]:
        """Return an Airflow connection to it, with a key in ``folder``."""
        key_file = folder / "id_ed25519"
        USER_KEY.write_private_key(key_file)
        return {
            "conn_type": "ssh",
            "host": "127.0.0.1",
            "port": self.port,
            "login": "me",
            "extra": {"key_file": str(key_file), "host_key": public(HOST_KEY)},
        }

    def cut(self) -> None:
        """Drop every connection without a message."""
        for connection in self.connections:
            connection.abort()
        self.connections.clear()

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        assert process.command
        self.commands.append(process.command)
        if self.refusal:
            process.stderr.write(self.refusal.encode())
            process.exit(77)
            return
        pipe = asyncio.subprocess.PIPE
        shell = await asyncio.create_subprocess_shell(process.command, stdin=pipe, stdout=pipe, stderr=pipe)
        self.shells.append(shell)
        out, err = await shell.communicate(await process.stdin.read())
        if not process.is_closing():
            process.stdout.write(out)
            process.stderr.write(err)
            process.exit(shell.returncode or 0)
