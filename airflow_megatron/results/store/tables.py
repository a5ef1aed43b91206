"""The tables of the store: their columns with type, unit and meaning.

``docs/results-store.md`` shows them; :func:`markdown` writes that part of the page.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["string", "integer", "float", "boolean", "UTC time", "local time"]
"""``local time``: without a zone, as the cluster's clock shows it."""


class Column(NamedTuple):
    """A column.

    :param name: name of the column
    :param kind: type of the values; any value may be missing
    :param unit: unit of the values; empty if they have none
    :param meaning: description for the documentation
    """

    name: str
    kind: Kind
    unit: str
    meaning: str


class Table(NamedTuple):
    """A table.

    :param name: name of the table and of the attribute of :class:`.reading.Results`
    :param meaning: what one row is
    :param columns: the columns after those of :data:`SOURCE`
    :param key: columns, besides ``source_key``, that identify a row: two rows with equal values are duplicates
    :param source_key: columns of :data:`SOURCE` that identify a row
    :param keep: which duplicate counts: the ``first`` or the ``last`` one read
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    source_key: tuple[str, ...] = ("job_id", "log", "offset")
    keep: Literal["first", "last"] = "first"

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """The columns of :data:`SOURCE`, then the table's own columns."""
        return SOURCE + self.columns


SOURCE: Final = (
    Column("sweep", "string", "", "name of the sweep"),
    Column("run", "string", "", "id of the sweep's run in Airflow; empty where it is not known"),
    Column("point", "string", "", "name of the point; empty for a job of the whole sweep"),
    Column("stage", "string", "", "name of the stage"),
    Column("attempt", "integer", "", "number of the attempt, from 1"),
    Column("job_id", "string", "", "Slurm's id of the job"),
    Column("log", "string", "", "path of the attempt's log on the cluster"),
    Column(
        "offset",
        "integer",
        "bytes",
        "position in the log at which the line begins; missing for rows that come from no log",
    ),
    Column("time", "UTC time", "", "when the row was read from the cluster"),
)
"""Origin of a row: the first columns of every table."""

_JOB: Final = ("point", "stage", "attempt", "job_id")

ITERATIONS: Final = Table(
    "iterations",
    "an iteration line of a training's log",
    (
        Column("iteration", "integer", "", "number of the iteration, from 1"),
        Column("train_iters", "integer", "", "last iteration of the training"),
        Column("consumed_samples", "integer", "samples", "samples consumed since the start of the training"),
        Column(
            "consumed_tokens",
            "integer",
            "tokens",
            "consumed samples times sequence length; missing if unknown",
        ),
        Column("logged", "local time", "", "timestamp of the line"),
        Column("loss", "float", "nats per token", "language-model loss; missing if it was not a number"),
        Column("elapsed_ms", "float", "ms", "time per iteration"),
        Column("throughput", "float", "TFLOP/s per GPU", "computed by Megatron"),
        Column("learning_rate", "float", "", "learning rate"),
        Column("global_batch_size", "integer", "samples", "samples of one iteration"),
        Column("loss_scale", "float", "", "loss scale of mixed-precision training"),
        Column("grad_norm", "float", "", "gradient norm before clipping"),
        Column(
            "skipped_iterations",
            "integer",
            "",
            "iterations without a parameter update since the previous line",
        ),
        Column("nan_iterations", "integer", "", "iterations with a NaN loss since the previous line"),
        Column("torn", "boolean", "", "part of the line could not be read"),
        Column("other_losses", "string", "JSON", "other losses of the line: name to value"),
        Column("extra", "string", "JSON", "other numbers of the line: name to value"),
    ),
    ("iteration",),
)
VALIDATIONS: Final = Table(
    "validations",
    "a loss on a validation or test set",
    (
        Column(
            "iteration",
            "integer",
            "",
            "iteration after which it was measured; missing in logs of older Megatron releases",
        ),
        Column("split", "string", "", "validation or test"),
        Column("dataset", "string", "", "name of the data set, if there are several"),
        Column("final", "boolean", "", "measured after the end of the training"),
        Column("loss", "float", "nats per token", "language-model loss"),
        Column("losses", "string", "JSON", "all losses of the line: name to value"),
        Column("perplexities", "string", "JSON", "all perplexities of the line: name to value"),
    ),
    ("iteration", "split", "dataset", "final"),
)
CHECKPOINTS: Final = Table(
    "checkpoints",
    "a line of a log about a checkpoint, such as a restart or a rollback",
    (
        Column("event", "string", "", "saving, scheduled, saved, loading, loaded, deleted or random_start"),
        Column("iteration", "integer", "", "iteration of the checkpoint"),
        Column("path", "string", "", "directory named in the line"),
    ),
    ("event", "iteration"),
)
MEMORY: Final = Table(
    "memory",
    "a line of a log about the memory of one rank, as reported by PyTorch",
    (
        Column("rank", "integer", "", "rank of the process"),
        Column("moment", "string", "", "text that Megatron prints for the time of the measurement"),
        Column("allocated", "float", "MB", "allocated to tensors"),
        Column("max_allocated", "float", "MB", "maximum allocated to tensors so far"),
        Column("reserved", "float", "MB", "reserved by the allocator"),
        Column("max_reserved", "float", "MB", "maximum reserved by the allocator so far"),
    ),
    ("rank", "moment"),
)
ATTEMPTS: Final = Table(
    "attempts",
    "an attempt of a job that has ended",
    (
        Column("outcome", "string", "", "verdict on the attempt"),
        Column("reason", "string", "", "reason of the verdict"),
        Column("line", "string", "", "log line that decided the verdict"),
        Column("signature", "string", "", "name of the failure signature that matched the line"),
        Column(
            "iteration",
            "integer",
            "",
            "iteration of the newest checkpoint; missing if the job is not a training",
        ),
        Column("node_list", "string", "", "nodes, in Slurm's notation"),
        Column("failed_nodes", "string", "", "nodes known to have failed, separated by commas"),
        Column("exit_code", "integer", "", "exit code of the job script"),
        Column("started", "UTC time", "", "start of the job"),
        Column("ended", "UTC time", "", "end of the job"),
        Column("elapsed", "float", "s", "run time reported by Slurm"),
        Column("gpus", "integer", "", "number of GPUs"),
        Column("gpu_hours", "float", "GPU h", "number of GPUs times run time"),
    ),
    (),
    source_key=_JOB,
    keep="last",
)
STATES: Final = Table(
    "states",
    "a change of a job's state",
    (
        Column("state", "string", "", "job state reported by Slurm"),
        Column("reason", "string", "", "Slurm's reason for a pending job"),
        Column("node_list", "string", "", "nodes, in Slurm's notation"),
    ),
    ("state", "reason", "node_list", "time"),
    source_key=_JOB,
)
EVALUATIONS: Final = Table(
    "evaluations",
    "a metric of lm-evaluation-harness",
    (
        Column("iteration", "integer", "", "iteration of the checkpoint"),
        Column(
            "model",
            "string",
            "",
            "run outside the sweep that wrote the checkpoint; empty for a checkpoint of the point",
        ),
        Column("task", "string", "", "name of the task or group"),
        Column("metric", "string", "", "name of the metric"),
        Column("filter", "string", "", "filter applied to the model's answers; `none` if unfiltered"),
        Column("value", "float", "", "value of the metric"),
        Column("stderr", "float", "", "standard error of the value"),
        Column("num_fewshot", "integer", "", "number of few-shot examples"),
        Column("samples", "integer", "", "number of evaluated items"),
        Column("higher_is_better", "boolean", "", "whether a higher value is better"),
        Column("chance", "float", "", "score of random guessing; missing if unknown"),
        Column("version", "string", "", "version of the task"),
    ),
    ("iteration", "model", "task", "metric", "filter"),
    source_key=("point", "stage"),
    keep="last",
)
SAMPLES: Final = Table(
    "samples",
    "the use of one GPU during an attempt, recorded if the spec sets `monitor:`",
    (
        Column("node", "string", "", "name of the node"),
        Column("gpu", "integer", "", "index of the GPU on its node"),
        Column("samples", "integer", "", "number of samples"),
        Column("memory_mib", "float", "MiB", "maximum memory in use"),
        Column("utilisation", "float", "%", "mean utilisation"),
        Column("power", "float", "W", "mean power"),
    ),
    ("node", "gpu"),
    source_key=_JOB,
    keep="last",
)
POINTS: Final = Table(
    "points",
    "a training of a point",
    (
        Column("swept", "string", "JSON", "swept parameters: name to value"),
        Column("seq_length", "integer", "tokens", "sequence length"),
        Column("gpus", "integer", "", "number of processes, one for each GPU"),
        Column("train_iters", "integer", "", "last iteration"),
        Column("parent", "string", "", "stage whose checkpoint the training starts from"),
    ),
    (),
    source_key=("point", "stage"),
    keep="last",
)
REBUILT: Final = "rebuilt"
"""Reason of a row of :data:`GAPS` that closes the earlier gaps of the same log."""
GAPS: Final = Table(
    "gaps",
    "a part of a log whose rows were not stored; `airflow-megatron results rebuild` adds them",
    (Column("reason", "string", "", "why the rows are missing"),),
    ("reason",),
    keep="last",
)
TABLES: Final = {
    table.name: table
    for table in (
        ITERATIONS,
        VALIDATIONS,
        CHECKPOINTS,
        MEMORY,
        ATTEMPTS,
        STATES,
        EVALUATIONS,
        SAMPLES,
        POINTS,
        GAPS,
    )
}
SUPERSEDED: Final = Column(
    "superseded",
    "boolean",
    "",
    "added when reading: a later attempt repeated this iteration or an earlier one",
)
"""Additional column of :data:`ITERATIONS` and :data:`VALIDATIONS`; computed when reading."""


def markdown() -> str:
    """Return the tables as the documentation shows them."""
    parts = ["Columns of every table:\n\n" + _listing(SOURCE)]
    for table in TABLES.values():
        added = (SUPERSEDED,) if table in (ITERATIONS, VALIDATIONS) else ()
        listing = _listing(table.columns + added)
        parts.append(f"### {table.name}\n\nA row is {table.meaning}.\n\n{listing}")
    return "\n".join(parts)


def _listing(columns: tuple[Column, ...]) -> str:
    head = "| column | type | unit | meaning |\n| --- | --- | --- | --- |\n"
    return head + "".join(f"| {' | '.join(column)} |\n" for column in columns)
