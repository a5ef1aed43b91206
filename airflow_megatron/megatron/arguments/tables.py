"""Megatron's command-line arguments, per upstream release.

The table beside this module (``arguments.json``) is generated from the argument parsers of the releases
(:mod:`airflow_megatron.megatron.arguments.table_writer`). It defines which arguments exist;
:mod:`airflow_megatron.megatron.arguments.argv` uses it to write command lines.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.errors import near_names, suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.megatron.arguments.argv import Written, WrittenLine

#: The program of jobs that train GPT models.
PRETRAIN_GPT: Final = "pretrain_gpt.py"
TABLE_FILE: Final = Path(__file__).with_name("arguments.json")

_MOST_TABLES: Final = 32
"""Maximum number of cached tables of programs, and of forks."""
_DECLARATION: Final = ("action", "type", "nargs", "choices", "default", "required", "dest")
Action = Literal["Store", "StoreTrue", "StoreFalse", "BooleanOptional"]


class ArgumentError(AirflowMegatronError, ValueError):
    """A parameter that a release's command line does not accept.

    :param name: the given parameter
    :param release: the upstream release, for example ``core_v0.16.1``
    :param reason: what is wrong with it, and what to write instead
    :param nearest: similar known names, if the name is unknown
    """

    def __init__(self, name: str, release: str, reason: str, nearest: Sequence[str] = ()) -> None:
        self.name = name
        self.release = release
        self.reason = reason
        self.nearest = tuple(nearest)
        hint = f" ({suggestion(self.nearest)})" if self.nearest else ""
        super().__init__(f"{name}: {reason}{hint}")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of one release.

    :param flags: its spellings on the command line, the usual one first
    :param dest: the attribute of ``args`` that it sets
    :param group: its heading in the parser's help
    :param action: argparse's action
    :param type: name of argparse's type function, or None for text and for flags
    :param nargs: argparse's ``nargs``: None, ``0`` (a flag), a number, ``+`` or ``*``
    :param choices: the allowed values, if they are limited
    :param default: value if the argument is not given
    :param required: whether it must be given
    """

    flags: tuple[str, ...]
    dest: str
    group: str
    action: Action
    type: str | None
    nargs: int | str | None
    choices: tuple[Any, ...] | None
    default: Any
    required: bool

    @property
    def is_flag(self) -> bool:
        """Whether the argument takes no value."""
        return self.action != "Store"

    @property
    def is_list(self) -> bool:
        """Whether the argument takes several values."""
        return self.action == "Store" and self.nargs is not None

    @property
    def is_text(self) -> bool:
        """Whether the argument takes one arbitrary string."""
        return self.action == "Store" and self.nargs is None and self.type is None and self.choices is None

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the argument in parameters: its ``dest`` and its flags with underscores."""
        return (self.dest, *(canonical(flag) for flag in self.flags))


class ArgumentTable:
    """The arguments of one release, in the order of its parser.

    :param program_defaults: the program's default values by ``dest``
    :param optional: package → arguments that the program adds if the package is installed
    :ivar last_lines: names of parameters → their last command line from :func:`.to_argv`
    :ivar written: name, type and value of a parameter → its words from :func:`.to_argv`
    """

    def __init__(
        self,
        release: str,
        arguments: Sequence[Argument],
        program_defaults: Mapping[str, Any] | None = None,
        optional: Mapping[str, Sequence[Argument]] | None = None,
    ) -> None:
        """Index the arguments by all their names."""
        self.release = release
        self.arguments = tuple(arguments)
        self.program_defaults = dict(program_defaults or {})
        self.optional = dict(optional or {})
        self._by_flag: dict[str, Argument] = {}
        self._by_dest: dict[str, list[Argument]] = {}
        self._positions = {id(argument): index for index, argument in enumerate(self.arguments)}
        self._found: dict[str, Argument | None] = {}
        self._dests: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.last_lines: dict[tuple[str, ...], WrittenLine] = {}
        self.written: dict[tuple[str, type, object], Written] = {}
        for argument in self.arguments:
            for flag in argument.flags:
                self._by_flag.setdefault(canonical(flag), argument)
            self._by_dest.setdefault(argument.dest, []).append(argument)

    def __iter__(self) -> Iterator[Argument]:
        return iter(self.arguments)

    def __len__(self) -> int:
        return len(self.arguments)

    def get(self, name: str) -> Argument | None:
        """Look up an argument.

        :param name: its ``dest`` (``add_bias_linear``) or one of its flags, with or without dashes
            (``--disable-bias-linear``, ``disable_bias_linear``). If one argument's ``dest`` is another's flag, the
            ``dest`` has precedence.
        :returns: the argument, or None if the release has no such argument.
        """
        try:
            return self._found[name]  # plans of many points look up the same names millions of times
        except KeyError:
            key = canonical(name)
            found = self._by_dest[key][0] if key in self._by_dest else self._by_flag.get(key)
            self._found[name] = found
            return found

    def dests(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the ``dest`` of each name, empty for a name that the release does not have."""
        found = self._dests.get(names)
        if found is None:
            arguments = map(self.get, names)
            found = self._dests[names] = tuple(argument.dest if argument else "" for argument in arguments)
        return found

    def default(self, name: str) -> Any:
        """Return the default of an argument; None if the release does not have the argument."""
        argument = self.get(name)
        return argument.default if argument else None

    def position(self, argument: Argument) -> int:
        """Return the position of an argument of the table in the order of the parser."""
        return self._positions[id(argument)]

    def with_packages(self, packages: frozenset[str]) -> ArgumentTable:
        """Return the table with the arguments that the program adds if some packages are installed."""
        found = packages.intersection(self.optional)
        if not found:
            return self
        more = [argument for name in sorted(found) for argument in self.optional[name]]
        left = {name: rows for name, rows in self.optional.items() if name not in found}
        return ArgumentTable(self.release, [*self, *more], self.program_defaults, left)

    def package_of(self, name: str) -> str | None:
        """Return the package that an argument requires; None without one."""
        wanted = canonical(name)
        for package, arguments in self.optional.items():
            if any(wanted in argument.names for argument in arguments):
                return package
        return None

    def nearest(self, name: str) -> list[str]:
        """Return up to three known names that are similar to ``name``, best first."""
        known = [*self._by_dest, *(flag for flag in self._by_flag if flag not in self._by_dest)]
        return near_names(canonical(name), known, alike=0.7)

    def flag_tokens(self, name: str, value: bool) -> tuple[Argument, list[str]]:
        """Return the tokens of a parameter that is a flag.

        With a ``dest`` as name, the value is that of the attribute (``add_bias_linear: false`` writes
        ``--disable-bias-linear``); with a flag as name, the value is whether the flag is given.

        :param name: a name of the flag in :meth:`get`.
        :param value: the parameter's value.
        :returns: the argument and the tokens: one, or none if the value is the default.
        """
        key = canonical(name)
        setters = self._by_dest.get(key)
        if setters is None:
            argument = self._by_flag[key]
            if argument.action == "BooleanOptional":  # --x and --no-x are two spellings of one argument
                negative = key.startswith("no_")
                return argument, [argument.flags[negative is value]]
            spelling = next(flag for flag in argument.flags if canonical(flag) == key)
            return argument, [spelling] if value else []
        for argument in setters:
            if argument.action == "BooleanOptional":
                return argument, [argument.flags[0 if value else 1]]
            if argument.action == ("StoreTrue" if value else "StoreFalse"):
                return argument, [argument.flags[0]]
        return setters[0], []


@functools.lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """Return a name in the form for lookups: no leading dashes, underscores for dashes."""
    return name.removeprefix("--").replace("-", "_")


def known_releases() -> tuple[str, ...]:
    """Return the upstream releases with known arguments, oldest first."""
    return tuple(_table_file()["releases"])


def release_tag(name: str) -> str:
    """Return the tag of a known release from its number (``0.16.1``, ``v0.16.1``); other names unchanged."""
    tag = f"core_v{_release_number(name)}"
    return tag if tag in known_releases() else name


def _release_number(name: str) -> str:
    return name.removeprefix("core_").removeprefix("v")


@functools.cache
def argument_table(release: str) -> ArgumentTable:
    """Load the arguments of a release's parser, without those that its programs add (:func:`program_table`).

    :param release: an upstream tag, for example ``core_v0.16.1``.
    :raises ArgumentError: if the release is unknown.
    """
    return table_of(_content_with(release), release)


@functools.lru_cache(maxsize=_MOST_TABLES)  # specs may name any program
def program_table(release: str, program: str = PRETRAIN_GPT) -> ArgumentTable:
    """Load the arguments of a program of a release, with its own defaults.

    :param release: an upstream tag, for example ``core_v0.16.1``.
    :param program: a script of the release; one without recorded arguments adds nothing.
    :raises ArgumentError: if the release is unknown.
    """
    return table_of(_content_with(release), release, program)


def releases_with(program: str) -> tuple[str, ...]:
    """Return the releases that have a program, oldest first; upstream removed BERT's and T5's in core_v0.18."""
    return tuple(_table_file()["programs"].get(program, {}))


def _content_with(release: str) -> dict[str, Any]:
    content = _table_file()
    if release not in content["releases"]:
        series = ".".join(_release_number(release).split(".")[:2])
        near = [known for known in content["releases"] if known.startswith(f"core_v{series}.")]
        known = ", ".join(content["releases"])
        raise ArgumentError(release, release, f"no such release; known are {known}", near)
    return content


def table_of(content: Mapping[str, Any], release: str, program: str | None = None) -> ArgumentTable:
    """Read a release from a table of :func:`airflow_megatron.megatron.arguments.table_writer.make_table`.

    :param program: a script whose arguments and defaults are included
    """
    rows = content["arguments"]

    def arguments(indices: Iterable[int]) -> list[Argument]:
        return [_argument(rows[index]) for index in indices]

    own = content.get("programs", {}).get(program, {}).get(release)
    own = own or {"defaults": {}, "adds": [], "packages": {}}
    return ArgumentTable(
        release,
        arguments([*content["releases"][release], *own["adds"]]),
        own["defaults"],
        {package: arguments(more) for package, more in own["packages"].items()},
    )


def read_table(path: Path) -> ArgumentTable:
    """Read the table of one checkout, the output of ``airflow-megatron megatron-args CHECKOUT``.

    :raises ValueError: if the file cannot be read, or is not such a table, or a table of several releases.
    """
    return _read_table(path, file_state(path))


def file_state(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written again, None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


@functools.lru_cache(maxsize=_MOST_TABLES)
def _read_table(path: Path, state: tuple[int, int, int] | None) -> ArgumentTable:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        (release,) = content["releases"]
        return table_of(content, release, PRETRAIN_GPT)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; make it with: airflow-megatron megatron-args CHECKOUT -o FILE"
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError(
            f"{path} is not an argument table of one checkout; make it with: airflow-megatron megatron-args CHECKOUT"
        ) from None


def with_extra(table: ArgumentTable, extra: Mapping[str, Mapping[str, Any]]) -> ArgumentTable:
    """Return a table with additional arguments of a fork.

    :param table: the arguments of the upstream release that the fork is based on.
    :param extra: flag → ``{"type", "nargs", "choices", "default", "action", "required", "dest"}``, each optional;
        ``{}`` declares an argument with a string value, ``{"action": "StoreTrue"}`` a flag.
    :returns: a new table.
    :raises ArgumentError: for an invalid declaration, or one that the release already has.
    """
    known = {flag for argument in table for flag in argument.flags}
    added = []
    for name, declared in extra.items():
        flag = "--" + canonical(name).replace("_", "-") if not name.startswith("--") else name
        if flag in known:
            raise ArgumentError(
                name, table.release, f"{table.release} has this argument; drop the declaration"
            )
        added.append(_declared(name, flag, declared, table.release))
    return ArgumentTable(table.release, [*table, *added], table.program_defaults, table.optional)


def _declared(name: str, flag: str, declared: Mapping[str, Any], release: str) -> Argument:
    unknown = [key for key in declared if key not in _DECLARATION]
    if unknown:
        allowed = ", ".join(_DECLARATION)
        raise ArgumentError(name, release, f"cannot declare {unknown[0]!r}; allowed are {allowed}")
    action = declared.get("action", "Store")
    if action not in get_args(Action):
        raise ArgumentError(
            name, release, f"action cannot be {action!r}; allowed are {', '.join(get_args(Action))}"
        )
    kind = declared.get("type")
    if kind not in (None, "str", "int", "float", "bool"):
        raise ArgumentError(name, release, f"type cannot be {kind!r}; allowed are str, int, float, bool")
    is_flag = action != "Store"
    if is_flag and (kind is not None or "nargs" in declared or "choices" in declared):
        raise ArgumentError(name, release, "is a flag: it has no type, nargs or choices")
    flags = (flag, "--no-" + flag.removeprefix("--")) if action == "BooleanOptional" else (flag,)
    choices = declared.get("choices")
    return Argument(
        flags=flags,
        dest=declared.get("dest", canonical(flag)),
        group="declared",
        action=action,
        type=kind,
        nargs=0 if is_flag else declared.get("nargs"),
        choices=tuple(choices) if choices is not None else None,
        default=declared.get("default", {"StoreTrue": False, "StoreFalse": True}.get(action)),
        required=bool(declared.get("required", False)),
    )


@functools.cache
def _table_file() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(TABLE_FILE.read_text(encoding="utf-8"))
    return content


def _argument(row: Sequence[Any]) -> Argument:
    flags, dest, group, action, kind, nargs, choices, default, required = row
    return Argument(
        flags=tuple(flags),
        dest=dest,
        group=group,
        action=action,
        type=kind,
        nargs=nargs,
        choices=tuple(choices) if choices is not None else None,
        default=default,
        required=required,
    )
