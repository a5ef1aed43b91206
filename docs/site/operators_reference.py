"""The reference of the Airflow classes, made from their docstrings and signatures."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import TYPE_CHECKING, Final

from airflow_megatron.decorators import slurm as slurm_decorator
from airflow_megatron.get_provider_info import get_provider_info

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

KINDS: Final = ("operators", "sensors", "hooks", "notifications", "triggers")
INTRODUCTION: Final = (
    "All classes that the package registers with Airflow, made from their docstrings. [operators.md](../operators.md) "
    "shows how to use them. Arguments that are not listed are those of the base class."
)
_ROLE: Final = re.compile(r":(?:class|func|meth|mod|attr|data):`~?(?P<name>[\w.]+)`")
_LINK: Final = re.compile(r"`(?P<text>[^`<]+) <(?P<address>[^>]+)>`__?")
_PARAM: Final = re.compile(r"^:param (?P<name>\w+): ", re.MULTILINE)
_FIELD: Final = re.compile(r"^:(?:param \w+|returns?|raises?(?: [\w, .]+)?):", re.MULTILINE)


def operators_reference() -> str:
    """Return the page on operators, sensors, hooks, notifiers and triggers."""
    lines = [
        "# Reference: Airflow classes",
        "",
        INTRODUCTION,
    ]
    documented = {kind: list(_classes(kind)) for kind in KINDS}
    names = {cls.__name__ for classes in documented.values() for cls in classes}
    for kind, classes in documented.items():
        lines += ["", f"## {kind.capitalize()}"]
        for cls in classes:
            lines += ["", *_section(cls, names)]
    return "\n".join([*lines, ""])


def _classes(kind: str) -> Iterator[type]:
    modules = [name for entry in get_provider_info().get(kind, ()) for name in _modules(entry)]
    for name in sorted(modules):
        module = importlib.import_module(name)
        yield from _own(module)
    if kind == "operators":
        yield from _own(slurm_decorator)


def _modules(entry: dict[str, list[str]] | str) -> list[str]:
    return [entry.rpartition(".")[0]] if isinstance(entry, str) else entry["python-modules"]


def _own(module: ModuleType) -> Iterator[type]:
    for name, value in vars(module).items():
        own = inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
        if own and any(hasattr(value, method) for method in ("execute", "run", "notify")):
            yield value


def _section(cls: type, names: set[str]) -> list[str]:
    docstring = inspect.cleandoc(cls.__doc__ or "")
    text, fields = _split(docstring)
    lines = [f"### {cls.__name__}", "", f"`{cls.__module__}.{cls.__name__}`", "", _markdown(text, names)]
    parameters = {name: _markdown(" ".join(what.split()), names) for name, what in fields.items()}
    if parameters:
        lines += ["", "| argument | default | meaning |", "| --- | --- | --- |"]
        defaults = _defaults(cls)
        lines += [
            f"| `{name}` | {defaults.get(name, '')} | {_cell(what)} |" for name, what in parameters.items()
        ]
    return lines


def _split(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring, and its arguments: name → meaning."""
    first = _FIELD.search(docstring)
    text = docstring[: first.start()] if first else docstring
    found = {}
    for match in _PARAM.finditer(docstring):
        rest = docstring[match.end() :]
        end = _FIELD.search(rest)
        found[match["name"]] = rest[: end.start()] if end else rest
    return text.strip(), found


def _defaults(cls: type) -> dict[str, str]:
    """Return argument → default, ``required`` for one without."""
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    return {
        each.name: "required" if each.default is each.empty else f"`{each.default!r}`"
        for each in parameters
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    }


def _markdown(text: str, names: set[str]) -> str:
    """Return reStructuredText of a docstring as Markdown."""

    def linked(match: re.Match[str]) -> str:
        name = match["name"].rpartition(".")[2]
        return f"[{name}](#{name.lower()})" if name in names else f"`{name}`"

    text = _LINK.sub(r"[\g<text>](\g<address>)", _ROLE.sub(linked, text))
    return text.replace("``", "`")


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
