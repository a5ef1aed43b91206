"""Invariants after a storm: no job is lost, none ran twice, and no process or file is left."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from patience import deadline_in

from airflow_megatron.slurm.states.exit_codes import STEPPED_BACK_EXIT_CODE

if TYPE_CHECKING:
    from sweep_site import Submission, SweepSite

    from airflow_megatron.spec.model.jobs import Job

SETTLE_S = 30.0


def settled(site: SweepSite, jobs: list[Job]) -> list[str]:
    """Return the remaining violations; wait first, because accounting and the last processes need some time."""
    deadline = deadline_in(SETTLE_S)
    while (wrong := broken_promises(site, jobs)) and time.monotonic() < deadline:
        time.sleep(1)
    return wrong


def broken_promises(site: SweepSite, jobs: list[Job]) -> list[str]:
    """Return all violations, one line each."""
    wrong: list[str] = []
    submitted: dict[str, dict[str, Submission]] = {}
    for name, rows in site.submissions(f"{jobs[0].sweep}.").items():
        counted = {row.job_id: row for row in rows if not (jobs[0].ahead and _did_nothing(row))}
        if counted:
            submitted[name] = counted
    for job in jobs:
        stage = Path(job.stage_dir)
        attempts = sorted(int(path.name) for path in stage.iterdir() if path.name.isdigit())
        if attempts != list(range(1, len(attempts) + 1)):
            wrong.append(f"{job.name}: attempts {attempts}")
        # a fault may have damaged the first one after all processes had read it
        verdict = _object(stage / "verdict.json") or _object(stage / str(attempts[-1]) / "verdict.json")
        if verdict.get("outcome") != "finished" or verdict.get("attempt") != attempts[-1]:
            wrong.append(f"{job.name}: not finished in attempt {attempts[-1]}: {verdict}")
        for number in attempts:
            wrong += _attempt(job, number, submitted.pop(f"{job.name}.a{number}", {}))
        wrong += _training(job) if job.kind == "train" else _command(job, len(attempts))
    wrong += _order(jobs)
    wrong += [f"accounting has {name}, which no directory knows: {ids}" for name, ids in submitted.items()]
    wrong += [f"still queued: {name}" for name in site.queued(f"{jobs[0].sweep}.")]
    wrong += [f"still running: {line}" for line in _job_processes(site)]
    return wrong


def _withdrawn(stage: Path, number: int) -> tuple[set[str], int]:
    """Return the jobs that were queued ahead as an attempt and withdrawn, and the number of such jobs without a name.

    A fault may have damaged the file, or the output from which it is written.
    """
    records = [folder / "jobid" for folder in stage.glob(f"{number}.withdrawn.*")]
    texts = [record.read_text(errors="replace").strip() if record.exists() else "" for record in records]
    named = {text.partition(";")[0].split(" ")[0] for text in texts}
    ids = {text for text in named if text.isdigit()}
    return ids, len(records) - len(ids)


def _did_nothing(row: Submission) -> bool:
    """Return whether a job stopped at its start, or was cancelled before it."""
    never = row.state.startswith("CANCELLED") and row.node in ("", "None assigned")
    return row.exit_code.startswith(f"{STEPPED_BACK_EXIT_CODE}:") or never


def _order(jobs: list[Job]) -> list[str]:
    """Check that no command ran before its training had saved the last checkpoint."""
    by_name = {job.name: job for job in jobs}
    wrong = []
    for job in jobs:
        before = by_name[job.depends_on[0].job] if job.depends_on else None
        if before is None or before.kind != "train":
            continue
        lines = [line.split() for line in (Path(before.run_dir) / "ledger").read_text().splitlines()]
        last = str(before.params["train_iters"])
        saved = [float(line[0]) for line in lines if len(line) == 4 and line[2:] == ["saved", last]]
        times = [line.split() for line in (Path(job.run_dir) / "times").read_text().splitlines()]
        ran = [float(line[3]) for line in times if len(line) == 4]
        if ran and (not saved or min(ran) < min(saved)):
            wrong.append(f"{job.name}: ran at {ran}, the stage before it finished at {saved}")
    return wrong


def _attempt(job: Job, number: int, submissions: dict[str, Submission]) -> list[str]:
    """Check one attempt: it has exactly the recorded submission, and without one no remaining claim.

    :param submissions: submissions by job id
    """
    directory = Path(job.stage_dir) / str(number)
    recorded = (
        (directory / "jobid").read_text(errors="replace").strip() if (directory / "jobid").exists() else ""
    )
    # the file may be damaged and Slurm may have forgotten the job, but the verdict of the attempt has its id
    recorded = recorded or str(_object(directory / "verdict.json").get("job_id") or "")
    wrong = []
    withdrawn, without_name = _withdrawn(Path(job.stage_dir), number)
    submitted = set(submissions) - withdrawn
    others = submitted - {recorded}
    # a withdrawn job never started its work: it was cancelled, or its node failed while it stopped
    without_work = sum(submissions[other].state != "COMPLETED" for other in others)
    if len(others) - min(without_work, without_name) > (not recorded.isdigit()):
        wrong.append(
            f"{job.name}: attempt {number} is recorded as {recorded!r}, withdrawn {sorted(withdrawn)} and "
            f"{without_name} without a name, submitted as {[submissions[one] for one in sorted(submitted)]}"
        )
    held = [claim.name for claim in directory.glob("claim.*") if not (claim / "released").exists()]
    if held and not recorded and not submitted:
        wrong.append(f"{job.name}: attempt {number} holds {held} and has no job")
    return wrong


def _training(job: Job) -> list[str]:
    """Check by its ledger that a training continued from the last checkpoint, ran alone, and finished once."""
    lines = [line.split() for line in (Path(job.run_dir) / "ledger").read_text().splitlines()]
    wrong = []
    whole = [line for line in lines if len(line) >= 3]
    if any(line[2] == "overlap" for line in whole):
        wrong.append(f"{job.name}: two attempts trained at the same time")
    saved = 0
    trained: Counter[int] = Counter()
    for line in whole:
        if line[2] == "begin" and int(line[3]) < saved:
            wrong.append(f"{job.name}: job {line[1]} began at {line[3]}, {saved} had been saved")
        if line[2] == "saved":
            trained[int(line[3])] += 1
            saved = max(saved, int(line[3]))
    if trained[job.params["train_iters"]] > 1:
        wrong.append(f"{job.name}: trained to its end {trained[job.params['train_iters']]} times")
    if saved != job.params["train_iters"]:
        wrong.append(f"{job.name}: the last checkpoint is of iteration {saved}")
    return wrong


def _command(job: Job, attempts: int) -> list[str]:
    """Check that no work was done twice, except work that a failed node could not record."""
    times = (Path(job.run_dir) / "times").read_text().splitlines()
    done = 1 <= len(times) <= attempts
    return [] if done else [f"{job.name}: ran to its end {len(times)} times in {attempts} attempts: {times}"]


def _object(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return {}


def _job_processes(site: SweepSite) -> list[str]:
    """Return the remaining processes of jobs of the cluster."""
    conf, found = str(site.cluster.description["slurm_conf"]), []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if environment.get("SLURM_CONF") == conf and "SLURM_JOB_ID" in environment:
            found.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
    return found
