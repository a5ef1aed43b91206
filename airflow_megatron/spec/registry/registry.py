"""Classes by name: a class of this package, or one that another package registers with an entry point."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import traceback
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic_core import PydanticCustomError, PydanticKnownError, core_schema

from airflow_megatron.errors import AirflowMegatronError, RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from importlib.metadata import EntryPoint

    from pydantic import GetJsonSchemaHandler

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Objects(dict[str, T]):
    """Objects by name, created at the first lookup."""

    def __init__(self, make: Callable[[str], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> T:
        made = self[name] = self._make(name)
        return made


class Registry(Generic[T]):
    """Classes of one base class, by name; an object of each is created at the first lookup.

    The metadata of installed packages is read only for names that this package does not have.

    :param base: what each class extends
    :param group: group of the entry points
    :param built_in: name → ``module:Class`` of this package's own, in the order in which messages list them; another
        package cannot replace one of them
    :ivar objects: name → object, like ``[]`` but faster, because plans look up the same names millions of times
    """

    def __init__(self, base: type[T], group: str, built_in: Mapping[str, str]) -> None:
        self.base, self.group, self.built_in = base, group, built_in
        self.objects: dict[str, T] = _Objects(self._load)

    def names(self) -> tuple[str, ...]:
        """Return all names: those of this package, then those of other packages in alphabetical order."""
        return (*self.built_in, *sorted(self._registered.keys() - self.built_in.keys()))

    def find(self, name: str) -> T | None:
        """Return the object of a name, None if it is not registered.

        :raises RegistryError: if another package's class cannot be loaded, or does not extend the base class
        """
        return self.objects[name] if name in self else None

    def __getitem__(self, name: str) -> T:
        """Return the object of a name.

        :raises KeyError: if it is not registered
        :raises RegistryError: as :meth:`find`
        """
        return self.objects[name]

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in self._registered

    def __iter__(self) -> Iterator[T]:
        return (self[name] for name in self.names())

    def usable(self) -> dict[str, T]:
        """Return name → object without the classes of other packages that are invalid.

        A package that is damaged must not affect the specs that do not use it.
        """
        found: dict[str, T] = {}
        for name in self.names():
            try:
                found[name] = self[name]
            except RegistryError as error:
                log.debug("%s", error)
        return found

    def folders_beside(self, folder: str) -> tuple[Path, ...]:
        """Return the folders of a name beside the modules of other packages' classes, without loading a class.

        :param folder: name of the folders
        """
        found: list[Path] = []
        for name, point in sorted(self._registered.items()):
            package, *below = point.module.split(".")
            spec = find_spec(package) if name not in self.built_in else None
            for place in (spec.submodule_search_locations if spec else None) or ():
                module = Path(place, *below)
                path = (module if module.is_dir() else module.parent) / folder
                found += [path] if path.is_dir() and path not in found else []
        return tuple(found)

    @functools.cached_property
    def _registered(self) -> Mapping[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def _load(self, name: str) -> T:
        if name in self.built_in:
            module, _, attribute = self.built_in[name].partition(":")
            found: Any = getattr(importlib.import_module(module), attribute)
        elif name not in self._registered:
            raise KeyError(f"no package here registers {name!r} as one of {self.group}")
        else:
            point = self._registered[name]
            described = f"{point.value}, which is registered as {name} of {self.group}"
            try:
                found = point.load()
            except Exception as error:
                raise RegistryError(
                    f"{described}, cannot be loaded: {type(error).__name__}: {error}"
                ) from error
            if not (isinstance(found, type) and issubclass(found, self.base)):
                raise RegistryError(f"{described}, is not a class that extends {self.base.__qualname__}")
            found = _reporting(found, self.base, described)
        try:
            made: T = found()
        except Exception as error:
            message = f"{found.__qualname__}, which is registered as {name} of {self.group}, cannot be made"
            raise RegistryError(f"{message}: {type(error).__name__}: {error}") from error
        return made


def _reporting(found: type[T], base: type[T], described: str) -> type[T]:
    """Return a class whose methods report exceptions as errors of the package that has defined it.

    :param found: another package's class
    :param base: the class whose public methods this package calls
    :param described: the class, for messages
    """
    methods = {
        name: _reporting_method(method, f"{described}: {name}()")
        for name, ours in inspect.getmembers_static(base, inspect.isfunction)
        if not name.startswith("_")
        and inspect.isfunction(method := inspect.getattr_static(found, name))
        and method is not ours
    }
    return type(
        found.__name__,
        (found,),
        {"__module__": found.__module__, "__qualname__": found.__qualname__} | methods,
    )


def _reporting_method(method: Callable[..., Any], called: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def reporting(*words: Any, **named: Any) -> Any:
        try:
            answer = method(*words, **named)
            return tuple(answer) if inspect.isgenerator(answer) else answer
        except AirflowMegatronError:
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise RegistryError(f"{called} failed at {last.filename}:{last.lineno}: {reason}") from error

    return reporting


class RegisteredName:
    """Annotation for a field with one of a registry's names, used in ``Annotated[str, …]``.

    It is validated and described like a ``Literal`` of the names.

    :param trait: an attribute of the class that must be true; empty for any class
    """

    def __init__(self, registry: Registry[Any], trait: str = "") -> None:
        self.registry, self.trait = registry, trait

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Return the check of a value."""
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON Schema of a value."""
        return {"enum": self._names(), "type": "string"}

    def listed(self) -> str:
        """Return the names as messages list them, such as ``'a', 'b' or 'c'``."""
        *first, last = (repr(name) for name in self._names())
        return f"{', '.join(first)} or {last}"

    def _names(self) -> list[str]:
        if not self.trait:
            return list(self.registry.names())
        return [name for name, one in self.registry.usable().items() if getattr(one, self.trait)]

    def _holds(self, name: str) -> bool:
        found = self.registry[name]
        return not self.trait or bool(getattr(found, self.trait))

    def _checked(self, value: Any) -> str:
        try:
            if isinstance(value, str) and value in self.registry and self._holds(value):
                return value
        except RegistryError as error:
            context = {"message": str(error), "hint": "repair or uninstall that package", "entry": ()}
            raise PydanticCustomError("refused", "{message}", context) from None
        raise PydanticKnownError("literal_error", {"expected": self.listed()})
