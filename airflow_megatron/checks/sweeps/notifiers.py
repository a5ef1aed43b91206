"""Check ``notify:``: only allowed classes and connections, only arguments of the class, no secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.sweep import Sweep


def notifier_problems(sweep: Sweep) -> Iterator[Problem]:
    """Yield the problems of a sweep's notifiers."""
    if not sweep.settings.notify:
        return
    from airflow_megatron.notices.notifier_classes import (  # this import also loads the modules for logs and verdicts
        NotifierError,
        argument_errors,
        check_arguments,
        notifier_class,
    )

    for number, section in enumerate(sweep.settings.notify):
        try:
            notifier = notifier_class(section.notifier)
        except NotifierError as error:
            errors = [error]  # the class decides which arguments are right
        else:
            errors = list(argument_errors(section.notifier, section.arguments))
            try:
                check_arguments(notifier, section.arguments)
            except NotifierError as error:
                errors += [error] * all(error.argument != each.argument for each in errors)
        for each in errors:
            where = ("arguments", each.argument) if each.argument else ("notifier",)
            yield sweep.document.problem(("notify", number, *where), str(each), each.hint)
