"""Conversion by another program: a bridge library, or a user's script.

The output directory already contains ``config.json``, modelling code and tokenizer; the program adds the weights.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_core_trainer.conversion.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Name of the setting → module and distribution.
LIBRARIES = {
    "megatron_bridge": ("megatron.bridge", "megatron-bridge"),
    "mbridge": ("mbridge", "mbridge"),
    "mcore_bridge": ("mcore_bridge", "mcore-bridge"),
}
_SCRIPT_ARGUMENTS = (
    *("--load", "{load}", "--iteration", "{iteration}"),
    *("--output", "{output}", "--tokenizer", "{tokenizer}"),
)
_LIBRARY_SCRIPT = Path(__file__).with_name("library_export.py")


@dataclass(frozen=True)
class ExternalConverter:
    """A program that converts.

    :param words: its command; ``{load}``, ``{checkpoint}``, ``{iteration}``, ``{output}`` and ``{tokenizer}`` are
        replaced.
    """

    words: tuple[str, ...]

    def run(self, places: Mapping[str, object], environment: Mapping[str, str]) -> None:
        """Run the program and wait for its end.

        :param places: the values of the placeholders.
        :param environment: its environment variables.
        :raises ConversionError: if it fails, or writes no weights.
        """
        words = list(self.words)
        for name, value in places.items():
            words = [word.replace("{" + name + "}", str(value)) for word in words]
        print(f"converting with {shlex.join(words)}", flush=True)
        status = subprocess.run(words, check=False, env=dict(environment)).returncode
        if status:
            raise ConversionError(f"{words[1]} ended with exit status {status}")
        output = Path(str(places["output"]))
        if not [path for kind in ("*.safetensors", "*.bin") for path in output.glob(kind)]:
            raise ConversionError(f"{words[1]} wrote no weights (*.safetensors, *.bin) to {output}")


def needs_architecture(architecture: str | None, converter: str | None, hf_config: object) -> bool:
    """Return whether an architecture describes the result: if one is requested, or if nothing else describes it.

    :param architecture: the requested one.
    :param converter: name or script of another converter.
    :param hf_config: a directory with a ``config.json`` that the other converter starts from.
    """
    return architecture is not None or converter is None or (converter in LIBRARIES and not hf_config)


def external_converter(named: str, arguments: Sequence[str]) -> ExternalConverter:
    """Return the program of a converter.

    :param named: one of :data:`LIBRARIES`, or the path of a Python script.
    :param arguments: the script's arguments; by default ``--load``, ``--iteration``, ``--output`` and ``--tokenizer``.
    :raises ConversionError: if this machine has no such library or script.
    """
    if named in LIBRARIES:
        module, distribution = LIBRARIES[named]
        if not _is_installed(module):
            raise ConversionError(
                f"--converter {named} needs the package {distribution} in the environment of {sys.executable}; pip"
                f" install {distribution} there (it needs Transformer Engine), or leave --converter out"
            )
        if arguments:
            raise ConversionError(f"--converter {named} takes no --converter-argument; they are for scripts")
        places = ("{checkpoint}", "{output}")
        return ExternalConverter((sys.executable, str(_LIBRARY_SCRIPT), named, *places))
    if not Path(named).is_file():
        raise ConversionError(
            f"there is no converter {named}; give {', '.join(LIBRARIES)}, or a Python script's path"
        )
    return ExternalConverter((sys.executable, named, *(arguments or _SCRIPT_ARGUMENTS)))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is not installed
        return False
