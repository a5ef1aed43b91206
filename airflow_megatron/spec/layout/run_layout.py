"""The directories of a sweep on the cluster, and their content.

::

    <run_root>/.submitting/                       callers that wait for room in Slurm's queue
    <run_root>/<sweep>/                           SweepLayout
      .arrays/<stage>.<token>/1/                  claims of a job array, laid out as an attempt
      .data_cache/                                index files of the data, of all trainings
      .prefetched/                                HF_HOME of jobs without internet
      <point>/[<branch>/]                         RunLayout: a run directory
        .jobs/<stage>/                            StageDir
          verdict.json                            how the job ended
          <number>/                               AttemptDir: one submission
            jobid, job.json, job.sbatch, exit.json, verdict.json, run/job_id, chained, began_at, ahead, withdrawn
            secrets/, gpus/<node>.csv, hosts
        logs/<stage>-<number>.out
        checkpoints/latest_checkpointed_iteration.txt, iter_<iteration, 7 digits>/
        converted_hf/iter_<iteration>/, converted_checkpoints/iter_<iteration>.done
        eval_results/iter_<iteration>/results.json
        runs/<run>/                               the same, of a run outside the sweep; runs/<stage>.json lists them
        lr_finder/suggested_lr, lr_finder.json, lr_finder_data.csv
        tensorboard/, wandb/; data_cache/, index files of one training: of trainers that do not share them

All paths are absolute POSIX paths of the cluster, without a slash at the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

JOBS: Final = ".jobs"
ARRAYS: Final = ".arrays"
SUBMITTING: Final = ".submitting"
LOGS: Final = "logs"
CHECKPOINTS: Final = "checkpoints"
CONVERTED: Final = "converted_hf"
CONVERTED_MARKS: Final = "converted_checkpoints"
EVALUATIONS: Final = "eval_results"
LR_FINDER: Final = "lr_finder"
RUNS: Final = "runs"
TENSORBOARD: Final = "tensorboard"
DATA_CACHE: Final = "data_cache"
SHARED_DATA_CACHE: Final = ".data_cache"
"""A point's name does not begin with a dot."""
PREFETCHED: Final = ".prefetched"
WANDB: Final = "wandb"
RUN_FOLDERS: Final = frozenset(
    {
        *(JOBS, LOGS, CHECKPOINTS, CONVERTED, CONVERTED_MARKS, EVALUATIONS, RUNS),
        *(LR_FINDER, TENSORBOARD, DATA_CACHE, WANDB),
    }
)
"""Folders of a run directory, in which no other run directory may lie."""

TRACKER_FILE: Final = "latest_checkpointed_iteration.txt"
"""Megatron's name (``get_checkpoint_tracker_filename`` of ``megatron/training/checkpointing.py``)."""
RESULTS_FILE: Final = "results.json"
MODEL_CONFIG_FILE: Final = "config.json"
"""In the directory of a Hugging Face model; written last by the converter."""
LR_FINDER_REPORT: Final = f"{LR_FINDER}/lr_finder.json"
LR_FINDER_CURVE: Final = f"{LR_FINDER}/lr_finder_data.csv"
LOG_SUFFIX: Final = ".out"

JOB_RECORD: Final = "job.json"
VERDICT_RECORD: Final = "verdict.json"
EXIT_RECORD: Final = "exit.json"
JOB_SCRIPT: Final = "job.sbatch"
JOB_ID_RECORD: Final = "jobid"
CHAINED_RECORD: Final = "chained"
"""Slurm name of an attempt that waits, or waited, in the queue for the end of the previous one."""
BEGAN_AT_RECORD: Final = "began_at"
"""File of a started chained attempt with its initial iteration."""
AHEAD_RECORD: Final = "ahead"
"""File of an attempt that was queued behind the previous stage
(:mod:`airflow_megatron.slurm.submission.queue_ahead`)."""
AHEAD_DECISION: Final = "ahead_decision"
"""Symbolic link whose target records the decision about such an attempt; the first process to create it decides."""
WITHDRAWN: Final = "withdrawn"
"""Mark of an attempt that must not have a job."""
RUN_FOLDER: Final = "run"
"""Directory for files of the job that runs an attempt."""
OWNER_RECORD: Final = f"{RUN_FOLDER}/job_id"
"""Id of the job that runs (or ran) the attempt, written by the job itself."""
RELEASED_CLAIM: Final = "claim.*/released"
"""Pattern of the file with which a submission gives up its claim on an attempt; it holds the answer of sbatch."""
SECRETS: Final = "secrets"
HOSTS: Final = "hosts"
GPU_SAMPLES: Final = "gpus"
"""Directory with a CSV file for each node."""

_NUMBER = re.compile(r"[0-9]{1,15}", re.ASCII)
_RESULT_NAME = re.compile(r"iter_(\d{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """The directory of one submission of a job.

    :param stage_dir: directory of its stage
    :param number: from 1
    """

    stage_dir: str
    number: int

    @classmethod
    def from_path(cls, path: str) -> AttemptDir | None:
        """Return the attempt of a directory, None if its name is not the number of an attempt."""
        stage_dir, _, number = path.rstrip("/").rpartition("/")
        return cls(stage_dir, int(number)) if _NUMBER.fullmatch(number) else None

    @classmethod
    def of(cls, path: str) -> AttemptDir:
        """Return the attempt of a directory.

        :raises ValueError: if it is not the directory of an attempt
        """
        found = cls.from_path(path)
        if found is None:
            raise ValueError(f"{path!r} is not the directory of an attempt: its name is not a number")
        return found

    @property
    def path(self) -> str:
        """The directory."""
        return f"{self.stage_dir.rstrip('/')}/{self.number}"

    @property
    def script(self) -> str:
        """The script that was passed to sbatch."""
        return f"{self.path}/{JOB_SCRIPT}"

    @property
    def verdict(self) -> str:
        """Record of the verdict on the attempt."""
        return f"{self.path}/{VERDICT_RECORD}"

    @property
    def exit(self) -> str:
        """Record of the end of the job script."""
        return exit_record_of(self.path)

    @property
    def owner(self) -> str:
        """File with the id of the job that runs it."""
        return owner_record_of(self.path)

    @property
    def withdrawn(self) -> str:
        """Mark that it must not have a job."""
        return f"{self.path}/{WITHDRAWN}"

    @property
    def hosts(self) -> str:
        """File with the nodes of the job, for launchers that need one."""
        return f"{self.path}/{HOSTS}"

    @property
    def secrets(self) -> str:
        """The directory of its delivered secrets, accessible only to the user."""
        return secrets_of(self.path)


def exit_record_of(attempt_dir: str) -> str:
    """Return the file that records how the job script of an attempt ended."""
    return f"{attempt_dir.rstrip('/')}/{EXIT_RECORD}"


def owner_record_of(attempt_dir: str) -> str:
    """Return the file with the id of the job that runs an attempt."""
    return f"{attempt_dir.rstrip('/')}/{OWNER_RECORD}"


def secrets_of(attempt_dir: str) -> str:
    """Return the directory of an attempt's delivered secrets, accessible only to the user."""
    return f"{attempt_dir}/{SECRETS}"


@dataclass(frozen=True, slots=True)
class StageDir:
    """The directory of a stage's attempts.

    :param path: ``<run_dir>/.jobs/<stage>``
    """

    path: str

    @property
    def stage(self) -> str:
        """Name of the stage."""
        return self.path.rpartition("/")[2]

    @property
    def verdict(self) -> str:
        """How the job ended."""
        return f"{self.path.rstrip('/')}/{VERDICT_RECORD}"

    def attempt(self, number: int) -> AttemptDir:
        """Return the directory of an attempt."""
        return AttemptDir(self.path.rstrip("/"), number)


# plans of 100,000 points call these millions of times, so they are functions that create no objects


def stage_dir_of(run_dir: str, stage: str) -> str:
    """Return the directory of a stage's attempts; stages of one branch share a run directory."""
    return f"{run_dir}/{JOBS}/{stage}"


def checkpoint_dir_of(run_dir: str) -> str:
    """Return the folder of Megatron's checkpoints."""
    return f"{run_dir}/{CHECKPOINTS}"


def log_pattern_of(run_dir: str, stage: str) -> str:
    """Return the path of a stage's logs, with ``{attempt}`` in it."""
    return f"{run_dir}/{LOGS}/{stage}-{{attempt}}{LOG_SUFFIX}"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """A run directory: that of a training branch of a point, and of the outputs made from its checkpoints.

    Instead of an iteration, methods accept ``{iteration}`` or ``*`` for all iterations.

    :param run_dir: the directory
    """

    run_dir: str

    def stage(self, stage: str) -> StageDir:
        """Return the directory of a stage's attempts; stages of one branch share a run directory."""
        return StageDir(stage_dir_of(self.run_dir, stage))

    def log_pattern(self, stage: str) -> str:
        """Return the path of a stage's logs, with ``{attempt}`` in it."""
        return log_pattern_of(self.run_dir, stage)

    @property
    def checkpoint_dir(self) -> str:
        """Megatron's checkpoints."""
        return checkpoint_dir_of(self.run_dir)

    @property
    def tracker(self) -> str:
        """Megatron's file with the iteration of the newest checkpoint."""
        return tracker_of(self.checkpoint_dir)

    @property
    def converted_dir(self) -> str:
        """Checkpoints converted to Hugging Face models."""
        return f"{self.run_dir}/{CONVERTED}"

    def model_dir(self, iteration: int | str | None) -> str:
        """Return the directory of a converted checkpoint."""
        return result_dir(self.converted_dir, iteration)

    def model_config(self, iteration: int | str | None) -> str:
        """Return the file that exists in a completely converted checkpoint."""
        return model_config_of(self.model_dir(iteration))

    def converted_mark(self, iteration: int | str | None) -> str:
        """Return the empty file that marks a checkpoint as converted."""
        return f"{self.run_dir}/{CONVERTED_MARKS}/iter_{iteration}.done"

    @property
    def evaluations_dir(self) -> str:
        """Results of evaluations."""
        return f"{self.run_dir}/{EVALUATIONS}"

    def evaluation(self, iteration: int | str | None) -> str:
        """Return the results of a checkpoint's evaluation."""
        return f"{result_dir(self.evaluations_dir, iteration)}/{RESULTS_FILE}"

    @property
    def made_of_checkpoints(self) -> tuple[str, ...]:
        """The folders whose content must be created again after the checkpoints are replaced."""
        return tuple(f"{self.run_dir}/{name}" for name in (CONVERTED, CONVERTED_MARKS, EVALUATIONS))

    @property
    def runs_dir(self) -> str:
        """Directory for the outputs made from several runs outside the sweep, a folder for each."""
        return f"{self.run_dir}/{RUNS}"

    def of_run(self, run: str) -> RunLayout:
        """Return the layout of the outputs made from a run outside the sweep."""
        return RunLayout(f"{self.runs_dir}/{run}")

    def runs_list(self, stage: str) -> str:
        """Return the file in which a stage that processes several runs lists them at its end."""
        return f"{self.runs_dir}/{stage}.json"

    @property
    def suggested_lr(self) -> str:
        """File with the result of a search for a learning rate."""
        return f"{self.run_dir}/{LR_FINDER}/suggested_lr"

    @property
    def tensorboard_dir(self) -> str:
        """Event files of TensorBoard."""
        return f"{self.run_dir}/{TENSORBOARD}"

    @property
    def data_cache_dir(self) -> str:
        """Index files of the data loader, of a trainer whose jobs do not share them."""
        return f"{self.run_dir}/{DATA_CACHE}"

    @property
    def wandb_dir(self) -> str:
        """Files of Weights & Biases."""
        return f"{self.run_dir}/{WANDB}"


@dataclass(frozen=True, slots=True)
class SweepLayout:
    """The directory of a sweep.

    :param path: ``<run_root>/<sweep>``
    """

    path: str

    @classmethod
    def of(cls, run_root: str, sweep: str) -> SweepLayout:
        """Return the directory of a sweep on a cluster.

        :param run_root: ``run_root`` of the cluster's profile
        """
        return cls(f"{run_root.rstrip('/')}/{sweep}")

    def point(self, name: str) -> RunLayout:
        """Return the run directory of a point's main branch."""
        return RunLayout(f"{self.path}/{name}")

    @property
    def data_cache_dir(self) -> str:
        """Index files of the data loader, which all trainings share."""
        return f"{self.path}/{SHARED_DATA_CACHE}"

    @property
    def prefetched_dir(self) -> str:
        """Models, data sets and files for jobs without internet; their ``HF_HOME``."""
        return f"{self.path}/{PREFETCHED}"

    def array(self, stage: str, token: str) -> str:
        """Return the directory of a job array of a stage; it is laid out as a stage directory with one attempt."""
        return f"{self.path}/{ARRAYS}/{stage}.{token}"


def submitting_dir(run_root: str) -> str:
    """Return the directory of announcements of the processes that submit to a cluster."""
    return f"{run_root.rstrip('/')}/{SUBMITTING}"


def run_dir_of(checkpoint_dir: str) -> str:
    """Return the run directory that a folder of checkpoints is in, or the folder itself if it is not part of a run."""
    return checkpoint_dir.removesuffix(f"/{CHECKPOINTS}")


def tracker_of(checkpoint_dir: str) -> str:
    """Return Megatron's tracker file in a folder of checkpoints."""
    return f"{checkpoint_dir.rstrip('/')}/{TRACKER_FILE}"


def result_dir(folder: str, iteration: int | str | None) -> str:
    """Return the directory of one checkpoint in a folder of results; the iteration is not padded."""
    return f"{folder}/iter_{iteration}"


def result_iteration(name: str) -> int | None:
    """Return the iteration of a directory of results, None if the name has none."""
    match = _RESULT_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def model_config_of(model: str) -> str:
    """Return the file that exists in the directory of a complete Hugging Face model."""
    return f"{model}/{MODEL_CONFIG_FILE}"


@dataclass(frozen=True, slots=True)
class RecordPath:
    """A file below ``.jobs`` of a run directory.

    :param stage: name of the stage
    :param number: number of the attempt, None for a file of the stage itself
    :param name: path of the file below the directory of the attempt or of the stage
    """

    stage: str
    number: int | None
    name: str

    @classmethod
    def from_relative(cls, path: str) -> RecordPath | None:
        """Parse a path below a run directory; None for other files.

        :param path: without the run directory, ``.jobs/<stage>/…``
        """
        top, *parts = path.split("/")
        if top != JOBS or len(parts) < 2:
            return None
        stage, first, *rest = parts
        if not rest:
            return cls(stage, None, first)
        return cls(stage, int(first), "/".join(rest)) if _NUMBER.fullmatch(first) else None


@dataclass(frozen=True, slots=True)
class EvaluationPath:
    """The results of an evaluation, in a run directory.

    :param run: name of the run outside the sweep, empty for a run of the sweep
    :param iteration: iteration of the checkpoint
    """

    run: str
    iteration: int

    @classmethod
    def from_relative(cls, path: str) -> EvaluationPath | None:
        """Parse a path below a run directory; None for other files."""
        run = ""
        match path.split("/"):
            case [top, name, _] if top == EVALUATIONS:
                pass
            case [runs, run, top, name, _] if (runs, top) == (RUNS, EVALUATIONS):
                pass
            case _:
                return None
        iteration = result_iteration(name)
        return cls(run, iteration) if iteration is not None else None


def log_of(path: str) -> tuple[str, int] | None:
    """Return stage and attempt of a log, None for another file.

    :param path: below the run directory, ``logs/<stage>-<attempt>.out``
    """
    stage, _, attempt = path.removeprefix(f"{LOGS}/").removesuffix(LOG_SUFFIX).rpartition("-")
    return (stage, int(attempt)) if stage and _NUMBER.fullmatch(attempt) else None
