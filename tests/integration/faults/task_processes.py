"""Run the jobs of a sweep with the real operators and triggers, each task in a process, without Airflow's web server.

    python task_processes.py PLACE

Replaces Airflow's executor, scheduler and triggerer, and takes a second instead of a minute. A task that dies is
retried from its beginning; its state store is kept. When a task defers, its trigger runs in the triggerer process, and
the task continues in a new process. A triggerer that dies is started again and runs all triggers from their beginning.

Files in ``PLACE``: the program reads ``jobs.json`` (jobs in their JSON form, parents before children), ``admitted``
(number of points that may run) and ``cleared/<task>``. It writes ``living/<pid>`` for each task and triggerer process,
``states.json`` with the state of each task, and ``logs/<task>.log``. It ends when all tasks have succeeded.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import logging
import os
import random
import sys
import time
import traceback
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.sdk.execution_time.context import set_current_context

from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import BaseOperator
    from airflow.triggers.base import BaseTrigger

RETRIES = 20
"""Tries of a task: the tests kill more workers than a site does."""
WORKERS = 6
TICK_S = 0.05


class StateStore:
    """Airflow's state store of a task, which survives the task's process."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def _content(self) -> dict[str, Any]:
        return json.loads(self._file.read_text()) if self._file.exists() else {}

    def get(self, key: str) -> Any:
        return self._content().get(key)

    def set(self, key: str, value: Any) -> None:
        write_whole(self._file, {**self._content(), key: value})

    def delete(self, key: str) -> None:
        write_whole(self._file, {name: value for name, value in self._content().items() if name != key})


@dataclass
class Task:
    """A task and its state; its fields without a default also represent Airflow's task instance.

    :param phase: ``waiting`` (for the task before it), ``ready``, ``running``, ``deferred``, ``success`` or ``failed``.
    :param resume: method and event with which the next process continues.
    """

    task_id: str
    job: dict[str, Any]
    after: str | None
    dag_id: str = "sweep.point"
    run_id: str = "run"
    phase: str = "waiting"
    try_number: int = 1
    max_tries: int = RETRIES
    resume: tuple[str, Any] | None = None
    result: Any = None
    pid: int = 0
    not_before: float = 0.0

    def operator(self, handle: Any) -> BaseOperator:
        if self.task_id.endswith(".submit"):
            return SlurmSubmitOperator(task_id="submit", job=self.job, retries=RETRIES)
        return SlurmWatchOperator(
            task_id="watch", job=self.job, handle=handle, poll_interval=1.0, retries=RETRIES
        )


def write_whole(file: Path, content: Any) -> None:
    """Write JSON atomically."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.new")
    draft.write_text(json.dumps(content))
    draft.replace(file)


class TaskProcesses:
    """Scheduler and executor.

    :param place: see the module's docstring.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("living", "logs", "results", "triggers", "events", "store", "cleared"):
            (place / name).mkdir(exist_ok=True)
        self.tasks: dict[str, Task] = {}
        for job in json.loads((place / "jobs.json").read_text()):
            before = [f"{each['job']}.watch" for each in job["depends_on"]]
            submit, watch = f"{job['name']}.submit", f"{job['name']}.watch"
            self.tasks[submit] = Task(submit, job, before[0] if before else None)
            self.tasks[watch] = Task(watch, job, submit)
        self.points = list(dict.fromkeys(task.job["point"] for task in self.tasks.values()))
        self.triggerer = 0
        self._written = ""

    def run(self) -> None:
        while any(task.phase != "success" for task in self.tasks.values()):
            self._reap()
            self._take_events()
            self._clear()
            self._schedule()
            self._report()
            time.sleep(TICK_S)
        self._report()

    def _schedule(self) -> None:
        admitted = set(self.points[: int((self.place / "admitted").read_text())])
        running = sum(task.phase == "running" for task in self.tasks.values())
        for task in self.tasks.values():
            before = self.tasks[task.after].phase == "success" if task.after else True
            if task.phase == "waiting" and before and task.job["point"] in admitted:
                task.phase = "ready"
            if task.phase == "ready" and running < WORKERS and time.monotonic() >= task.not_before:
                task.phase = "running"
                task.pid = self._fork(task.task_id, lambda task=task: self._work(task))
                running += 1
        if not self.triggerer:
            self.triggerer = self._fork("triggerer", lambda: asyncio.run(self._run_triggers()))

    def _fork(self, name: str, work: Any) -> int:
        pid = os.fork()
        if pid:
            (self.place / "living" / str(pid)).write_text(name)
            return pid
        status = 1
        try:
            log = os.open(self.place / "logs" / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            (self.place / "living" / str(pid)).unlink(missing_ok=True)
            if pid == self.triggerer:
                self.triggerer = 0
            for task in self.tasks.values():
                if task.pid == pid:
                    task.pid = 0
                    self._ended(task, pid)

    def _ended(self, task: Task, pid: int) -> None:
        file = self.place / "results" / str(pid)
        result = json.loads(file.read_text()) if file.exists() else {"failed": "the process died"}
        file.unlink(missing_ok=True)
        if "success" in result:
            task.phase, task.result, task.resume = "success", result["success"], None
        elif "deferred" in result:
            task.phase, task.resume = "deferred", None
            write_whole(self.place / "triggers" / task.task_id, result["deferred"])
        elif result.get("final") or task.try_number > task.max_tries:
            task.phase, task.resume = "failed", None
        else:
            self._try_again(task)

    def _try_again(self, task: Task) -> None:
        task.phase, task.resume = "ready", None
        task.try_number += 1
        task.not_before = time.monotonic() + random.uniform(0.2, 1.0)

    def _take_events(self) -> None:
        for file in (self.place / "events").iterdir():
            if file.suffix == ".new":
                continue
            task, event = self.tasks[file.name], json.loads(file.read_text())
            file.unlink()
            trigger = self.place / "triggers" / task.task_id
            if not trigger.exists() or json.loads(trigger.read_text())["id"] != event["id"]:
                continue  # a triggerer that was killed after it delivered the event has run the trigger again
            trigger.unlink()
            if "error" in event:
                self._try_again(task)
            else:
                task.phase, task.resume = "ready", (event["method"], event["payload"])

    def _clear(self) -> None:
        for file in (self.place / "cleared").iterdir():
            task = self.tasks[file.name]
            if task.phase == "failed":
                task.max_tries = task.try_number + RETRIES
                self._try_again(task)
                task.not_before = 0.0
            file.unlink()

    def _report(self) -> None:
        states = {name: {"phase": task.phase, "try": task.try_number} for name, task in self.tasks.items()}
        text = json.dumps(states)
        if text != self._written:
            write_whole(self.place / "states.json", states)
            self._written = text

    # ---- in the task's process

    def _work(self, task: Task) -> None:
        handle = self.tasks[task.after].result if task.after and task.task_id.endswith(".watch") else None
        operator = task.operator(handle)
        context: dict[str, Any] = {"ti": task, "task": operator, "dag_run": SimpleNamespace(conf={})}
        context["task_state_store"] = StateStore(self.place / "store" / task.task_id)
        result: dict[str, Any]
        print(
            f"--- {time.strftime('%T')} try {task.try_number} {task.resume[0] if task.resume else 'execute'}"
        )
        try:
            with set_current_context(context):
                if task.resume:
                    method, event = task.resume
                    result = {"success": getattr(operator, method)(context, event)}
                else:
                    result = {"success": operator.execute(context)}
        except TaskDeferred as deferred:
            path, arguments = deferred.trigger.serialize()
            result = {
                "deferred": {
                    "path": path,
                    "arguments": arguments,
                    "method": deferred.method_name,
                    "id": uuid.uuid4().hex,
                }
            }
        except AirflowFailException as error:
            traceback.print_exc()
            result = {"failed": str(error), "final": True}
        except Exception as error:
            traceback.print_exc()
            result = {"failed": str(error)}
        write_whole(self.place / "results" / str(os.getpid()), result)

    # ---- in the triggerer's process

    async def _run_triggers(self) -> None:
        running: dict[str, tuple[str, asyncio.Task[None]]] = {}
        while True:
            found = {file.name: file for file in (self.place / "triggers").iterdir() if file.suffix != ".new"}
            for name in [name for name in running if name not in found]:
                running.pop(name)[1].cancel()
            for name, file in found.items():
                with contextlib.suppress(FileNotFoundError):
                    stored = json.loads(file.read_text())
                    known = running.get(name)
                    if known is None or known[0] != stored["id"]:
                        running[name] = stored["id"], asyncio.create_task(self._fire(name, stored))
            await asyncio.sleep(TICK_S)

    async def _fire(self, name: str, stored: Mapping[str, Any]) -> None:
        try:
            module, _, kind = stored["path"].rpartition(".")
            trigger: BaseTrigger = getattr(importlib.import_module(module), kind)(**stored["arguments"])
            event = await anext(trigger.wait())
            content = {"method": stored["method"], "payload": event.payload}
        except Exception as error:
            traceback.print_exc()
            content = {"error": str(error)}
        write_whole(self.place / "events" / name, {**content, "id": stored["id"]})


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    gc.freeze()  # forked processes share the objects that exist now
    TaskProcesses(Path(sys.argv[1])).run()


if __name__ == "__main__":
    main()
