"""Incidents of a site's nodes and services during a run, drawn at random from a seed.

The incidents of a seed do not depend on the policy: all policies are compared with the same incidents.
"""

from __future__ import annotations

import bisect
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from airflow_megatron.simulation.site.site import DAY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.simulation.site.site import IncidentKind, OutageKind, Outages, Site

_HARDWARE: Final = frozenset({"gpu", "node_down", "hang", "slow"})
"""Kinds of incidents that are more frequent on lemon nodes."""

Draw = Literal["incident", "lemon", "outage", "job", "repair"]


def stream(seed: int, purpose: Draw, name: str = "") -> random.Random:
    """Return an independent source of random numbers for each purpose; draws from one do not affect another."""
    return random.Random(f"{seed}/{purpose}/{name}")


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident on a node.

    :param time: seconds from the start.
    :param node: index of the node.
    :param kind: kind of the incident.
    :param luck: random number in [0, 1); decides whether the log names the node and whether the fault persists.
    """

    time: float
    node: int
    kind: IncidentKind
    luck: float


@dataclass(frozen=True, slots=True)
class Outage:
    """A period in which a service does not answer."""

    kind: OutageKind
    start: float
    end: float


def lemon_nodes(site: Site, seed: int) -> frozenset[int]:
    """Return the indexes of the nodes that fail more often than others."""
    count = round(site.nodes * site.lemon_share)
    return frozenset(stream(seed, "lemon").sample(range(site.nodes), count))


def incidents(site: Site, seed: int, until: float) -> Iterator[Incident]:
    """Yield the incidents on all nodes in order of time, as a Poisson process.

    :param until: length of the run in seconds.
    """
    rate = (site.incidents_per_node_second + site.preemptions_per_node_second) * site.nodes
    if rate <= 0:
        return
    draw = stream(seed, "incident")
    preempted = site.preemptions_per_node_second * site.nodes / rate
    kinds, shares = list(site.mix), list(site.mix.values())
    chosen = lemon_nodes(site, seed)
    lemons = sorted(chosen)
    others = [index for index in range(site.nodes) if index not in chosen]
    now = 0.0
    while (now := now + draw.expovariate(rate)) < until:
        kind: IncidentKind = "preemption" if draw.random() < preempted else draw.choices(kinds, shares)[0]
        pool: list[int] | range = range(site.nodes)
        if kind in _HARDWARE and lemons and others:
            pool = lemons if draw.random() < site.lemon_failures else others
        yield Incident(now, draw.choice(pool), kind, draw.random())


class Services:
    """Outages of the controller, the accounting database and the login node."""

    def __init__(self, site: Site, seed: int, until: float) -> None:
        self._starts: dict[OutageKind, list[float]] = {}
        self._ends: dict[OutageKind, list[float]] = {}
        for kind, outages in site.outages.items():
            spans = list(_spans(outages, seed, kind, until))
            self._starts[kind] = [span.start for span in spans]
            self._ends[kind] = [span.end for span in spans]

    def outage(self, kind: OutageKind, now: float) -> Outage | None:
        """Return the current outage of a service, or None if it answers."""
        index = bisect.bisect_right(self._starts.get(kind, []), now) - 1
        if index < 0 or now >= self._ends[kind][index]:
            return None
        return Outage(kind, self._starts[kind][index], self._ends[kind][index])


def _spans(outages: Outages, seed: int, kind: OutageKind, until: float) -> Iterator[Outage]:
    if outages.per_week <= 0:
        return
    draw = stream(seed, "outage", kind)
    now = 0.0
    while (now := now + draw.expovariate(outages.per_week / (7 * DAY))) < until:
        end = now + draw.choice(outages.durations)
        yield Outage(kind, now, end)
        now = end
