"""A TCP proxy between Airflow and the login node that injects network faults."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_megatron.cli.local.free_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 16 * 1024


class TcpProxy:
    """Forwards TCP connections to a server, in a separate thread.

    :param port: port of the server on this machine.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._delay = 0.0
        self._budgets: list[tuple[str, int]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy", daemon=True)
        self._thread.start()
        self.port = free_port()
        self.accept()

    def close(self) -> None:
        """Stop listening and reset all connections."""
        self.refuse()
        self.cut()
        self._open.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._writers) // 2

    # ---- faults

    def refuse(self) -> None:
        """Stop listening: new connections are refused, open ones continue."""

        async def stop() -> None:
            if self._server is not None:
                self._server.close()
                self._server = None

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(10)

    def accept(self) -> None:
        """Listen (again)."""

        async def listen() -> None:
            if self._server is None:
                self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    def cut(self) -> int:
        """Reset every open connection; return their number."""

        async def reset() -> int:
            writers = list(self._writers)
            for writer in writers:
                _reset(writer)
            return len(writers) // 2

        return asyncio.run_coroutine_threadsafe(reset(), self._loop).result(10)

    def cut_next_after(self, direction: str, count: int) -> None:
        """Reset the next new connection after some bytes.

        :param direction: ``up`` (to the server) or ``down``.
        :param count: number of bytes that are forwarded.
        """
        self._call(lambda: self._budgets.append((direction, count)))

    def black_hole(self) -> None:
        """Hold all data back until :meth:`pass_on`, also that of new connections."""
        self._call(self._open.clear)

    def delay(self, seconds: float) -> None:
        """Delay each piece of data; 0 ends the delay."""
        self._delay = seconds

    def pass_on(self) -> None:
        """End :meth:`black_hole`, :meth:`delay`, :meth:`refuse` and :meth:`cut_next_after`."""
        self.delay(0.0)
        self._call(self._open.set)
        self._call(self._budgets.clear)
        self.accept()

    # ---- the proxy

    def _call(self, what: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(what)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        budgets = dict([self._budgets.pop(0)]) if self._budgets else {}
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            _reset(writer)
            return
        both = (writer, far_writer)
        self._writers.update(both)
        ways = (
            asyncio.create_task(self._pump(reader, far_writer, budgets.get("up"), both)),
            asyncio.create_task(self._pump(far_reader, writer, budgets.get("down"), both)),
        )
        await asyncio.gather(*ways)
        self._writers.difference_update(both)
        for each in both:
            each.close()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        budget: int | None,
        both: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                if self._delay:
                    await asyncio.sleep(self._delay)
                if budget is not None:
                    data, budget = data[:budget], budget - len(data)
                writer.write(data)
                await writer.drain()
                if budget is not None and budget <= 0:
                    for each in both:
                        each.transport.abort()
                    return
            writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset."""
    with suppress(OSError):
        descriptor = writer.get_extra_info("socket")
        descriptor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    writer.transport.abort()
