"""Incidents of a site's nodes and services in the course of a run, drawn before it from a seed.

The same seed gives every policy the same incidents at the same times on the same nodes, so that policies are
compared on equal luck.
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
"""Kinds that lemon nodes have more of."""

Draw = Literal["incident", "lemon", "outage", "job", "repair"]


def stream(seed: int, purpose: Draw, name: str = "") -> random.Random:
    """Return a source of random numbers of its own for each purpose, so that none shifts another's."""
    return random.Random(f"{seed}/{purpose}/{name}")


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happens to a node.

    :param time: seconds from the start.
    :param node: index of the node.
    :param kind: what.
    :param luck: a number in [0, 1) that decides its particulars (does the log name the node, does the fault last).
    """

    time: float
    node: int
    kind: IncidentKind
    luck: float


@dataclass(frozen=True, slots=True)
class Outage:
    """A service does not answer from *start* to *end*."""

    kind: OutageKind
    start: float
    end: float


def lemon_nodes(site: Site, seed: int) -> frozenset[int]:
    """Return the indexes of the nodes that fail more often than others."""
    count = round(site.nodes * site.lemon_share)
    return frozenset(stream(seed, "lemon").sample(range(site.nodes), count))


def incidents(site: Site, seed: int, until: float) -> Iterator[Incident]:
    """Yield what happens to the nodes, in order of time: a Poisson process over all of them.

    :param until: seconds from the start.
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
    """When the controller, the accounting database and the login node answer."""

    def __init__(self, site: Site, seed: int, until: float) -> None:
        self._starts: dict[OutageKind, list[float]] = {}
        self._ends: dict[OutageKind, list[float]] = {}
        for kind, outages in site.outages.items():
            spans = list(_spans(outages, seed, kind, until))
            self._starts[kind] = [span.start for span in spans]
            self._ends[kind] = [span.end for span in spans]

    def outage(self, kind: OutageKind, now: float) -> Outage | None:
        """Return the outage that is going on, or None if the service answers."""
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
