"""The size and the ports of a cluster."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from local_cluster.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

#: Below Linux's ephemeral ports (32768 and up), so that no outgoing connection takes one while the cluster is down.
PORT_RANGE = range(20000, 32000)
SERVICES = ("mariadbd", "slurmdbd", "slurmctld", "sshd")


@dataclass(frozen=True)
class Size:
    """The configured size of the cluster; the machine need not have these resources.

    :param nodes: number of slurmd daemons, named n1, n2, ...
    :param gpus_per_node: fake GPUs of each.
    :param cpus_per_node: CPUs of each.
    :param memory_mb: memory of each, MiB.
    :param slurmd_timeout: seconds without an answer after which a node is down.
    """

    nodes: int = 4
    gpus_per_node: int = 4
    cpus_per_node: int = 4
    memory_mb: int = 32768
    slurmd_timeout: int = 30

    def __post_init__(self) -> None:
        """Check the numbers.

        :raises ClusterError: if one is out of range.
        """
        limits = {
            "nodes": (1, 64),
            "gpus_per_node": (0, 16),
            "cpus_per_node": (1, 1024),
            "memory_mb": (64, 2**24),
            "slurmd_timeout": (5, 3600),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ClusterError(f"--{name.replace('_', '-')} {value}: must be from {low} to {high}")

    @property
    def node_names(self) -> list[str]:
        """Names of the nodes, n1 first."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True)
class Settings:
    """Settings that ``up`` reuses from the previous start.

    :param size: see :class:`Size`.
    :param ports: TCP port of each of :data:`SERVICES` and of each slurmd (``slurmd:n1``).
    """

    size: Size
    ports: dict[str, int]

    def taken_ports(self) -> list[str]:
        """Return the names of the ports on which processes listen now."""
        return [name for name, port in self.ports.items() if not is_free(port)]

    def save(self, path: Path) -> None:
        """Write the settings as JSON, atomically."""
        text = json.dumps({"size": dataclasses.asdict(self.size), "ports": self.ports}, indent=1)
        temporary = path.with_name(path.name + ".new")
        temporary.write_text(text + "\n")
        temporary.replace(path)


def load_settings(path: Path) -> Settings | None:
    """Read saved settings; None if there are none yet.

    :raises ClusterError: if the file is damaged.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return Settings(
            Size(**found["size"]), {str(name): int(port) for name, port in found["ports"].items()}
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"{path} is damaged ({error}): run down --purge, then up") from error


def port_names(size: Size) -> list[str]:
    """Return the names of all ports that a cluster of this size needs."""
    return [*SERVICES, *(f"slurmd:{node}" for node in size.node_names)]


def is_free(port: int) -> bool:
    """Return whether a server could now listen on a TCP port of any address."""
    with socket.socket() as probe:
        # Like the daemons, accept a port whose last connections are in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def choose_ports(size: Size, kept: dict[str, int], avoid: Iterable[int] = ()) -> dict[str, int]:
    """Choose a free port for each service; keep the previous ports if they are still free.

    :param size: determines the number of ports.
    :param kept: ports of the previous start.
    :param avoid: ports that are not to be chosen, for example of another cluster that is being set up.
    :raises ClusterError: if there are not enough.
    """
    return free_ports(port_names(size), kept, avoid)


def free_ports(names: Sequence[str], kept: Mapping[str, int], avoid: Iterable[int] = ()) -> dict[str, int]:
    """Return a free port for each name.

    :param names: names of the ports
    :param kept: ports of the previous start; reused if they are still free
    :param avoid: ports that are not to be chosen
    :raises ClusterError: if there are not enough
    """
    ports = {name: kept[name] for name in names if name in kept and is_free(kept[name])}
    taken = {*ports.values(), *kept.values(), *avoid}
    candidates = list(PORT_RANGE)
    # Two clusters that start at the same time must not try the same ports in the same order.
    random.Random(os.urandom(16)).shuffle(candidates)
    for name in names:
        while name not in ports:
            if not candidates:
                raise ClusterError(f"no free TCP port from {PORT_RANGE.start} to {PORT_RANGE.stop - 1}")
            port = candidates.pop()
            if port not in taken and is_free(port):
                ports[name] = port
                taken.add(port)
    return {name: ports[name] for name in names}
