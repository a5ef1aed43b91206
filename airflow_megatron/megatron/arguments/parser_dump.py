"""Write the argument parser of a checkout as JSON. It is run as a script in a separate process.

The checkout is Megatron-LM's, Megatron-DeepSpeed's, or this project's folder ``Megatron-LM`` with its thin trainer.

Usage: ``python parser_dump.py CHECKOUT RELEASE [--program SCRIPT] [PACKAGE …]``. Importing Megatron's arguments
imports PyTorch and other packages; the named packages are replaced by empty ones, which is sufficient to build the
parser. Prints ``{"release", "arguments": […]}``, or ``{"missing": PACKAGE}`` for a package that must be named.

With ``--program`` the script itself runs up to the call that reads its arguments, because a program may add arguments
and defaults. The output is then ``{"release", "arguments": […], "defaults": {…}}``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import runpy
import sys
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TORCH_VERSION = (
    "2.13.0"  # upstream compares the version during the import; newer than any minimum that it requires
)


class _Anything(type(typing.Protocol)):  # type: ignore[misc]  # upstream mixes them with protocols
    """Type of the names in an empty package: each is a class that can be called, subclassed and subscripted."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = _anything(name)
        setattr(cls, name, made)
        return made

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        # A decorator does not change the decorated object.
        return arguments[0] if _decorates(arguments) else super().__call__()

    def __getitem__(cls, _item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __lt__(cls, other: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __fspath__(cls) -> str:
        return ""


def _anything(name: str) -> _Anything:
    return _Anything(name, (_Value,), {})


def _decorates(arguments: tuple[Any, ...]) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], (types.FunctionType, type))


class _Value(metaclass=_Anything):
    """Result of a call of such a name; it can be used as a decorator, a context, a number, and others."""

    __file__ = ""
    _is_protocol = False  # read by the type of protocols from Python 3.12 on, before this class has a name

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        """Accept any arguments."""

    def __call__(self, *arguments: Any, **_options: Any) -> Any:
        return arguments[0] if _decorates(arguments) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _Value()

    def __lt__(self, other: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 0

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __add__

    def __getitem__(self, _item: Any) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_problem: object) -> None:
        """Leave the context."""


class _EmptyPackage(types.ModuleType):
    """A package whose every name exists."""

    __version__ = _TORCH_VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = _anything(name)
        setattr(self, name, made)
        return made


class _EmptyPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder of the empty packages and their modules."""

    def __init__(self, packages: set[str]) -> None:
        self.packages = packages

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Claim a name under one of the packages."""
        if fullname.partition(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Create the empty package."""
        package = _EmptyPackage(spec.name)
        package.__path__ = []
        package.__file__ = ""
        return package

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: an empty package has no code."""


def give_versions(packages: set[str]) -> None:
    """Give the empty packages a version, for code that reads the version of the installed distribution."""
    version_of = importlib.metadata.version

    def version(distribution_name: str) -> str:
        named = distribution_name.replace("-", "_") in packages
        return _TORCH_VERSION if named else version_of(distribution_name)

    importlib.metadata.version = version


def describe(action: argparse.Action, group: str | None) -> dict[str, Any]:
    """Describe one argument of a parser."""
    kind = type(action).__name__.strip("_").removesuffix("Action")
    kind = "BooleanOptional" if kind == "BooleanOptional" else kind
    return {
        "flags": list(action.option_strings),
        "dest": action.dest,
        "group": group,
        "action": kind,
        "type": getattr(action.type, "__name__", None) if action.type is not None else None,
        "nargs": action.nargs,
        "choices": [_plain(choice) for choice in action.choices] if action.choices is not None else None,
        "default": _plain(action.default),
        "required": action.required,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return repr(value)


def module_file(module: str) -> str:
    """Return where a module of :data:`BUILDERS` lies in its checkout."""
    return f"{module.replace('.', '/')}.py"


def build_parser(checkout: Path) -> argparse.ArgumentParser:
    """Build the parser of a checkout, which must be importable.

    :raises StopIteration: if it has none of the modules in :data:`BUILDERS`.
    """
    module = next(module for module in BUILDERS if (checkout / module_file(module)).is_file())
    return BUILDERS[module](importlib.import_module(module))


def _thin_trainer(arguments: types.ModuleType) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = arguments.build_parser()
    return parser


def _megatron_lm(arguments: types.ModuleType) -> argparse.ArgumentParser:
    if not hasattr(arguments, "add_megatron_arguments"):  # core_v0.11 and older
        return _from_parse_args(arguments)
    parser: argparse.ArgumentParser = arguments.add_megatron_arguments(
        argparse.ArgumentParser(allow_abbrev=False)
    )
    return parser


class _Built(BaseException):
    """Exception that passes a parser out of the function that would parse with it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _from_parse_args(arguments: types.ModuleType) -> argparse.ArgumentParser:
    """Return the parser from ``parse_args``, which builds it and parses in one call."""

    def parse_known_args(parser: argparse.ArgumentParser) -> None:
        raise _Built(parser)

    if "deepspeed" in sys.modules:  # what it adds itself: deepspeed/__init__.py _add_core_arguments
        sys.modules["deepspeed"].add_config_arguments = _deepspeed_arguments  # type: ignore[attr-defined]
    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[method-assign, assignment]
    try:
        arguments.parse_args(ignore_unknown_args=True)
    except _Built as built:
        return built.parser
    raise RuntimeError("parse_args parses nothing")


def _deepspeed_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    group = parser.add_argument_group("DeepSpeed")
    group.add_argument("--deepspeed", action="store_true")
    group.add_argument("--deepspeed_config", type=str)
    return parser


class _ArgumentsRequested(BaseException):
    """Exception that ends a program at the call that reads its arguments."""

    def __init__(
        self, add: Callable[[argparse.ArgumentParser], Any] | None, defaults: dict[str, Any]
    ) -> None:
        self.add, self.defaults = add, defaults


def program_arguments(checkout: Path, script: str) -> tuple[argparse.ArgumentParser, dict[str, Any]]:
    """Run a program of Megatron-LM up to the call that reads its arguments.

    :returns: the parser with what the program adds to it, and the program's own defaults by ``dest``.
    :raises RuntimeError: if the program ends without reading arguments.
    """

    def ask(
        *_given: Any,
        extra_args_provider: Callable[[argparse.ArgumentParser], Any] | None = None,
        args_defaults: dict[str, Any] | None = None,
        **_others: Any,
    ) -> None:
        raise _ArgumentsRequested(extra_args_provider, dict(args_defaults or {}))

    parser = build_parser(checkout)  # before the program runs, which may replace what it needs
    training = importlib.import_module("megatron.training")
    arguments = importlib.import_module("megatron.training.arguments")
    for module in (training, arguments):
        for name in ("pretrain", "parse_and_validate_args"):  # the latter from core_v0.18 on
            if hasattr(module, name):
                setattr(module, name, ask)
    sys.argv = [script]
    try:
        runpy.run_path(str(checkout / script), run_name="__main__")
    except _ArgumentsRequested as asked:
        if asked.add is not None:
            asked.add(parser)
        return parser, asked.defaults
    raise RuntimeError(f"{script} reads no arguments")


#: Module of a checkout → function that builds its parser.
BUILDERS: Final[dict[str, Callable[[types.ModuleType], argparse.ArgumentParser]]] = {
    "megatron_core_trainer.arguments.parser": _thin_trainer,
    "megatron.training.arguments": _megatron_lm,
    "megatron.arguments": _from_parse_args,  # Megatron-DeepSpeed, and Megatron-LM before core_v0.7
}


def main(argv: list[str]) -> int:
    """Print the parser of a checkout, or of one of its programs."""
    checkout, release, *packages = argv
    program = packages[1] if packages[:1] == ["--program"] else None
    packages = packages[2:] if program else packages
    sys.path.insert(0, checkout)
    sys.meta_path.insert(0, _EmptyPackages(set(packages)))
    give_versions(set(packages))
    if not hasattr(typing, "override"):  # Python 3.11: upstream 0.18 and later import it
        typing.override = lambda method: method  # type: ignore[attr-defined]
    defaults: dict[str, Any] | None = None
    output, sys.stdout = sys.stdout, sys.stderr  # a program prints before it reads its arguments
    try:
        if program:
            parser, defaults = program_arguments(Path(checkout), program)
        else:
            parser = build_parser(Path(checkout))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing == "megatron" or missing in packages:
            raise
        print(json.dumps({"missing": missing}), file=output)
        return 0
    groups = {id(action): group.title for group in parser._action_groups for action in group._group_actions}
    arguments = [
        describe(action, groups.get(id(action))) for action in parser._actions if action.dest != "help"
    ]
    found: dict[str, Any] = {"release": release, "arguments": arguments}
    if defaults is not None:
        found["defaults"] = {name: _plain(value) for name, value in defaults.items()}
    print(json.dumps(found), file=output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
