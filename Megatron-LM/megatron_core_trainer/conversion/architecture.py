"""Architectures: the Megatron models that a Hugging Face class can express, its configuration and names of weights.

An architecture is a YAML file; ``architectures/`` contains the shipped ones. Its keys:

``extends``
    The architecture that this one is based on: a name, or a file in the same folder. ``null`` removes an entry of it.
``requires``
    Megatron setting → the value, or the list of values, that the class can express. A setting of
    :data:`~megatron_core_trainer.conversion.model_settings.PLAIN` that is not listed must have its plain value.
``reasons``
    Megatron setting → why no other value can be expressed, if that is not obvious.
``config``
    The content of ``config.json``; an entry with the value ``null`` is left out.
``weights``
    Name of a Hugging Face weight → ``OPERATION … NAME`` of the Megatron weight; the operation next to the name is
    applied first. ``{layer}`` and ``{expert}`` stand for each number, a ``*`` at the end for ``weight`` and ``bias``.
    Entries whose Megatron weight does not exist in the model are skipped.
``files``
    Files beside the YAML file that are copied to the model: modelling code that ``auto_map`` in ``config`` names.

A value that is one ``{{ expression }}`` (Jinja2) may use every Megatron setting, the settings that
:func:`~megatron_core_trainer.conversion.model_settings.model_settings` adds, ``vocab_size``, ``eos`` and ``dtype``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from megatron_core_trainer.conversion.errors import ConversionError, InexpressibleError
from megatron_core_trainer.conversion.model_settings import PLAIN
from megatron_core_trainer.conversion.weight_operations import OPERATIONS, WeightShape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch
    from jinja2.environment import TemplateExpression

    Weights = dict[str, torch.Tensor]

_SHIPPED = Path(__file__).parent / "architectures"
_SECTIONS = ("requires", "reasons", "config", "weights")
_KEYS = {"extends": str, **dict.fromkeys(_SECTIONS, dict), "files": list}
_EXPRESSION = re.compile(r"\s*\{\{(.*)\}\}\s*\Z", re.DOTALL)
_MOST_NAMES = 5


@dataclass(frozen=True)
class Architecture:
    """A Hugging Face model class and the rules that convert a Megatron model to it.

    :param path: the file that describes it.
    :param requires: Megatron setting → the values that it can express.
    :param reasons: Megatron setting → why it cannot express others.
    :param config: content of ``config.json``, with expressions.
    :param weights: Hugging Face name → operations and Megatron name, with placeholders.
    :param files: files of modelling code, beside ``path``.
    """

    path: Path
    requires: Mapping[str, Any]
    reasons: Mapping[str, str]
    config: Mapping[str, Any]
    weights: Mapping[str, str]
    files: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name without suffix: ``llama``."""
        return self.path.stem

    @property
    def model_class(self) -> str:
        """The class in transformers, or in the modelling code."""
        return str(self.config["architectures"][0])

    def obstacles(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings of a model that the class cannot express, with a message for each.

        :param settings: completed settings of the model.
        """
        found = {}
        for name, values in {**PLAIN, **self.requires}.items():
            wanted = self._evaluated(values, settings, f"requires.{name}")
            allowed = wanted if isinstance(wanted, list) else [wanted]
            value = settings.get(name)
            if value not in allowed:
                reason = f": {self.reasons[name]}" if name in self.reasons else ""
                found[name] = f"{name} is {value}, not {' or '.join(map(str, allowed))}{reason}"
        return found

    def hugging_face_config(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of ``config.json``.

        :param settings: of the model, completed, with ``vocab_size``, ``eos`` and ``dtype``.
        :raises ConversionError: if an expression fails.
        """
        content = {
            key: self._evaluated(value, settings, f"config.{key}") for key, value in self.config.items()
        }
        return {key: value for key, value in content.items() if value is not None}

    def hugging_face_weights(
        self, weights: Mapping[str, torch.Tensor], settings: Mapping[str, Any]
    ) -> Weights:
        """Rename and split the weights of a whole (not tensor- or pipeline-parallel) local-spec GPT model.

        :param weights: its state dict.
        :param settings: completed settings of the model, with ``vocab_size``.
        :raises ConversionError: if a weight would be lost.
        """
        shape = WeightShape(settings["num_query_groups"], settings["kv_channels"], settings["vocab_size"])
        result: Weights = {}
        used: set[str] = set()
        for target, operations, source in self._entries(settings):
            tensor = weights.get(source)
            if tensor is None:
                continue
            used.add(source)
            for operation in reversed(operations):
                tensor = OPERATIONS[operation](tensor, shape)
            result[target] = tensor.contiguous().clone()
        lost = sorted(name for name in weights if name not in used and not name.endswith("_extra_state"))
        if lost:
            more = f" and {len(lost) - _MOST_NAMES} more" if len(lost) > _MOST_NAMES else ""
            raise ConversionError(
                f"{self.path} says nothing of {', '.join(lost[:_MOST_NAMES])}{more}; add them under weights"
            )
        return result

    def _entries(self, settings: Mapping[str, Any]) -> Iterator[tuple[str, list[str], str]]:
        """Yield the Hugging Face name, operations and Megatron name of every possible weight."""
        for target, text in self.weights.items():
            *operations, source = text.split()
            for layer in range(settings["num_layers"]) if "{layer}" in source else (0,):
                for expert in range(settings["num_experts"] or 0) if "{expert}" in source else (0,):
                    for kind in ("weight", "bias") if source.endswith("*") else ("*",):
                        names = [
                            name.replace("{layer}", str(layer))
                            .replace("{expert}", str(expert))
                            .replace("*", kind)
                            for name in (target, source)
                        ]
                        yield names[0], operations, names[1]

    def _evaluated(self, value: Any, names: Mapping[str, Any], place: str) -> Any:
        if isinstance(value, dict):
            return {key: self._evaluated(item, names, f"{place}.{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [self._evaluated(item, names, place) for item in value]
        expression = _EXPRESSION.match(value) if isinstance(value, str) else None
        if expression is None:
            return value
        try:
            result = _compiled(expression[1])(**names)
            return str(result) if isinstance(result, StrictUndefined) else result  # which is an error there
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise ConversionError(f"{self.path}: {place}: {value}: {error}") from error


@functools.cache
def _environment() -> SandboxedEnvironment:
    return SandboxedEnvironment(undefined=StrictUndefined)


@functools.cache
def _compiled(expression: str) -> TemplateExpression:
    return _environment().compile_expression(expression, undefined_to_none=False)


def shipped_architectures() -> list[str]:
    """Return the names of the shipped architectures, in the order in which they are tried."""
    order = [
        "llama",
        "qwen2",
        "qwen3",
        "gpt2",
        "mixtral",
        "qwen2_moe",
        "qwen2_moe_ungated",
        "qwen3_moe",
        "opensci",
    ]
    return sorted((path.stem for path in _SHIPPED.glob("*.yaml")), key=order.index)


@functools.cache
def load_architecture(named: str) -> Architecture:
    """Load an architecture.

    :param named: name of a shipped architecture, or the path of a YAML file.
    :raises ConversionError: if the name is unknown, or the file is invalid.
    """
    content = _content(named, Path())
    path = content["path"]
    if not content["config"].get("architectures"):
        raise ConversionError(
            f"{path}: config.architectures must name the model's class, such as [LlamaForCausalLM]"
        )
    _check_operations(path, content["weights"])
    missing = [name for name in content["files"] if not (path.parent / name).is_file()]
    if missing:
        raise ConversionError(f"{path}: files: there is no {path.parent / missing[0]}")
    return Architecture(path, *(content[section] for section in _SECTIONS), tuple(content["files"]))


def _content(named: str, beside: Path) -> dict[str, Any]:
    """Read a file and the architecture that it extends; ``path`` is the path of the file."""
    path = beside / named
    if path.suffix not in (".yaml", ".yml"):
        path = _SHIPPED / f"{named}.yaml"
        if not path.is_file():
            known = ", ".join(shipped_architectures())
            raise ConversionError(f"there is no architecture {named}; known: {known}, or give a YAML file")
    try:
        own = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConversionError(f"the architecture {path} cannot be read: {error}") from error
    if not isinstance(own, dict):
        raise ConversionError(f"{path} must hold the keys {', '.join(_KEYS)}")
    for key, value in own.items():
        if key not in _KEYS:
            raise ConversionError(f"{path}: unknown key {key}; known: {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            kind = {str: "text", dict: "a mapping", list: "a list"}[_KEYS[key]]
            raise ConversionError(f"{path}: {key} must be {kind}")
    base = _content(own["extends"], path.parent) if "extends" in own else {}
    merged: dict[str, Any] = {"path": path, "files": [str(name) for name in own.get("files", [])]}
    for section in _SECTIONS:
        entries = {**base.get(section, {}), **own.get(section, {})}
        merged[section] = {name: value for name, value in entries.items() if value is not None}
    return merged


def _check_operations(path: Path, weights: Mapping[str, Any]) -> None:
    for target, text in weights.items():
        words = str(text).split()
        unknown = [word for word in words[:-1] if word not in OPERATIONS]
        if unknown:
            known = ", ".join(OPERATIONS)
            raise ConversionError(
                f"{path}: weights.{target}: {unknown[0]} is not an operation; known: {known}"
            )


def choose_architecture(settings: Mapping[str, Any], named: str | None) -> Architecture:
    """Return the architecture that a model is converted to: the requested one, or the first that can express it.

    :param settings: completed settings of the model.
    :param named: as for :func:`load_architecture`, or None.
    :raises InexpressibleError: with every setting that prevents the conversion.
    """
    candidates = [load_architecture(name) for name in ([named] if named else shipped_architectures())]
    obstacles = [(candidate, candidate.obstacles(settings)) for candidate in candidates]
    for candidate, found in obstacles:
        if not found:
            return candidate
    # among equally close ones take the last: the order is from general to special
    nearest, found = min(reversed(obstacles), key=lambda pair: len(pair[1]))
    problem = f"{nearest.model_class} cannot express this model: {'; '.join(found.values())}"
    if named:
        raise InexpressibleError(problem, list(found))
    others = ", ".join(candidate.name for candidate in candidates if candidate is not nearest)
    hint = "Give an --architecture file of your own, or another --converter"
    raise InexpressibleError(f"{problem} (nor can {others})", list(found), hint)
