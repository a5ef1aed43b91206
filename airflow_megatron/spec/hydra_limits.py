"""Limits on what Hydra reads while it composes a configuration: what a spec may read, and nothing else.

Hydra itself reads any file that a defaults list names, imports packages that ``hydra.searchpath`` names, and fills
every environment variable into a defaults list.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError
from omegaconf import OmegaConf
from omegaconf.resolvers import oc

from airflow_megatron.spec.documents.named_files import MAX_SPEC_BYTES, NamedFileError, read_named_file
from airflow_megatron.spec.trust.permitted_variables import permitted_variables, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from hydra.plugins.config_source import ConfigResult, ConfigSource

_SEARCH_PATH: Final = "hydra.searchpath"
_ENVIRONMENT: Final = "oc.env"
_METHOD: Final = "load_config"
_NO_DEFAULT: Final = object()


class RefusedReadError(ConfigLoadError):
    """A configuration names something that it may not read."""

    @classmethod
    def behind(cls, error: BaseException) -> BaseException:
        """Return the refusal that caused an error of Hydra; the error itself without one."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, cls):
                return cause
            cause = cause.__cause__ or cause.__context__
        return error


@contextlib.contextmanager
def limited_reads(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Let Hydra read files of *directory* and permitted environment variables only.

    :param directory: the folder of the configuration
    :param environment: the variables; default: those of this process
    :raises RefusedReadError: inside, for anything else
    """
    variables = permitted_variables() if environment is None else environment
    Plugins.instance()  # registers the class below, which is not the one that an import finds
    files = SourcesRegistry.instance().resolve("file")
    load: Callable[[ConfigSource, str], ConfigResult] = getattr(files, _METHOD)

    def load_below(source: ConfigSource, config_path: str) -> ConfigResult:
        named = os.path.join(source.path, source._normalize_file_name(config_path))  # noqa: PTH118
        try:
            read_named_file(named, str(directory / "config.yaml"), limit=MAX_SPEC_BYTES)
        except NamedFileError as error:
            raise RefusedReadError(f"{config_path}: {error}; {error.hint}".rstrip("; ")) from None
        except OSError:  # Hydra reports it
            return load(source, config_path)
        result = load(source, config_path)
        if OmegaConf.is_dict(result.config) and OmegaConf.select(result.config, _SEARCH_PATH) is not None:
            raise RefusedReadError(
                f"{config_path}: {_SEARCH_PATH} may name any folder and package; copy its files into {directory}"
            )
        return result

    def variable(name: str, default: Any = _NO_DEFAULT) -> str | None:
        if name in variables:
            return variables[name]
        if default is not _NO_DEFAULT:
            return None if default is None else str(default)
        raise RefusedReadError("; ".join(refusal(variables, name)))

    OmegaConf.register_new_resolver(_ENVIRONMENT, variable, replace=True)
    setattr(files, _METHOD, load_below)
    try:
        yield
    finally:
        setattr(files, _METHOD, load)
        OmegaConf.register_new_resolver(_ENVIRONMENT, oc.env, replace=True)
