"""The notifier classes that specs may use: those of this package, a provider or the site that the operator allows.

A class that a spec names is imported and instantiated with the spec's arguments inside Airflow's processes. The
operator therefore lists the allowed classes, and the Airflow connections that may be passed to them. No other class is
imported.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.notices.notice import Notice
from airflow_megatron.notices.notice_files import NoticePathError, notice_path_parts
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.expressions.bounds import begin_spec
from airflow_megatron.spec.expressions.resolution import (
    ExpressionError,
    attribute_names,
    evaluate_tree,
    is_template,
    template_names,
    templates,
)
from airflow_megatron.spec.trust.operator_lists import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OWN: Final = "airflow_megatron.notifications.json_lines.JsonLinesNotifier"
"""The class that every spec may use."""
CLASSES: Final = "AIRFLOW_MEGATRON_NOTIFIERS"
"""Environment variable with further allowed classes, separated by commas."""
CONNECTIONS: Final = "AIRFLOW_MEGATRON_NOTIFIER_CONNECTIONS"
"""Environment variable with the Airflow connections that notifiers of specs may use, separated by commas."""

_SECRET = re.compile(r"(?i)passw|secret|token|api_?key|credential")
_CONNECTION = re.compile(r"(?i)(?:\A|_)conn(?:ection)?(?:_?id)?s?\Z")
_FILES = re.compile(
    r"(?i)(?:\A|_)(?:file|filename|filepath|path|dir|directory|folder|template|attachment)s?\Z"
)
_FIELDS: Final = frozenset(Notice("report", "", "").to_json())


class NotifierError(AirflowMegatronError, ValueError):
    """A notifier cannot be created.

    :param message: what is wrong
    :param hint: what to do about it
    :param argument: the invalid argument, or None
    """

    def __init__(self, message: str, hint: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        self.argument = argument


def allowed_notifiers() -> list[str]:
    """Return the classes that specs may use."""
    return [OWN, *listed(CLASSES)]


def notifier_class(path: str) -> type:
    """Return the class at a dotted path that the operator allows.

    :raises NotifierError: if it is not allowed, does not exist, or is not a notifier
    """
    allowed = allowed_notifiers()
    if path not in allowed:
        near = did_you_mean(path, allowed, alike=0.8)
        hint = f"name one of {', '.join(allowed)}; the operator of Airflow adds classes in {CLASSES}"
        raise NotifierError(
            f"{path} is not allowed in specs on this Airflow", f"{near} or {hint}" if near else hint
        )
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        provider = ".".join(module_name.split(".")[2:3])
        package = f": pip install apache-airflow-providers-{provider}" if "airflow.providers" in path else ""
        hint = f"correct {CLASSES}, or install what it belongs to{package}"
        raise NotifierError(f"{path} cannot be imported: {error}", hint) from error
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        known = ", ".join(sorted(item for item in vars(module) if item.endswith("Notifier")))
        raise NotifierError(
            f"{module_name} has no class {name!r}", f"it has {known}" if known else f"correct {CLASSES}"
        )
    if not callable(getattr(found, "notify", None)):
        raise NotifierError(
            f"{path} is not a notifier: it has no method notify", "name a subclass of BaseNotifier"
        )
    return found


def check_arguments(notifier: type, arguments: Mapping[str, Any]) -> None:
    """Check that a notifier accepts the arguments, without creating it.

    :raises NotifierError: for an unknown or missing argument
    """
    signature = inspect.signature(notifier)
    takes = [name for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD]
    unknown = [name for name in arguments if name not in takes]
    # **kwargs are passed to BaseNotifier, which accepts only the context
    if unknown:
        raise NotifierError(
            f"{notifier.__name__} has no argument {unknown[0]!r}", f"it takes {', '.join(takes)}", unknown[0]
        )
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise NotifierError(f"{notifier.__name__}: {error}", "add it under arguments:") from error


def argument_errors(path: str, arguments: Mapping[str, Any]) -> Iterator[NotifierError]:
    """Yield the arguments that are not allowed: secrets, connections that are not allowed, files, unknown names.

    :param path: of the class
    :param arguments: as the spec gives them
    """
    for name, value in arguments.items():
        if _SECRET.search(name):
            yield NotifierError(
                f"{name} looks like a secret, and many people can read a spec",
                "store it in an Airflow connection and set …_conn_id",
                name,
            )
        if error := _template_error(value):
            yield NotifierError(*error, name)
        elif path == OWN:
            if name == "path" and (message := _path_error(value)):
                yield NotifierError(message, "write path: my-sweep.jsonl", name)
        elif _FILES.search(name):
            yield NotifierError(f"{name} names a file on Airflow's machine", "leave it out", name)
        elif _CONNECTION.search(name) and (message := _connection_error(value)):
            hint = f"the operator of Airflow adds connections in {CONNECTIONS}"
            yield NotifierError(message, hint, name)


def rendered_arguments(path: str, arguments: Mapping[str, Any], notice: Notice) -> dict[str, Any]:
    """Return a notifier's arguments with their expressions evaluated; these can read only ``notice``.

    :param path: of the class
    :param arguments: as the spec gives them
    :param notice: the notice to send
    :raises NotifierError: for arguments that are not allowed
    :raises ExpressionError: if an expression fails
    """
    begin_spec()
    for error in argument_errors(path, arguments):
        raise error
    rendered = evaluate_tree(dict(arguments), {"notice": notice.to_json()})
    return {str(name): value for name, value in rendered.items()}


def _template_error(value: Any) -> tuple[str, str] | None:
    """Return the error in the expressions of an argument, or None."""
    known = f"notice has {', '.join(sorted(_FIELDS))}"
    try:
        for name in sorted(template_names(value) - {"notice"}):
            return f"{name!r} is not defined in the arguments of a notifier, which can use only notice", known
        for field in sorted(attribute_names(value, "notice") - _FIELDS):
            return f"a notice has no {field!r}", did_you_mean(field, _FIELDS) or known
    except ExpressionError as error:
        return str(error), known
    return None


def _path_error(value: Any) -> str:
    if not isinstance(value, str):
        return "the path of a file must be a string"
    # the result of an expression is checked after its evaluation
    shape = value
    for source in templates(value):
        shape = (
            shape.replace(source, "x") if source == value else re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "x", shape)
        )
    try:
        notice_path_parts(shape)
    except NoticePathError as error:
        return str(error)
    return ""


def _connection_error(value: Any) -> str:
    allowed = listed(CONNECTIONS)
    if value is None or (isinstance(value, str) and not is_template(value) and value in allowed):
        return ""
    return f"{value!r:.80} is not a connection that notifiers of specs may use on this Airflow"
