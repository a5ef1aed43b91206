"""The notifier classes that specs name: of this package, of any provider, or of the site's own."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class NotifierError(ValueError):
    """A notifier that cannot be made.

    :param message: what is wrong
    :param mend: what to do about it
    :param argument: the argument at fault, or None
    """

    def __init__(self, message: str, mend: str, argument: str | None = None) -> None:
        super().__init__(message)
        self.mend = mend
        self.argument = argument


def notifier_class(path: str) -> type:
    """Return the class at a dotted path.

    :raises NotifierError: when there is none, or it is no notifier
    """
    module_name, _, name = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        provider = ".".join(module_name.split(".")[2:3])
        package = f"pip install apache-airflow-providers-{provider}" if "airflow.providers" in path else ""
        mend = f"mend the path, or install what it belongs to{package and f': {package}'}"
        raise NotifierError(f"{path} cannot be imported: {error}", mend) from error
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        known = ", ".join(sorted(item for item in vars(module) if item.endswith("Notifier")))
        raise NotifierError(
            f"{module_name} has no class {name!r}", f"it has {known}" if known else "mend the path"
        )
    if not callable(getattr(found, "notify", None)):
        raise NotifierError(
            f"{path} is no notifier: it has no method notify", "name a subclass of BaseNotifier"
        )
    return found


def check_arguments(notifier: type, arguments: Mapping[str, Any]) -> None:
    """Check that a notifier can be made with the arguments, without making it.

    :raises NotifierError: for an argument that it does not take, or one that is missing
    """
    signature = inspect.signature(notifier)
    takes = [name for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD]
    unknown = [name for name in arguments if name not in takes]
    # what is passed on with **kwargs reaches BaseNotifier, which takes no more than the context
    if unknown:
        raise NotifierError(
            f"{notifier.__name__} takes no {unknown[0]!r}", f"it takes {', '.join(takes)}", unknown[0]
        )
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise NotifierError(f"{notifier.__name__}: {error}", "add it under arguments:") from error
