"""Times at which a person looks at the jobs, and acts on an alarm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from airflow_megatron.simulation.site.site import DAY, HOUR

if TYPE_CHECKING:
    from airflow_megatron.simulation.site.site import Person


def next_look(person: Person, now: float) -> float:
    """Return the time of the next look at jobs that have not called for help.

    :param now: seconds from the start, which is a Monday's midnight.
    """
    return _at_work(person, (math.floor(now / person.look_s) + 1) * person.look_s)


def answer_to_alarm(person: Person, now: float) -> float:
    """Return when a person who is called now has acted."""
    return (now if person.on_call else _at_work(person, now)) + person.reaction_s


def _at_work(person: Person, now: float) -> float:
    """Return *now*, or the next beginning of working hours."""
    day = math.floor(now / DAY)
    hour = (now - day * DAY) / HOUR
    if day % 7 < person.days and person.first_hour <= hour < person.last_hour:
        return now
    if hour >= person.first_hour:
        day += 1
    while day % 7 >= person.days:
        day += 1
    return day * DAY + person.first_hour * HOUR
