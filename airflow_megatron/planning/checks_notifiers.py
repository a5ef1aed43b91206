"""The checks on ``notify:``: classes that exist, arguments that they take, no secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_megatron.planning.notifier_classes import NotifierError, check_arguments, notifier_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.spec.errors import Problem
    from airflow_megatron.spec.sweep import Sweep

_SECRET = re.compile(r"(?i)passw|secret|token|api_?key|credential")


def notifier_problems(sweep: Sweep) -> Iterator[Problem]:
    """Yield what is wrong with the notifiers of a sweep."""
    for number, section in enumerate(sweep.settings.notify):
        place = ("notify", number)
        for name in section.arguments:
            if _SECRET.search(name):
                yield sweep.document.problem(
                    (*place, "arguments", name),
                    f"{name} looks like a secret, and a spec is read by many",
                    "keep it in an Airflow connection and name that: …_conn_id",
                )
        try:
            check_arguments(notifier_class(section.notifier), section.arguments)
        except NotifierError as error:
            where = ("arguments", error.argument) if error.argument else ("notifier",)
            yield sweep.document.problem((*place, *where), str(error), error.mend)
