"""A configuration tree whose texts refer to each other, resolved lazily and in any order.

The rules are OmegaConf's: ``${a.b}`` from the root, ``${.b}`` from the mapping that contains the text, a text that is
one whole interpolation keeps the type of its value. Only what is asked for is resolved, so that a part that needs a
missing environment variable does no harm as long as nobody reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.documents.named_files import NamedFileError
from airflow_megatron.spec.documents.quantities import list_index
from airflow_megatron.spec.documents.yaml_document import YamlDocument
from airflow_megatron.spec.expressions.bounds import charge
from airflow_megatron.spec.foreign.interpolation.eval import EvaluationError
from airflow_megatron.spec.foreign.interpolation.resolvers import RESOLVERS, excluded_nodes
from airflow_megatron.spec.foreign.interpolation.templates import (
    Call,
    Joined,
    Literal,
    Mapping,
    Reference,
    Sequence,
    TemplateError,
    is_interpolated,
    parse,
    parse_element,
)
from airflow_megatron.spec.trust.permitted_variables import (
    SETTING,
    PermittedVariables,
    only_for_person,
    refusal,
)

if TYPE_CHECKING:
    import collections.abc
    from collections.abc import Callable

    from airflow_megatron.spec.foreign.interpolation.templates import Node

Path: TypeAlias = tuple[str, ...]

MAX_CHAIN = 60
"""References that may follow each other."""
MAX_TEXT = 1_000_000
MAX_NODES = 1_000_000
MISSING = "???"
_OF_OMEGACONF = {
    "oc.create": 1,
    "oc.decode": 1,
    "oc.dict.keys": 1,
    "oc.dict.values": 1,
    "oc.env": 2,
    "oc.select": 2,
}
"""OmegaConf's own resolvers → the largest number of their arguments."""
_CONTEXT_RESOLVERS = {**_OF_OMEGACONF, "oc.exclude_nodes": 2, "oc.timestring": 0}
_NOT_HERE = {
    "oc.argsmegatron": "the command line is made from backend.megatron by this package",
    "oc.cliargs": "the command line is made by this package",
    "hydra": "Hydra's own run directory does not exist here; write the value",
    "now": "a clock would change every name at each look; write the text",
}


class ConfigurationError(AirflowMegatronError, ValueError):
    """A value that cannot be resolved.

    :param message: what is wrong, the chain of references included
    :param text: the text that failed, as written in the configuration
    :param hint: what to write instead, or a function that looks for it: most missing values have a default
    """

    def __init__(self, message: str, text: str = "", hint: str | Callable[[], str] = "") -> None:
        self.text, self._hint = text, hint
        super().__init__(message)

    @property
    def hint(self) -> str:
        """What to write instead, empty if that is not known."""
        return self._hint if isinstance(self._hint, str) else self._hint()


class MissingNameError(ConfigurationError):
    """A reference to a name that does not exist."""


@dataclass
class ResolutionContext:
    """The inputs of a resolution besides the configuration.

    :param environment: the variables of ``oc.env``
    :param timestring: the answer of ``oc.timestring``; None refuses it
    :param document: the file that the configuration stands in, which names other files
    :param is_plain: whether only OmegaConf's own resolvers are known, not those of oellm-autoexp
    :param warnings: warnings about ignored keys
    :param chain: the references being followed, over all configurations of a sweep
    """

    environment: collections.abc.Mapping[str, str]
    timestring: str | None = None
    document: YamlDocument = field(default_factory=lambda: YamlDocument("", None))
    is_plain: bool = False
    warnings: dict[str, None] = field(default_factory=dict)
    chain: list[tuple[int, str, Path]] = field(default_factory=list)

    def warn(self, message: str) -> None:
        """Add a warning, once."""
        self.warnings[message] = None


class Configuration:
    """One configuration tree.

    :param root: nested dicts, lists and scalars
    :param context: shared by all configurations that refer to each other
    :param given: path → value that is used instead of what the tree holds
    :param aliases: path → path that is meant where the first does not exist
    :param sibling: gives the configuration that ``${sibling.STAGE.…}`` means
    :param label: how the configuration is named in a chain, empty for the only one
    """

    def __init__(
        self,
        root: Any,
        context: ResolutionContext,
        *,
        given: collections.abc.Mapping[Path, Any] | None = None,
        aliases: collections.abc.Mapping[Path, Path] | None = None,
        sibling: Callable[[str], Configuration] | None = None,
        label: str = "",
    ) -> None:
        self.root = root
        self.context = context
        self.given = given or {}
        self.aliases = aliases or {}
        self.sibling = sibling
        self.label = label
        self._values: dict[Path, Any] = {}
        self._sizes: dict[int, int] = {}

    def get(self, path: str, default: Any = None) -> Any:
        """Return the resolved value at a dotted path; ``default`` without one.

        :raises ConfigurationError: if it is there and cannot be resolved
        """
        keys = tuple(path.split("."))
        try:
            self._locate(keys)
        except MissingNameError:
            if self._refers_to_nothing(keys):
                raise
            return default
        value = self.value(keys)
        return default if value == MISSING else value

    def section(self, path: str) -> Any:
        """Return the resolved section at a dotted path, all of whose values are used; an empty one without a value.

        :raises ConfigurationError: if a value cannot be resolved, or is ``???``
        """
        section = self.get(path) or {}
        unfilled = (
            [key for key, value in section.items() if value == MISSING] if isinstance(section, dict) else []
        )
        if unfilled:
            key = f"{path}.{unfilled[0]}"
            hint = f"write its value, or --set {key}=…; null drops it"
            raise ConfigurationError(f"{key} is ???, which has to be filled in", MISSING, hint)
        return section

    def _refers_to_nothing(self, keys: Path) -> bool:
        """Return whether a path is missing because a reference on the way to it fails."""
        node: Any = self.root
        for depth, key in enumerate(keys, 1):
            if not isinstance(node, dict) or key not in node:
                return False
            node = node[key]
            if isinstance(node, str):
                try:
                    self._locate(keys[:depth])
                except MissingNameError:
                    return True
                return False
        return False

    def raw(self, path: str) -> Any:
        """Return the unresolved value at a dotted path; None without one, the whole tree for an empty path."""
        if not path:
            return self.root
        try:
            return self._locate(tuple(path.split(".")))[0]
        except ConfigurationError:
            return None

    def keys(self, path: str) -> list[str]:
        """Return the keys of the mapping at a dotted path; empty without a mapping.

        :raises ConfigurationError: if the way there cannot be resolved
        """
        try:
            node, _, _ = self._locate(tuple(path.split(".")))
        except MissingNameError:
            return []
        return list(node) if isinstance(node, dict) else []

    def value(self, path: Path) -> Any:
        """Return the resolved value at a path.

        :raises ConfigurationError: if it is missing or cannot be resolved
        """
        if path in self._values:
            return self._values[path]
        raw, place, final = self._locate(path)
        if final:
            value = raw
        elif place != path and place in self._values:
            value = self._values[place]
        else:
            value = self._resolved(raw, place)
            self._values[place] = value
        self._values[path] = value
        return value

    def expression(self, text: str) -> Any:
        """Return the value of a text, resolved as at the root.

        :raises ConfigurationError: if it cannot be resolved
        """
        return self._resolved(text, ("<expression>",))

    def _locate(self, path: Path) -> tuple[Any, Path, bool]:
        """Follow a path, also through interpolations.

        :return: the value as written, the path that it stands at, and whether it is resolved already
        """
        if path[:1] == ("sibling",) and len(path) > 1 and self.sibling:
            return self._of_sibling(path), path, True
        if path[:1] in self.aliases and path[0] not in self.root:
            path = self.aliases[path[:1]] + path[1:]
        node: Any = self.root
        for depth, key in enumerate(path):
            here = path[:depth]
            if is_interpolated(node):
                return self._through(node, here, path[depth:])
            if (*here, key) in self.given:
                node = self.given[*here, key]
                if depth == len(path) - 1:
                    return node, path, True
                continue
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and (index := list_index(key, len(node), from_end=True)) is not None:
                node = node[index]
            else:
                raise self._missing(path, depth, node)
        return node, path, False

    def _through(self, text: str, here: Path, rest: Path) -> tuple[Any, Path, bool]:
        parsed = self._parsed(text)
        if isinstance(parsed, Reference):
            with _Chain(self, here, text):
                return self._locate(self._target(parsed, here) + rest)
        return _inside(self.value(here), here, rest, text), (*here, *rest), True

    def _of_sibling(self, path: Path) -> Any:
        assert self.sibling is not None
        other = self.sibling(path[1])
        if len(path) == 2:
            return {key: other.value((key,)) for key in other.root if key not in ("sweep", "sibling")}
        return other.value(path[2:])

    def _missing(self, path: Path, depth: int, node: Any) -> MissingNameError:
        dotted = ".".join(path)
        if path[0] == "sibling" and self.sibling is None:
            return MissingNameError(
                f"{dotted!r} is looked for before the points are known",
                "",
                f"escape it: \\\\${{{dotted}}}, which each point resolves by itself",
            )

        def hint() -> str:
            if not isinstance(node, dict):
                return ""
            found = did_you_mean(path[depth], node)
            if found or depth:
                return found
            near = self._anywhere(path[-1])
            return f"did you mean {near!r}?" if near else ""

        where = f"{'.'.join(path[:depth])} has no {path[depth]!r}" if depth else "the configuration has none"
        return MissingNameError(f"{dotted!r} is not defined ({where})", "", hint)

    def _anywhere(self, key: str) -> str:
        """Return the dotted path of a key of this name somewhere in the first three levels."""
        level = [((), self.root)]
        for _ in range(3):
            deeper: list[tuple[Any, Any]] = []
            for path, node in level:
                for name, value in node.items():
                    if name == key:
                        return ".".join((*path, name))
                    if isinstance(value, dict):
                        deeper.append(((*path, name), value))
            level = deeper
        return ""

    def _resolved(self, raw: Any, path: Path) -> Any:
        if isinstance(raw, str):
            if "${" not in raw:
                return raw
            with _Chain(self, path, raw):
                return self._checked(self._evaluate(self._parsed(raw), path[:-1]), raw)
        if isinstance(raw, dict):
            return self._sized({key: self.value((*path, key)) for key in raw})
        if isinstance(raw, list):
            return self._sized([self.value((*path, str(index))) for index in range(len(raw))])
        return raw

    def _evaluate(self, node: Node, container: Path) -> Any:
        match node:
            case Literal():
                return node.value
            case Joined():
                pieces = [_as_text(self._evaluate(part, container)) for part in node.parts]
                if sum(map(len, pieces)) > MAX_TEXT:
                    raise ConfigurationError(f"the text has more than {MAX_TEXT:,} characters")
                return "".join(pieces)
            case Reference():
                target = self._target(node, container, of_container=True)
                value = self.value(target)
                if value == MISSING:
                    raise ConfigurationError(f"{'.'.join(target)!r} is ???, which has to be filled in")
                return value
            case Call():
                return self._call(node, container)
            case Sequence():
                return self._sized([self._evaluate(item, container) for item in node.items])
            case Mapping():
                return self._sized(
                    {
                        _as_text(self._evaluate(key, container)): self._evaluate(value, container)
                        for key, value in node.items
                    }
                )

    def _target(self, node: Reference, place: Path, *, of_container: bool = False) -> Path:
        """Return the absolute path of a reference in a text at ``place`` (or in the mapping ``place``)."""
        container = place if of_container else place[:-1]
        keys: list[str] = []
        for key in node.keys:
            keys.extend(_as_text(self._evaluate(key, container)).split("."))
        if node.level == 0:
            return tuple(keys)
        if node.level - 1 > len(container):
            raise ConfigurationError(f"{'.' * node.level}{'.'.join(keys)} leaves the configuration")
        return (*container[: len(container) - (node.level - 1)], *keys)

    def _call(self, node: Call, container: Path) -> Any:
        own = _OF_OMEGACONF if self.context.is_plain else _CONTEXT_RESOLVERS
        if node.name in own:
            return self._context_call(node, container)
        function = None if self.context.is_plain else RESOLVERS.get(node.name)
        if function is None:
            known = own if self.context.is_plain else (*RESOLVERS, *own)
            hint = _NOT_HERE.get(node.name) or did_you_mean(node.name, known)
            raise ConfigurationError(
                f"there is no resolver {node.name!r}", "", hint or f"known: {', '.join(sorted(known))}"
            )
        arguments = [self._evaluate(argument, container) for argument in node.arguments]
        try:
            charge(*arguments)
            return function(*arguments)
        except (
            ArithmeticError,
            AttributeError,
            EvaluationError,
            LookupError,
            MemoryError,
            OSError,
            TypeError,
            ValueError,
        ) as error:
            # what a variable or another value gave is not repeated
            shown = ", ".join(
                _shortened(repr(value)) if isinstance(written, Literal) else "…"
                for written, value in zip(node.arguments, arguments, strict=True)
            )
            reason = "it takes too much memory" if isinstance(error, MemoryError) else error
            raise ConfigurationError(f"{node.name}({shown}): {reason}") from error

    def _context_call(self, node: Call, container: Path) -> Any:
        if node.name == "oc.timestring":
            if self.context.timestring is None:
                raise ConfigurationError(
                    "oc.timestring would change every name at each look at the file", "", "write a fixed text"
                )
            return self.context.timestring
        if not node.arguments:
            raise ConfigurationError(f"{node.name} needs an argument", "", f"write ${{{node.name}:…}}")
        most = _CONTEXT_RESOLVERS[node.name]
        if len(node.arguments) > most:
            message = f"{node.name} takes {most} argument{'s' * (most > 1)}, not {len(node.arguments)}"
            raise ConfigurationError(message, "", "quote text that holds a comma")
        first = self._evaluate(node.arguments[0], container)
        if node.name == "oc.create":
            return self._created(first, container)
        if node.name == "oc.decode":
            return first if first is None else self._evaluate(parse_element(str(first)), container)
        if node.name == "oc.env":
            return self._environment(node, str(first), container)
        if node.name == "oc.exclude_nodes":
            return self._excluded_nodes(node, str(first), container)
        level = len(str(first)) - len(str(first).lstrip("."))
        keys = tuple(Literal(key) for key in str(first)[level:].split("."))
        path = self._target(Reference(level, keys), container, of_container=True)
        if node.name == "oc.dict.keys":
            raw, _, _ = self._locate(path)
            return list(raw)
        if node.name == "oc.dict.values":
            value = self.value(path)
            return list(value.values() if isinstance(value, dict) else value)
        try:
            value = self.value(path)
        except MissingNameError:
            value = None
        if value in (None, MISSING) and len(node.arguments) > 1:
            return self._evaluate(node.arguments[1], container)
        return value

    def _created(self, value: Any, container: Path) -> Any:
        """Return a list or mapping whose texts may be interpolations themselves."""
        if isinstance(value, dict):
            return self._sized({key: self._created(item, container) for key, item in value.items()})
        if isinstance(value, list):
            return self._sized([self._created(item, container) for item in value])
        return self._evaluate(self._parsed(value), container) if is_interpolated(value) else value

    def _environment(self, node: Call, name: str, container: Path) -> Any:
        environment = self.context.environment
        value = environment.get(name)
        if value is not None:
            self.context.document.withhold(name, value)
            if only_for_person(name):
                self.context.warn(
                    f"{name} is read from your environment; Airflow reads it where {SETTING} names it"
                )
            return value
        if len(node.arguments) > 1:
            if isinstance(environment, PermittedVariables) and not environment.permits(name):
                self.context.warn(f"{name} may not be read, so its default stands; {SETTING} can permit it")
            default = self._evaluate(node.arguments[1], container)
            return default if default is None else _as_text(default)
        message, hint = refusal(environment, name)
        raise ConfigurationError(message, "", hint)

    def _excluded_nodes(self, node: Call, path: str, container: Path) -> Any:
        separator = self._evaluate(node.arguments[1], container) if len(node.arguments) > 1 else ","
        try:
            content = self.context.document.read(path)
        except NamedFileError as error:
            self.context.warn(f"oc.exclude_nodes reads no file: {error}; {error.hint}")
            return None
        except OSError:
            return None
        return excluded_nodes(content, str(separator))

    def _parsed(self, text: str) -> Node:
        try:
            return parse(text)
        except TemplateError as error:
            raise ConfigurationError(str(error), text, "close every ${ and every quote") from error

    def _checked(self, value: Any, text: str) -> Any:
        if isinstance(value, str) and len(value) > MAX_TEXT:
            raise ConfigurationError(f"the text has more than {MAX_TEXT:,} characters", text)
        if isinstance(value, list | dict):
            return self._sized(value)
        return value

    def _sized(self, value: Any) -> Any:
        """Return a container after counting its values; shared parts count once for each reference."""
        items = value.values() if isinstance(value, dict) else value
        size = 1 + sum(self._size(item) for item in items)
        if size > MAX_NODES:
            raise ConfigurationError(f"a value holds more than {MAX_NODES:,} others")
        self._sizes[id(value)] = size
        return value

    def _size(self, value: Any) -> int:
        if isinstance(value, str):
            return 1 + len(value) // 64
        if not isinstance(value, list | dict):
            return 1
        known = self._sizes.get(id(value))
        if known is None:
            self._sized(value)
            known = self._sizes[id(value)]
        return known


class _Chain:
    """Marks a place during its resolution; a place that is reached again in this time is a cycle."""

    def __init__(self, configuration: Configuration, path: Path, text: str) -> None:
        self.configuration, self.text = configuration, text
        self.link = (id(configuration), configuration.label, path)
        self.chain = configuration.context.chain

    def __enter__(self) -> None:
        if self.link in self.chain:
            names = [*self.chain[self.chain.index(self.link) :], self.link]
            raise ConfigurationError(f"reference cycle: {' → '.join(map(_link_name, names))}", self.text)
        if len(self.chain) >= MAX_CHAIN:
            raise ConfigurationError(f"more than {MAX_CHAIN} references follow each other", self.text)
        self.chain.append(self.link)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.chain.pop()
        if isinstance(error, ConfigurationError) and not error.text:
            error.text = self.text


def _link_name(link: tuple[int, str, Path]) -> str:
    _, label, path = link
    return f"{label}:{'.'.join(path)}" if label else ".".join(path)


def _inside(value: Any, here: Path, rest: Path, text: str) -> Any:
    for depth, key in enumerate(rest):
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and (index := list_index(key, len(value))) is not None:
            value = value[index]
        else:
            name = ".".join((*here, *rest[:depth]))
            raise MissingNameError(f"{name} has no {key!r}", text)
    return value


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "…"


def with_parameters(root: dict[str, Any], parameters: collections.abc.Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with dotted keys set, as by Hydra's ``++key=value``; ``root`` is not changed.

    A mapping is merged into what is there, an empty one changes nothing; everything else replaces it.
    """
    result = dict(root)
    own: dict[int, Any] = {id(result): result}
    for key, value in parameters.items():
        _set(result, tuple(key.replace("/", ".").split(".")), value, own)
    return result


def _set(node: Any, path: Path, value: Any, own: dict[int, Any]) -> None:
    """Set one value; mappings and lists on its path are copied once; ``own`` holds the copies."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _set(node, (*path, key), inner, own)
        return
    for key in path[:-1]:
        child = _child(node, key)
        if id(child) not in own:
            child = dict(child) if isinstance(child, dict) else list(child) if isinstance(child, list) else {}
            own[id(child)] = child
            _put(node, key, child)
        node = child
    _put(node, path[-1], value)


def _child(node: Any, key: str) -> Any:
    if isinstance(node, list):
        index = list_index(key, len(node))
        return None if index is None else node[index]
    return node.get(key)


def _put(node: Any, key: str, value: Any) -> None:
    if not isinstance(node, list):
        node[key] = value
    elif (index := list_index(key, len(node))) is not None:
        node[index] = value
    else:
        raise ConfigurationError(f"a list of {len(node)} has no {key!r}")
