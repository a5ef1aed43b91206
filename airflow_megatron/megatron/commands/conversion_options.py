"""Options of a convert stage, as the command line of ``convert_to_hf.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.spec.documents.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ARCHITECTURES: Final = (
    "gpt2",
    "llama",
    "mixtral",
    "opensci",
    "qwen2",
    "qwen2_moe",
    "qwen2_moe_ungated",
    "qwen3",
    "qwen3_moe",
)
"""Those of ``Megatron-LM/megatron_core_trainer/conversion/architectures``."""
LIBRARIES: Final = ("mbridge", "mcore_bridge", "megatron_bridge")
"""Libraries that convert weights on a GPU."""


def conversion_options(params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words for architecture and converter; empty if the converter detects them.

    :param params: params of the job: ``hf_architecture``, ``converter``, ``converter_arguments``, ``hf_config``
    :raises CommandError: if one is invalid
    """
    architecture, converter = params.get("hf_architecture"), params.get("converter")
    if architecture is not None:
        yield from (
            "--architecture",
            _known("hf_architecture", architecture, ARCHITECTURES, (".yaml", ".yml")),
        )
    if converter is not None:
        yield from ("--converter", _known("converter", converter, LIBRARIES, (".py",)))
    words = params.get("converter_arguments")
    if words is not None:
        if not isinstance(words, list):
            raise CommandError(
                "converter_arguments", f"converter_arguments is {words!r}; write a list of words"
            )
        if converter is None or converter in LIBRARIES:
            raise CommandError(
                "converter_arguments", "converter_arguments are for a converter that is a Python script"
            )
        yield from (f"--converter-argument={word}" for word in words)
    if params.get("hf_config") is not None:
        if converter is None:
            raise CommandError(
                "hf_config", "hf_config is for another converter; use hf_architecture, or set converter"
            )
        yield from ("--hf-config", str(params["hf_config"]))


def _known(name: str, value: object, known: tuple[str, ...], suffixes: tuple[str, ...]) -> str:
    text = str(value)
    if text in known or text.endswith(suffixes):
        return text
    near = did_you_mean(text, known) or f"known: {', '.join(known)}"
    raise CommandError(name, f"there is no {name} {text!r}, and it is no {suffixes[0]} file; {near}")
