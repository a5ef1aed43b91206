"""The description of the environment that lm-evaluation-harness writes into each result."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from typing import Any


def collect_in_process() -> None:
    """Let torch describe the environment once per process, without a start of pip.

    The harness asks torch for the description after each group of tasks; torch runs ``pip list`` for it, which takes
    longer than many evaluations of small models. The text stays the same.
    """
    from torch.utils import collect_env

    def pip_packages(run_lambda: Any, patterns: Any = None) -> tuple[str, str]:
        wanted = patterns or (
            collect_env.PIP_PATTERNS
            + collect_env.COMMON_PATTERNS
            + collect_env.NVIDIA_PATTERNS
            + collect_env.ONEAPI_PATTERNS
        )
        return "pip3", "\n".join(line for line in installed() if any(name in line for name in wanted))

    collect_env.get_pip_packages = pip_packages
    collect_env.get_pretty_env_info = functools.cache(collect_env.get_pretty_env_info)


def installed() -> list[str]:
    """Return ``NAME==VERSION`` of each installed distribution, in the order of ``pip list --format=freeze``."""
    versions = {
        distribution.metadata["Name"]: distribution.version
        for distribution in importlib.metadata.distributions()
    }
    return [f"{name}=={versions[name]}" for name in sorted(versions, key=_normalized)]


def _normalized(name: str) -> str:
    """Return a distribution's name as pip sorts it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
