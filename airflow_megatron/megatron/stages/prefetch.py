"""Stages that download the inputs of the sweep's jobs, on a machine with internet access."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.stages.checkpoint_stage import scripts_of
from airflow_megatron.spec.layout.run_layout import SweepLayout
from airflow_megatron.spec.model.stage_kinds import PREFETCHED, StageKind, StageProblem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

PROGRAM: Final = "prefetch.py"
_HOME: Final = "HF_HOME"
_OFFLINE: Final = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_TOKENIZER_FILES: Final = (
    *("tokenizer*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "special_tokens_map.json"),
    *("added_tokens.json", "chat_template*", "config.json", "*.py"),
)
#: Param → name of its items; their keys after the first one, which may be given as plain text.
_KINDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "models": ("model", ("revision", "files")),
    "tokenizers": ("tokenizer", ("revision",)),
    "datasets": ("dataset", ("config", "revision")),
    "tasks": ("task", ()),
    "urls": ("url", ("file", "sha256")),
}
_REPOSITORY: Final = re.compile(
    r"(?!.*(--|\.\.)|.*\.git\Z)(\w([\w.-]*\w)?/)?(?=.{1,96}\Z)\w([\w.-]*\w)?", re.ASCII
)
"""Names that ``huggingface_hub.utils.validate_repo_id`` takes."""
_TASK: Final = re.compile(r"(?P<name>[^\s,@]+)(?:@\d+)?")
"""A task as an evaluation names it: its data does not depend on the number of examples."""
_TEXT: Final = re.compile(r"[^\x00-\x1f\x7f]{1,500}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class Prefetch(StageKind):
    """Models, tokenizers, data sets, evaluation tasks and files, for nodes without internet."""

    fetches = True
    params = (*_KINDS, "where")

    def command(self, job: Job, cluster: ClusterProfile) -> tuple[str, ...]:
        """Return the command that fetches all items."""
        program = f"{scripts_of(cluster)}/{PROGRAM}"
        items = [json.dumps(item, ensure_ascii=False) for item in prefetched_items(job)]
        return (cluster.python, program, "--home", prefetched_home(job, cluster), *items)

    def environment_of_later(self, job: Job, cluster: ClusterProfile) -> Mapping[str, str]:
        """Return the variables for the directory of the items, for offline use, and for the required items."""
        home = prefetched_home(job, cluster)
        lines = [home, job.sweep, *(f"{item['key']} {item['name']}" for item in prefetched_items(job))]
        return {_HOME: home, **dict.fromkeys(_OFFLINE, "1"), PREFETCHED: "\n".join(lines)}

    def runs_first_on_login_node(self, job: Job) -> bool:
        """Return whether the spec places the stage on the login node; its job then finds all items."""
        return job.params.get("where") == "login"

    def problems(self, job: Job) -> Iterator[StageProblem]:
        """Yield a stage that fetches the same once for each point."""
        if job.point:
            message = "it would fetch the same items at every point"
            yield StageProblem("scope", ("scope",), message, "add scope: sweep")
        if job.params.get("where") not in (None, "login", "job"):
            yield StageProblem("where", ("where",), f"where is {job.params['where']!r}", "write login or job")
        if job.delivered and self.runs_first_on_login_node(job):
            message = "a login node gets no secrets from Airflow"
            yield StageProblem(
                "secrets", ("secrets",), message, "give a private file: {file: ~/.secrets/token}"
            )


def prefetched_home(job: Job, cluster: ClusterProfile) -> str:
    """Return the cache of a sweep: the ``HF_HOME`` of the stage or the profile, else a folder of the sweep."""
    given = job.env.get(_HOME) or cluster.env.get(_HOME)
    return str(given).rstrip("/") if given else SweepLayout.of(cluster.run_root, job.sweep).prefetched_dir


def prefetched_items(job: Job) -> list[dict[str, Any]]:
    """Return the items of a job as arguments of ``prefetch.py``.

    :raises CommandError: for an invalid param, or without any item
    """
    items = [
        _with_key(_item(job, param, given))
        for param in _KINDS
        for given in _listed(job, param, job.params.get(param))
    ]
    if not items:
        kinds = ", ".join(_KINDS)
        message = f"stage {job.stage} fetches nothing; add params: {{models: [gpt2]}}, or {kinds}"
        raise CommandError("params", message)
    found = list({item["key"]: item for item in items}.values())
    _check_files([item for item in found if "url" in item], job.stage)
    return found


def _check_files(addresses: list[dict[str, Any]], stage: str) -> None:
    """Refuse two addresses whose files have the same name: one would replace the other."""
    first: dict[str, str] = {}
    for item in addresses:
        other = first.setdefault(item["file"], item["url"])
        if other != item["url"]:
            raise CommandError(
                "urls",
                f"stage {stage}: {other} and {item['url']} would both be stored as {item['file']}; add file: NAME to"
                " one of them",
            )


def _with_key(item: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(item, sort_keys=True)
    return {"key": hashlib.sha256(text.encode()).hexdigest()[:16], **item}


def _listed(job: Job, param: str, given: Any) -> list[Any]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise CommandError(
            param, f"stage {job.stage}: {param} is {given!r}; write a list: {param}: [{given}]"
        )
    return given


def _item(job: Job, param: str, given: Any) -> dict[str, Any]:
    """Return one item: its kind and name, the selection of a part, and ``name`` for messages."""
    kind, others = _KINDS[param]
    first = "url" if kind == "url" else "name"
    values = {first: given} if isinstance(given, str) else given
    allowed = (first, *others)
    if not isinstance(values, dict) or first not in values or not {*values} <= {*allowed}:
        example = f"{{{', '.join(f'{name}: …' for name in allowed)}}}"
        raise CommandError(
            param, f"stage {job.stage}: {given!r} is no item of {param}; write a name or {example}"
        )
    for key, value in values.items():
        texts = value if key == "files" and isinstance(value, list) else [value]
        if not all(isinstance(text, str) and _TEXT.fullmatch(text) for text in texts):
            raise CommandError(param, f"stage {job.stage}: {key} is {value!r}; write text in one line")
    name = values[first]
    if kind == "url":
        return _address(job, param, values)
    if kind != "task" and not _REPOSITORY.fullmatch(name):
        raise CommandError(
            param,
            f"stage {job.stage}: {name!r} is no repository of the hub; write OWNER/NAME, and files as urls",
        )
    if kind == "task":
        task = _TASK.fullmatch(name)
        if task is None:
            raise CommandError(param, f"stage {job.stage}: {name!r} is no task; write one name for each item")
        name = task["name"]
    chosen = {key: values[key] for key in others if values.get(key) is not None}
    shown = " ".join([kind, name, *(str(value) for key, value in chosen.items() if key != "files")])
    if kind == "tokenizer":
        chosen["files"] = list(_TOKENIZER_FILES)
    return {"name": shown, kind: name, **chosen}


def _address(job: Job, param: str, values: Mapping[str, str]) -> dict[str, Any]:
    address = values["url"]
    if not address.startswith(("https://", "http://")):
        raise CommandError(param, f"stage {job.stage}: {address!r} is no address; write https://…")
    file = values.get("file") or posixpath.basename(address.partition("?")[0].partition("#")[0])
    if not file or file.startswith("/") or {"", ".", ".."} & {*file.split("/")}:
        raise CommandError(param, f"stage {job.stage}: {file!r} is no name of a file; add file: NAME")
    digest = values.get("sha256")
    if digest is not None and not _SHA256.fullmatch(digest):
        raise CommandError(
            param, f"stage {job.stage}: sha256 of {file} is {digest!r}; write 64 hexadecimal digits"
        )
    return {"name": f"file {file}", "url": address, "file": file, **({"sha256": digest} if digest else {})}
