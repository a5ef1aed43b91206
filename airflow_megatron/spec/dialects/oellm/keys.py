"""Keys of oellm-autoexp configurations: those that have an effect, and why others have none.

Nothing is replaced in silence: a key that has no meaning here is named in a warning with the reason, a misspelt one is
an error with the name that was meant. The known keys are the fields of upstream's dataclasses (``config/schema.py``,
``monitor/submission.py``, ``slurm_gen/schema.py``, ``backends/``, c6d0cc0).
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.dialects.oellm.errors import JobError
from airflow_megatron.spec.dialects.oellm.slurm import MANAGED
from airflow_megatron.spec.documents.errors import did_you_mean, near_names
from airflow_megatron.spec.foreign.sidecar import SidecarSection

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from airflow_megatron.spec.foreign.interpolation.configuration import Configuration
    from airflow_megatron.spec.model.schema import StageKindName

REASONS: Final = {
    "directories": (
        "directories and logs are this package's, below <run_root>/<sweep>/<point>; "
        "a run of oellm-autoexp is continued where backend.megatron.load names its checkpoints"
    ),
    "names": "jobs are named <sweep>.<point>.<stage>",
    "launcher": "the cluster profile says how processes start: launcher, modules, setup, trainers",
    "arrays": "every task of such an array would run this same command; slurm.array: true submits the points as one",
    "submission": "this package submits and names the jobs itself",
    "checks": "lint checks the arguments; data files are not looked at",
    "unread": "nothing here reads it",
    "sidecar": "nothing here reads it; it belongs into the sidecar, <file>.airflow.yml",
    "values": "keys with values are no argument",
    "kind": "only a stage of the kind {kind} reads it, and the sweep has none; a training's arguments are those of "
    "backend.megatron",
    "sites": "the job script sets it",
}
_HONOURED: Final = ""
_JOB: Final = {
    **dict.fromkeys(
        (
            *("name", "log_events", "state_events", "chain_repeat", "inactivity_threshold_seconds"),
            *("start_condition", "cancel_condition", "finish_condition"),
            *("start_conditions", "cancel_conditions", "finish_conditions"),
        ),
        _HONOURED,
    ),
    **dict.fromkeys(
        ("base_output_dir", "log_path", "log_path_current", "config_path", "config_path_current"),
        "directories",
    ),
    "array_len": "arrays",
    "metadata": _HONOURED,
    **dict.fromkeys(("base_config", "slurm"), "unread"),
}
_SLURM: Final = {
    **dict.fromkeys(("sbatch", "env", "sbatch_extra_directives", "class_name", "array"), _HONOURED),
    **dict.fromkeys(("script_dir", "log_dir", "script_path", "log_path"), "directories"),
    **dict.fromkeys(
        ("template_path", "launcher_cmd", "srun_opts", "srun", "launcher_env_passthrough", "command"),
        "launcher",
    ),
    "name": "names",
    "test_only": "submission",
}
_OF_KINDS: Final[Mapping[StageKindName, tuple[str, ...]]] = {
    "convert": ("tokenizer", "hf_model", "megatron_path", "iteration"),
    "evaluate": (
        *(
            "models",
            "iteration",
            "tasks",
            "task_groups",
            "tasks_dir",
            "lm_eval_include_path",
            "limit",
            "n_shot",
        ),
    ),
    "command": ("command", "base_command", "extra_cli_args"),
}
"""Kind of a stage → the keys of ``backend`` that only such stages read."""
_BACKEND: Final = {
    **dict.fromkeys(("class_name", "env", "megatron", "aux", "hf_architecture"), _HONOURED),
    **dict.fromkeys(
        ("launcher_script", "torchrun_args", "dist_cmd", "python_cmd", "full_cmd", "oellm_cmd", "venv_path"),
        "launcher",
    ),
    **dict.fromkeys(
        ("full_schema_validation", "data_integrity_check", "data_integrity_check_force_hash", "skip_checks"),
        "checks",
    ),
    **dict.fromkeys(
        ("hf_path", "bridge_root", "resources", "megatron_config_path", "keep_staging"), "directories"
    ),
    **dict.fromkeys(
        (
            *("dummy", "verbose", "local", "slurm_template_var", "max_array_len", "download_only", "dry_run"),
            *("eval_csv_path", "trust_remote_code", "derive_hf_arch"),
        ),
        "unread",
    ),
    **dict.fromkeys(itertools.chain(*_OF_KINDS.values()), _HONOURED),
}
_PROJECT: Final = {
    "name": _HONOURED,
    **dict.fromkeys(("base_output_dir", "log_path", "log_path_current"), "directories"),
    "monitoring_state_dir": "unread",
}
"""The README's names of what stands in ``job``."""
_TOP: Final = {
    **dict.fromkeys(
        (
            *("job", "slurm", "backend", "sweep", "stage", "index", "aux", "project", "sibling"),
            *("container", "postprocess"),
        ),
        _HONOURED,
    ),
    **dict.fromkeys(("metadata", "monitoring_state_dir", "monitor_state_dir", "hydra", "defaults"), "unread"),
}
_MEGATRON: Final = {"save": "directories", "tensorboard_dir": "directories"}
_LONGEST: Final = 1_000
"""Maximum number of characters of a reference whose beginnings are stored; their size grows with its square."""
_STRICT: Final = frozenset({"job", "slurm"})
"""Sections that upstream refuses unknown keys of."""
_WORD: Final = re.compile(r"\.*[A-Za-z_]\w*(?:\.\w+)*")
_OF_SIBLING: Final = re.compile(r"sibling\.\w+\.")
_REFERENCE: Final = re.compile(r"\$\{(?P<name>[^:{}$]*)(?::(?P<argument>[^,{}$]*))?")
_TAKES_KEY: Final = frozenset({"oc.dict.keys", "oc.dict.values", "oc.select"})
_AFTER_NESTED: Final = re.compile(r"\}(?P<rest>\.\w+(?:\.\w+)*)[,}]")
"""The end of a key whose beginning is a reference."""
_COMMAND_LINE: Final = frozenset({"backend.megatron", "backend"})
"""What upstream makes the whole command of; that reads no variable of one's own in it."""
_REPEATED: Final = ("job.slurm", "${slurm}")
"""A key that upstream requires of every job; it repeats a section, and reads none of its keys."""
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {}, False)


def passed_over(configuration: Configuration, swept: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a point that have no effect, as dotted keys, each with a warning.

    :param swept: dotted keys that the sweep gives the point
    :raises JobError: for a misspelt key
    """
    references = References(configuration.root)
    by_reason: dict[str, list[str]] = {}
    for path, known in (
        ("", _TOP),
        ("job", _JOB),
        ("project", _PROJECT),
        ("slurm", _SLURM),
        ("backend", _BACKEND),
    ):
        section = configuration.raw(path)
        if section is None:
            continue
        if not isinstance(section, dict):
            raise JobError(f"{path} is {section!r}, not keys with values", path, f"write {path}: {{…}}")
        for name, value in section.items():
            key = f"{path}.{name}" if path else name
            if (key, value) == _REPEATED:
                continue
            if name in known:
                if known[name] and value not in _EMPTY:
                    by_reason.setdefault(known[name], []).append(key)
            elif references.mention(key):
                continue
            elif not path and name in SidecarSection.model_fields:
                by_reason.setdefault("sidecar", []).append(key)
            else:
                near = _near(key, name, value, known, strict=path in _STRICT)
                if (
                    not near
                    and not path
                    and (of_sidecar := did_you_mean(name, SidecarSection.model_fields, limit=1, alike=0.75))
                ):
                    near = f"{of_sidecar.removesuffix('?')}, in the sidecar, <file>.airflow.yml?"
                if near:
                    yield key, f"{key}: {REASONS['unread']}; {near}"
                else:
                    by_reason.setdefault("unread", []).append(key)
    for path, known in (("slurm.sbatch", MANAGED), ("backend.megatron", _MEGATRON)):
        section = configuration.raw(path)
        if isinstance(section, dict):
            for name, value in section.items():
                key = f"{path}.{name}"
                if known.get(name) and value not in _EMPTY:
                    by_reason.setdefault(known[name], []).append(key)
                elif isinstance(value, dict) and value and name != "aux" and not references.mention(key):
                    by_reason.setdefault("values", []).append(key)
    for reason, keys in by_reason.items():
        yield keys[0], f"{', '.join(keys)}: {REASONS[reason]}"
    yield from _unread(configuration, swept, references)


def _near(key: str, name: str, value: Any, known: Mapping[str, str], *, strict: bool) -> str:
    """Return a question with the most similar known key; upstream accepts unknown keys in sections that are not strict.

    :raises JobError: where a misspelt key is certain
    """
    near = did_you_mean(name, known, limit=1, alike=0.75)
    if near and (strict or isinstance(value, dict)):
        raise JobError(f"there is no key {key!r}", key, near)
    return near


def _unread(
    configuration: Configuration, swept: Sequence[str], references: References
) -> Iterator[tuple[str, str]]:
    """Yield the swept keys that no job uses: points that differ only in such a key are equal jobs."""
    arguments = configuration.raw("backend.megatron")
    for key in swept:
        first, _, rest = key.partition(".")
        name = key.rpartition(".")[2]
        if "/" in key:  # a group of Hydra's, whose option gives the values
            continue
        own = key.startswith("backend.megatron.")
        if own and isinstance(configuration.raw(key), dict | list):
            continue
        read = (
            first in _TOP and first not in ("aux", "metadata") and not key.startswith("backend.megatron.aux.")
        )
        if read or references.mention(key):
            continue
        near = ""
        if rest and isinstance(arguments, dict) and name in arguments:
            near = f"; did you mean backend.megatron.{name}?"
        section = configuration.raw(first) if rest == name else None
        if isinstance(section, dict) and (alike := near_names(name, section.keys() - {name}, limit=1)):
            near = near or f"; did you mean {first}.{alike[0]}?"
        near = near or (f"; {found}" if (found := did_you_mean(key, configuration.root)) else "")
        yield (
            key,
            f"nothing reads the swept key {key}: points that differ in it alone are the same job twice{near}",
        )


def of_other_kinds(backend: Any, kinds: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the keys of ``backend`` that only kinds of stages read that a sweep has none of, each with a warning.

    :param backend: the section
    :param kinds: of the sweep's stages
    """
    read = {key for kind in kinds for key in _OF_KINDS.get(kind, ())}
    for kind, keys in _OF_KINDS.items():
        unread = [
            key
            for key in keys
            if key not in read and isinstance(backend, dict) and backend.get(key) not in _EMPTY
        ]
        if unread:
            named = ", ".join(f"backend.{key}" for key in unread)
            yield f"backend.{unread[0]}", f"{named}: {REASONS['kind'].format(kind=kind)}"


class References:
    """The references in the texts of a configuration.

    :param root: the configuration
    """

    def __init__(self, root: Any) -> None:
        job = root.get("job") if isinstance(root, dict) else None
        if isinstance(job, dict) and job.get("slurm") == _REPEATED[1]:
            root = {**root, "job": {key: value for key, value in job.items() if key != "slurm"}}
        words = {
            word for text in _strings(root) for part in _keys_named(text) for word in _WORD.findall(part)
        }
        self._paths = {_OF_SIBLING.sub("", word) for word in words if not word.startswith(".")}
        self._above = {
            path[:end]
            for path in self._paths
            if len(path) <= _LONGEST
            for end in range(1, len(path))
            if path[end] == "."
        }
        tails = [word.lstrip(".").split(".") for word in words if word.startswith(".")]
        self._ends = {name for tail in tails for name in (tail[0], tail[-1])}

    def mention(self, key: str) -> bool:
        """Return whether a reference names a dotted key or a parent of it."""
        parts = key.split(".")
        around = {".".join(parts[:length]) for length in range(1, len(parts) + 1)} - _COMMAND_LINE
        return bool(around & self._paths) or key in self._above or parts[-1] in self._ends


def _keys_named(text: str) -> Iterator[str]:
    """Yield what the ``${…}`` of a text name: keys, and the first arguments of resolvers that take a key."""
    for reference in _REFERENCE.finditer(text):
        if reference["argument"] is None:
            yield reference["name"]
        elif reference["name"].strip() in _TAKES_KEY:
            yield reference["argument"]
    for nested in _AFTER_NESTED.finditer(text):
        yield nested["rest"]


def _strings(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict | list):
        for item in node.values() if isinstance(node, dict) else node:
            yield from _strings(item)
