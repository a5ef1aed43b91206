"""A Hydra configuration of oellm-autoexp, composed and written as a native sweep spec."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.dialects.oellm.dialect import Choices, OellmSweep
from airflow_megatron.spec.dialects.oellm.jobs import OPENEUROLLM
from airflow_megatron.spec.dialects.oellm.native import native_spec
from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.documents.named_files import NamedFileError, read_spec_file
from airflow_megatron.spec.documents.yaml_document import YamlDocument, load_yaml_file, plain_scalar
from airflow_megatron.spec.foreign.foreign_sweep import RELEASE, TRAINER
from airflow_megatron.spec.foreign.megatron_metadata import PLACE, fork_arguments
from airflow_megatron.spec.model.trainers import TRAINERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.spec.foreign.megatron_metadata import ForkArguments

_DEFAULTS_OF_ARGUMENTS = "backend/megatron/base_defaults.yaml"


class MissingHydraError(AirflowMegatronError, ImportError):
    """Hydra is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "composing a Hydra configuration needs hydra-core; install it: pip install 'airflow-megatron[hydra]'"
        )


def import_oellm(
    config_dir: Path | str,
    config_name: str,
    overrides: Sequence[str] = (),
    *,
    name: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Compose a configuration of oellm-autoexp and return it as the text of a native sweep spec.

    :param config_dir: its ``config/`` folder
    :param config_name: path of the experiment in it, without ``.yaml``
    :param overrides: Hydra overrides, ``backend.megatron.lr=1e-4``
    :param name: name of the sweep; default: the last part of ``config_name``
    :param environment: the variables of ``oc.env``; default: those of this process
    :raises MissingHydraError: if hydra-core is not installed
    :raises SpecError: if the configuration does not compose, or cannot be expressed natively
    """
    directory = Path(config_dir).resolve()
    file = directory / f"{config_name}.yaml"
    compose = _composer(directory, config_name, overrides, environment)
    root = compose(())
    document = YamlDocument(str(file), root, load_yaml_file(file).positions if file.is_file() else {})
    sweep = OellmSweep(
        document,
        root,
        name=name or Path(config_name).name.replace(".", "_"),
        compose=compose,
        environment=environment,
        timestring=datetime.datetime.now(datetime.UTC).strftime("%Y%m%d_%H%M%S"),
        fork=_fork(directory),
    )
    spec = native_spec(sweep, _argument_defaults(directory))
    notes = [f"# Imported from {config_name} of an oellm-autoexp configuration."]
    notes += [f"# {override}" for override in overrides]
    notes += [f"# Note: {line}" for problem in sweep.warnings() for line in problem.message.splitlines()]
    return "\n".join(dict.fromkeys(notes)) + "\n" + spec_text(spec)


def _composer(
    directory: Path, config_name: str, overrides: Sequence[str], environment: Mapping[str, str] | None
) -> Callable[[Choices], dict[str, Any]]:
    try:
        from hydra import compose, initialize_config_dir
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        from airflow_megatron.spec.hydra_limits import RefusedReadError, limited_reads
    except ImportError as error:
        raise MissingHydraError from error
    if not directory.is_dir():
        raise SpecError(Problem(str(directory), 0, 0, "there is no such folder", "name the config/ folder"))

    def composed(choices: Choices) -> dict[str, Any]:
        words = [f"{key}={_choice_text(value)}" for key, value in choices]
        try:
            with (
                limited_reads(directory, environment),
                initialize_config_dir(version_base="1.3", config_dir=str(directory)),
            ):
                config = compose(config_name=config_name, overrides=[*overrides, *words])
            data = OmegaConf.to_container(config, resolve=False)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            raise SpecError(
                Problem(
                    str(directory / f"{config_name}.yaml"),
                    0,
                    0,
                    f"Hydra cannot compose it: {' '.join(str(RefusedReadError.behind(error)).split())}",
                    f"overrides: {' '.join(words)}" if words else "",
                )
            ) from error
        if not isinstance(data, dict):
            raise SpecError(Problem(str(directory / config_name), 0, 0, "the configuration is not a mapping"))
        return {str(key): _plain(value) for key, value in data.items()}

    return composed


def _choice_text(value: Any) -> str:
    return f"[{','.join(value)}]" if isinstance(value, tuple) else str(value)


def _plain(node: Any) -> Any:
    """Return the data with text for every key, like our YAML parser."""
    if isinstance(node, dict):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    return node


def _fork(directory: Path) -> ForkArguments:
    """Return the arguments of the Megatron of the checkout around the ``config/`` folder."""
    file = directory.parent / PLACE
    if not file.is_file():
        return OPENEUROLLM
    try:
        text = read_spec_file(file)
    except (OSError, NamedFileError) as error:
        raise SpecError(Problem(str(file), 0, 0, f"cannot be read: {error}")) from error
    trainer = TRAINERS.objects[TRAINER]
    return fork_arguments(text, str(file), lambda argument: trainer.has_argument(argument, RELEASE))


def _argument_defaults(directory: Path) -> dict[str, Any]:
    """Return Megatron's defaults, which every such configuration contains and a spec need not."""
    file = directory / _DEFAULTS_OF_ARGUMENTS
    data = load_yaml_file(file).data if file.is_file() else {}
    return data if isinstance(data, dict) else {}


class _Row(dict[str, Any]):
    """A mapping that is written on one line."""


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        # indent the items of a list more than its key
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quote text that YAML 1.2 would not read as text."""
    style = "|" if "\n" in text else None
    if not style and (not text or not isinstance(plain_scalar(text), str) or "{{" in text):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    """Write ``1.0e-05``, which YAML 1.1 reads as a number too."""
    if not math.isfinite(value):
        return dumper.represent_float(value)
    mantissa, mark, exponent = repr(value).partition("e")
    text = f"{mantissa}{'' if '.' in mantissa else '.0'}{mark}{exponent}"
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


def _represent_row(dumper: yaml.SafeDumper, row: _Row) -> yaml.MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", row, flow_style=True)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(_Row, _represent_row)


def spec_text(spec: Mapping[str, Any]) -> str:
    """Return a native spec as YAML text: each explicit point on one line."""
    data = dict(spec)
    block = data.get("sweep")
    if isinstance(block, dict) and "configs" in block:
        data["sweep"] = {**block, "configs": [_Row(row) for row in block["configs"]]}
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=1_000_000, allow_unicode=True)
