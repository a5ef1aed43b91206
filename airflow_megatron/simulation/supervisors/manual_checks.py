"""Times at which a person checks the jobs, and reacts to an alarm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from airflow_megatron.simulation.site.site import DAY, HOUR

if TYPE_CHECKING:
    from airflow_megatron.simulation.site.site import Person


def next_check(person: Person, now: float) -> float:
    """Return the time of the next routine check.

    :param now: seconds from the start, which is a Monday's midnight.
    """
    return _at_work(person, (math.floor(now / person.look_s) + 1) * person.look_s)


def reaction_to_alarm(person: Person, now: float) -> float:
    """Return the time at which a person has reacted to an alarm that starts now."""
    return (now if person.on_call else _at_work(person, now)) + person.reaction_s


def _at_work(person: Person, now: float) -> float:
    """Return *now* if it is within working hours, or else the next start of working hours."""
    day = math.floor(now / DAY)
    hour = (now - day * DAY) / HOUR
    if day % 7 < person.days and person.first_hour <= hour < person.last_hour:
        return now
    if hour >= person.first_hour:
        day += 1
    while day % 7 >= person.days:
        day += 1
    return day * DAY + person.first_hour * HOUR
