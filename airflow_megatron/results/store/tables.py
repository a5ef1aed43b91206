"""The tables of the store: their columns with type, unit and meaning.

``docs/results-store.md`` shows them; :func:`markdown` writes that part of the page.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["text", "whole", "real", "flag", "utc", "local"]
"""``utc``: a time in UTC; ``local``: a time without a zone, as the cluster's clock shows it."""


class Column(NamedTuple):
    """A column.

    :param name: of the column
    :param kind: type of its values; any of them may be missing
    :param unit: of its values, empty for none
    :param meaning: for people
    """

    name: str
    kind: Kind
    unit: str
    meaning: str


class Table(NamedTuple):
    """A table.

    :param name: of the table, and of the attribute of :class:`.reading.Results`
    :param meaning: what one row is
    :param columns: after those of :data:`SOURCE`
    :param key: columns, besides those of the source, that are equal in two rows of the same thing
    :param source_key: columns of the source that are equal in them
    :param keep: which of such rows counts: ``first`` read, or ``last`` read
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    source_key: tuple[str, ...] = ("job_id", "log", "offset")
    keep: Literal["first", "last"] = "first"

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """The columns of the source, then its own."""
        return SOURCE + self.columns


SOURCE: Final = (
    Column("sweep", "text", "", "name of the sweep"),
    Column("run", "text", "", "id of the sweep's run in Airflow; empty where it is not known"),
    Column("point", "text", "", "name of the point; empty for a job of the whole sweep"),
    Column("stage", "text", "", "name of the stage"),
    Column("attempt", "whole", "", "number of the attempt, from 1"),
    Column("job_id", "text", "", "Slurm's id of the job"),
    Column("log", "text", "", "path of the attempt's log on the cluster"),
    Column(
        "offset",
        "whole",
        "bytes",
        "byte of the log at which the line begins; missing for what is from no log",
    ),
    Column("time", "utc", "", "when the row was read from the cluster"),
)
"""Where a row is from; the first columns of every table."""

_JOB: Final = ("point", "stage", "attempt", "job_id")

ITERATIONS: Final = Table(
    "iterations",
    "an iteration line of a training's log",
    (
        Column("iteration", "whole", "", "number of the iteration, from 1"),
        Column("train_iters", "whole", "", "the last iteration of the training"),
        Column("consumed_samples", "whole", "samples", "samples consumed since the training began"),
        Column(
            "consumed_tokens", "whole", "tokens", "samples times the sequence length; missing where unknown"
        ),
        Column("logged", "local", "", "the time that the line shows"),
        Column("loss", "real", "nats per token", "language-model loss; missing where it was not a number"),
        Column("elapsed_ms", "real", "ms", "time per iteration"),
        Column("throughput", "real", "TFLOP/s per GPU", "as Megatron counts it"),
        Column("learning_rate", "real", "", "learning rate"),
        Column("global_batch_size", "whole", "samples", "samples of one iteration"),
        Column("loss_scale", "real", "", "scale of the loss in mixed precision"),
        Column("grad_norm", "real", "", "norm of the gradient before clipping"),
        Column("skipped_iterations", "whole", "", "iterations without an update since the last line"),
        Column(
            "nan_iterations", "whole", "", "iterations with a loss that is not a number since the last line"
        ),
        Column("torn", "flag", "", "not all of the line could be read"),
        Column("other_losses", "text", "JSON", "the other losses of the line: name to value"),
        Column("extra", "text", "JSON", "the other numbers of the line: name to value"),
    ),
    ("iteration",),
)
VALIDATIONS: Final = Table(
    "validations",
    "a loss on a held-out set",
    (
        Column("iteration", "whole", "", "iteration after which it was measured; missing in older releases"),
        Column("split", "text", "", "validation or test"),
        Column("dataset", "text", "", "name of the set where there are several"),
        Column("final", "flag", "", "measured when the training had ended"),
        Column("loss", "real", "nats per token", "language-model loss"),
        Column("losses", "text", "JSON", "all losses of the line: name to value"),
        Column("perplexities", "text", "JSON", "all perplexities of the line: name to value"),
    ),
    ("iteration", "split", "dataset", "final"),
)
CHECKPOINTS: Final = Table(
    "checkpoints",
    "a line of a log about a checkpoint: restarts and rollbacks show here",
    (
        Column("event", "text", "", "saving, scheduled, saved, loading, loaded, deleted or random_start"),
        Column("iteration", "whole", "", "iteration of the checkpoint"),
        Column("path", "text", "", "directory that the line names"),
    ),
    ("event", "iteration"),
)
MEMORY: Final = Table(
    "memory",
    "a line of a log about the memory of one rank, as PyTorch counts it",
    (
        Column("rank", "whole", "", "number of the process"),
        Column("moment", "text", "", "when it was measured"),
        Column("allocated", "real", "MB", "in tensors"),
        Column("max_allocated", "real", "MB", "the most in tensors so far"),
        Column("reserved", "real", "MB", "taken from the GPU"),
        Column("max_reserved", "real", "MB", "the most taken from the GPU so far"),
    ),
    ("rank", "moment"),
)
ATTEMPTS: Final = Table(
    "attempts",
    "an attempt of a job that has ended",
    (
        Column("outcome", "text", "", "the verdict"),
        Column("reason", "text", "", "what decided it"),
        Column("line", "text", "", "the line of the log that decided"),
        Column("signature", "text", "", "name of the known failure that the line shows"),
        Column("iteration", "whole", "", "of the newest checkpoint; missing for a job that does not train"),
        Column("node_list", "text", "", "nodes, as Slurm writes them"),
        Column("failed_nodes", "text", "", "nodes that are known to have failed, comma-separated"),
        Column("exit_code", "whole", "", "of the job script"),
        Column("started", "utc", "", "when the job began to run"),
        Column("ended", "utc", "", "when it ended"),
        Column("elapsed", "real", "s", "how long it ran, as Slurm counts it"),
        Column("gpus", "whole", "", "GPUs of the job"),
        Column("gpu_hours", "real", "GPU h", "GPUs times the time that it ran"),
    ),
    (),
    source_key=_JOB,
    keep="last",
)
STATES: Final = Table(
    "states",
    "a change of a job's state",
    (
        Column("state", "text", "", "Slurm's state"),
        Column("reason", "text", "", "why it waits, as Slurm says"),
        Column("node_list", "text", "", "nodes, as Slurm writes them"),
    ),
    ("state", "reason", "node_list", "time"),
    source_key=_JOB,
)
EVALUATIONS: Final = Table(
    "evaluations",
    "a figure of lm-evaluation-harness",
    (
        Column("iteration", "whole", "", "of the checkpoint"),
        Column(
            "model",
            "text",
            "",
            "run outside the sweep that the checkpoint is from; empty for the point's own",
        ),
        Column("task", "text", "", "name of the task or group"),
        Column("metric", "text", "", "name of the metric"),
        Column("filter", "text", "", "how answers were picked from the text; none for as they are"),
        Column("value", "real", "", "the figure"),
        Column("stderr", "real", "", "its standard error"),
        Column("num_fewshot", "whole", "", "examples before each question"),
        Column("samples", "whole", "", "items that it was measured on"),
        Column("higher_is_better", "flag", "", "a higher figure is a better one"),
        Column("chance", "real", "", "score of random guessing; missing where it is not known"),
        Column("version", "text", "", "version of the task"),
    ),
    ("iteration", "model", "task", "metric", "filter"),
    source_key=("point", "stage"),
    keep="last",
)
SAMPLES: Final = Table(
    "samples",
    "what one GPU did during an attempt, where `monitor:` watched it",
    (
        Column("node", "text", "", "name of the node"),
        Column("gpu", "whole", "", "number of the GPU in its node"),
        Column("samples", "whole", "", "samples that the means are over"),
        Column("memory_mib", "real", "MiB", "the most memory in use"),
        Column("utilisation", "real", "% of the time", "mean"),
        Column("power", "real", "W", "mean"),
    ),
    ("node", "gpu"),
    source_key=_JOB,
    keep="last",
)
POINTS: Final = Table(
    "points",
    "a point of the sweep, once for each of its trainings",
    (
        Column("swept", "text", "JSON", "the parameters that the sweep varies: name to value"),
        Column("seq_length", "whole", "tokens", "tokens of a sample"),
        Column("gpus", "whole", "", "processes of the training, one a GPU"),
        Column("train_iters", "whole", "", "the last iteration"),
        Column("parent", "text", "", "stage from whose checkpoint the training starts"),
    ),
    (),
    source_key=("point", "stage"),
    keep="last",
)
REBUILT: Final = "rebuilt"
"""Reason of a row of :data:`GAPS` that ends those of its log before."""
GAPS: Final = Table(
    "gaps",
    "a part of a log whose rows were not stored; `airflow-megatron results rebuild` adds them",
    (Column("reason", "text", "", "why"),),
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
    "flag",
    "",
    "added when reading: a later attempt went back to before this iteration and has logged on from there",
)
"""Of :data:`ITERATIONS` and :data:`VALIDATIONS`; not stored."""


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
