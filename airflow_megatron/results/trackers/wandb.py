"""W&B, by its package ``wandb``: sent at once, or written as offline files that ``wandb sync`` sends.

Offline, the position of a run is the last step in its files; online, it is the step from which W&B resumes the run.
The note beside the files only saves reading them, or querying W&B, again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.results.trackers.wandb_files import WandbFileError, history_of
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.trackers.tracker import Tracker, TrackerError, TrackerSession
from airflow_megatron.spec.trust.json_records import whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from airflow_megatron.spec.trackers.tracker import TrackedRecord, TrackedTraining, TrackerAccess

DEFAULT_URL: Final = "https://api.wandb.ai"
_MODES: Final = ("online", "offline")
_TIMEOUT_S: Final = 60.0


class Wandb(Tracker):
    """W&B. The connection's password is the API key; ``mode`` and ``entity`` are extras."""

    job_arguments = ("wandb_project",)

    def open(self, access: TrackerAccess, project: str) -> TrackerSession:
        """Return a session for the project, which is created by its first run."""
        mode = access.options.get("mode", "online")
        if mode not in _MODES:
            raise TrackerError("wandb: the extra mode of the connection is online or offline")
        if mode == "online" and not access.password:
            raise TrackerError("wandb: the connection has no password; give W&B's API key")
        return _Session(access, project, offline=mode == "offline")


class _Session(TrackerSession):
    def __init__(self, access: TrackerAccess, project: str, *, offline: bool) -> None:
        try:
            import wandb
        except ImportError:
            raise TrackerError(
                "wandb is not installed where the tasks run: pip install 'airflow-megatron[wandb]'"
            ) from None
        self._wandb: Any = wandb
        self._project, self._offline = project, offline
        self._entity = str(access.options["entity"]) if access.options.get("entity") else None
        place = json.dumps([access.url, self._entity, project, offline])
        self._folder = local_dir() / "wandb" / hashlib.sha256(place.encode()).hexdigest()[:16]
        self._settings = wandb.Settings(
            api_key=access.password or None,
            base_url=access.url or DEFAULT_URL,
            console="off",
            disable_code=True,
            disable_git=True,
            save_code=False,
            silent=True,
            finish_timeout=_TIMEOUT_S,
            finish_timeout_raises=True,
            init_timeout=_TIMEOUT_S,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )

    def last_step(self, training: TrackedTraining) -> int | None:
        run_id = _run_id(training)
        noted = self._noted(run_id)
        if noted is not None and not self._offline:
            return noted[0]
        if self._offline:
            step, read = noted or (None, frozenset[str]())
            return max(
                (step, *self._steps_in_files(run_id, read)), key=lambda one: -1 if one is None else one
            )
        with self._run(training) as (_, resumed_from):
            return resumed_from

    def push(self, training: TrackedTraining, records: Sequence[TrackedRecord]) -> None:
        with self._run(training) as (run, resumed_from):
            for record in records:
                if resumed_from is None or record.step > resumed_from:
                    run.log({**record.values, "_timestamp": record.time}, step=record.step)
        self._note(_run_id(training), records[-1].step)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._wandb.teardown()

    @contextlib.contextmanager
    def _run(self, training: TrackedTraining) -> Iterator[tuple[Any, int | None]]:
        """Open a run, and yield it and its last step; on exit, finish it, so that everything is sent or in its
        file.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with self._wandb.init(
                entity=self._entity,
                project=self._project,
                id=_run_id(training),
                name=training.name,
                group=f"{training.sweep}/{training.point}",
                job_type=training.stage,
                config=dict(training.params),
                resume="allow",
                mode="offline" if self._offline else "online",
                dir=str(self._folder),
                settings=self._settings,
            ) as run:
                yield run, run.starting_step - 1 if run.resumed and run.starting_step else None
        except Exception as error:  # its messages may contain its arguments
            raise TrackerError(f"wandb does not take records: {type(error).__name__}") from None

    def _files(self, run_id: str) -> list[Path]:
        return sorted(self._folder.glob(f"wandb/*run-*-{run_id}/run-{run_id}.wandb"))

    def _steps_in_files(self, run_id: str, read: frozenset[str]) -> Iterator[int]:
        """Yield the last step of each file of a run that was not read before."""
        for path in self._files(run_id):
            if path.parent.name not in read:
                try:
                    steps = [whole(record.get("_step")) for record in history_of(path.read_bytes())]
                except (OSError, WandbFileError) as error:
                    raise TrackerError(f"wandb: {path} cannot be read: {error}") from None
                yield max((step for step in steps if step is not None), default=-1)

    def _noted(self, run_id: str) -> tuple[int, frozenset[str]] | None:
        """Return the last noted step, and the folders of the files that it covers."""
        try:
            noted = json.loads((self._folder / f"{run_id}.json").read_text())
            step = noted["step"]
            return (step, frozenset(noted["files"])) if isinstance(step, int) else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _note(self, run_id: str, step: int) -> None:
        path = self._folder / f"{run_id}.json"
        files = [file.parent.name for file in self._files(run_id)]
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps({"step": step, "files": files}))
        temporary.replace(path)


def _run_id(training: TrackedTraining) -> str:
    return hashlib.sha256(training.key.encode()).hexdigest()[:16]
