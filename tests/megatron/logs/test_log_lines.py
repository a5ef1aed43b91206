"""The log formats of all releases: recorded logs if available, otherwise the format in the source code."""

# ruff: noqa: E501 - log lines are as long as they are
from __future__ import annotations

import itertools
import math
import re
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.megatron.logs.log_lines import (
    RECORD_LINES_ERE,
    CheckpointEvent,
    CheckpointRecord,
    ErrorKind,
    ErrorRecord,
    IterationRecord,
    LogParser,
    MarkerKind,
    MarkerRecord,
    MemoryRecord,
    ParameterCount,
    ValidationRecord,
    merge_iterations,
    parse_log,
)

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
CPU_LOG = (LOGS / "core_v0.16.1-cpu-tp2.log").read_bytes()
GPU_LOG = (LOGS / "core_v0.14-gpt2xl-4gpu.log").read_bytes()

COMMON = b"loss scale: 1.0 | grad norm: 0.908 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
ITERATION_LINES = {
    "0.5": b" iteration        7/      20 | consumed samples:           28 | elapsed time per iteration (ms): 92.4 |"
    b" learning rate: 1.000E-03 | global batch size:     4 | lm loss: 5.199335E+00 | " + COMMON,
    "0.8": b" [2024-08-01 10:00:00] iteration        7/      20 | consumed samples:           28 | elapsed time per"
    b" iteration (ms): 92.4 | throughput per GPU (TFLOP/s/GPU): 123.4 | learning rate: 1.000000E-03 | decoupled"
    b" learning rate: 2.000000E-03 | global batch size:     4 | lm loss: 5.199335E+00 | " + COMMON,
    "0.9": b" [2024-08-01 10:00:00] iteration        7/      20 | consumed samples:           28 | skipped samples:"
    b"            8 | elapsed time per iteration (ms): 92.4 | learning rate: 1.000000E-03 | global batch size:     4 |"
    b" lm loss: 5.199335E+00 | loss scale: 1.0 | grad norm: 0.908 | num zeros: 12 | params norm: 33.125 | number of"
    b" skipped iterations:   0 | number of nan iterations:   0 |\n",
    "0.14": b" [2025-08-01 10:00:00] iteration        7/      20 | consumed samples:           28 | elapsed time per"
    b" iteration (ms): 92.4 | throughput per GPU (TFLOP/s/GPU): 123.4 | energy per GPU (J/iter/GPU): 55.1 | power per"
    b" GPU (W/GPU): 601.5 | learning rate: 1.000000E-03 | global batch size:     4 | lm loss: 5.199335E+00 | "
    + COMMON,
    "0.16": b" [2026-02-26 10:00:00.123456] iteration        7/      20 | consumed samples:           28 | elapsed time"
    b" per iteration (ms): 92.4 | learning rate: 1.000000E-03 | global batch size:     4 | lm loss: 5.199335E+00 | "
    + COMMON,
    "0.18 without learning rate": b" [2026-06-26 10:00:00.123456] iteration        7/      20 | consumed samples:"
    b"           28 | elapsed time per iteration (ms): 92.4 | global batch size:     4 | lm loss: 5.199335E+00 |"
    b" load_balancing_loss: 1.000000E+00 | tokens per expert: 12.5 | " + COMMON,
    "OpenEuroLLM": b" [2025-08-01 10:00:00] iteration        7/      20 | consumed samples:           28 | elapsed time"
    b" per iteration (ms): 92.4 | throughput per GPU (TFLOP/s/GPU): 123.4 | Tokens per second per GPU (Tok/s/GPU):"
    b" 8123.4 | learning rate: 1.000000E-03 | global batch size:     4 | lm loss: 5.199335E+00 | " + COMMON,
    "DeepSpeed": b" iteration        7/      20 | consumed samples:           28 | consumed tokens:        28672 | elapsed"
    b" time per iteration (ms): 92.4 | learning rate: 1.000E-03 | global batch size:     4 | lm loss: 5.199335E+00 |"
    b" loss scale: 1.0 | grad norm: 0.908 | actual seqlen:  1024 | number of skipped iterations:   0 | number of nan"
    b" iterations:   0 | samples per second: 43.2 | TFLOPs: 88.10 |\n",
    "BigScience": b" iteration        7/      20 | consumed samples:           28 | consumed tokens:        28672 | elapsed"
    b" time per iteration (s): 0.0924 | learning rate: 1.000E-03 | global batch size:     4 | lm loss: 5.199335E+00 |"
    b" loss scale: 1.0 | grad norm: 0.908 | number of skipped iterations:   0 | number of nan iterations:   0 | samples"
    b" per second: 43.2 | TFLOPs: 88.10 |\n",
    "swiss-ai": b" [2025-08-01 10:00:00] iteration        7/      20 | consumed samples:           28 | consumed tokens:"
    b" 0.000B | elapsed time per iteration (ms): 92.4 | eta: 1 day, 2:03:04 | tokens/sec/gpu: 7012.5 | learning rate:"
    b" 1.000000E-03 | global batch size:     4 | lm loss: 5.199335E+00 | " + COMMON,
}
PREFIXES = (b"", b"[default0]:", b"[default3]: ", b"[node07:0]:", b"12: ", b"[rank3]: ")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("release", ITERATION_LINES)
def test_iteration_line_of_each_release(release: str, prefix: bytes) -> None:
    (record,) = parse_log(prefix + ITERATION_LINES[release])
    assert isinstance(record, IterationRecord)
    assert (record.iteration, record.train_iters, record.consumed_samples) == (7, 20, 28)
    assert record.elapsed_ms == 92.4
    assert record.loss == pytest.approx(5.199335)
    assert record.global_batch_size == 4
    assert record.grad_norm == 0.908
    assert (record.loss_scale, record.skipped_iterations, record.nan_iterations) == (1.0, 0, 0)
    assert record.learning_rate == (None if "without" in release else 1e-3)
    assert not record.torn
    assert not record.is_nan


def test_fields_of_some_releases_only() -> None:
    records = {name: parse_log(line)[0] for name, line in ITERATION_LINES.items()}
    assert records["0.5"].time is None
    assert records["0.8"].time == datetime(2024, 8, 1, 10)
    assert records["0.16"].time == datetime(2026, 2, 26, 10, 0, 0, 123456)
    assert records["0.8"].throughput == records["0.14"].throughput == 123.4
    assert records["DeepSpeed"].throughput == 88.10
    assert records["0.8"].extra == {"decoupled learning rate": 2e-3}
    assert records["0.9"].extra == {"skipped samples": 8, "num zeros": 12, "params norm": 33.125}
    assert records["0.14"].extra == {"energy per GPU (J/iter/GPU)": 55.1, "power per GPU (W/GPU)": 601.5}
    assert records["swiss-ai"].extra == {"tokens/sec/gpu": 7012.5}
    moe = records["0.18 without learning rate"]
    assert moe.losses == {"lm loss": pytest.approx(5.199335), "load_balancing_loss": 1.0}
    assert moe.extra == {"tokens per expert": 12.5}
    assert records["OpenEuroLLM"].extra == {"Tokens per second per GPU (Tok/s/GPU)": 8123.4}
    assert records["DeepSpeed"].extra["consumed tokens"] == 28672


def test_recorded_cpu_log() -> None:
    records = parse_log(CPU_LOG)
    iterations = [record for record in records if isinstance(record, IterationRecord)]
    # The recorded file holds one such line per iteration: count them another way.
    assert len(iterations) == len(re.findall(rb"iteration +\d+/ +20 \|", CPU_LOG)) == 20
    assert [record.iteration for record in iterations] == list(range(1, 21))
    assert iterations[-1].loss == pytest.approx(4.325816)
    assert iterations[-1].learning_rate == 0.0
    assert [
        (record.iteration, record.split, record.final, record.loss)
        for record in records
        if isinstance(record, ValidationRecord)
    ] == [
        (10, "validation", False, pytest.approx(4.822732)),
        (20, "validation", False, pytest.approx(4.306481)),
        (20, "validation", True, pytest.approx(4.266902)),
        (20, "test", True, pytest.approx(4.333656)),
    ]
    kinds = [record.kind for record in records if isinstance(record, MarkerRecord)]
    assert [kind for kind in kinds if kind is not MarkerKind.OTHER] == [
        MarkerKind.INITIALIZED,
        MarkerKind.MODEL_BUILT,
        MarkerKind.DATALOADERS_BUILT,
        MarkerKind.BEFORE_TRAINING,
        MarkerKind.TRAINING_DONE,
    ]
    assert [record for record in records if isinstance(record, CheckpointRecord)] == [
        CheckpointRecord(CheckpointEvent.SAVING, 10, "ck_up"),
        CheckpointRecord(CheckpointEvent.SAVED, 10, "ck_up"),
        CheckpointRecord(CheckpointEvent.SAVING, 20, "ck_up"),
        CheckpointRecord(CheckpointEvent.SAVED, 20, "ck_up"),
    ]
    assert {record for record in records if isinstance(record, ParameterCount) and record.ranks} == {
        ParameterCount("rank", 57664, (0, 0)),
        ParameterCount("rank", 57664, (1, 0)),
    }
    assert not [record for record in records if isinstance(record, ErrorRecord)]


def test_recorded_gpu_log_with_two_lines_in_one() -> None:
    records = parse_log(GPU_LOG)
    iterations = [record for record in records if isinstance(record, IterationRecord)]
    assert [record.iteration for record in iterations] == list(range(1, 51))
    assert not any(record.torn for record in iterations)
    assert [record.max_allocated for record in records if isinstance(record, MemoryRecord)] == [
        27489.13525390625
    ]
    assert ParameterCount("total", 1_560_000_000) in records
    assert ParameterCount("rank", 1557686400, (0, 0)) in records
    assert (
        CheckpointRecord(
            CheckpointEvent.RANDOM_START, None, "./sandbox_run/ckpt/latest_checkpointed_iteration.txt"
        )
        in records
    )


def test_memory_on_the_line_of_an_iteration() -> None:
    line = ITERATION_LINES["0.16"].rstrip(b"\n") + (
        b"[Rank 0] (after 1 iterations) memory (MB) | allocated: 27489.13 | max allocated: 27490.5 | reserved: 29562.0 |"
        b" max reserved: 29562.0 | total device memory used: 30001.50\n"
    )
    iteration, memory = parse_log(line)
    assert isinstance(iteration, IterationRecord)
    assert not iteration.extra
    assert memory == MemoryRecord(0, "after 1 iterations", 27489.13, 27490.5, 29562.0, 29562.0)


def test_two_iterations_on_one_line() -> None:
    first = ITERATION_LINES["0.16"].rstrip(b"\n")
    second = first.replace(b"iteration        7/", b"iteration        8/").replace(b"5.199335", b"5.100000")
    records = parse_log(first + second + b"\n")
    assert [(record.iteration, record.loss) for record in records] == [(7, 5.199335), (8, 5.1)]


def test_torn_line_gives_what_it_holds_and_is_no_nan() -> None:
    line = (
        ITERATION_LINES["0.16"].split(b"5.199335")[0]
        + b"5.19[Rank 1] (after 7 iterations) memory (MB) | allocated: 1 |\n"
    )
    record = parse_log(line)[0]
    assert isinstance(record, IterationRecord)
    assert record.torn
    assert record.learning_rate == 1e-3
    assert record.loss is None
    assert not record.is_nan


def test_nan_loss_drops_the_field() -> None:
    nan_line = ITERATION_LINES["0.16"].replace(b"lm loss: 5.199335E+00 | ", b"")
    (record,) = parse_log(nan_line)
    assert record.loss is None
    assert record.is_nan
    (counted,) = parse_log(nan_line.replace(b"nan iterations:   0", b"nan iterations:   1"))
    assert counted.is_nan
    (skipped,) = parse_log(nan_line.replace(b"skipped iterations:   0", b"skipped iterations:   1"))
    assert not skipped.is_nan


def test_nan_beside_a_load_balancing_loss() -> None:
    line = ITERATION_LINES["0.18 without learning rate"].replace(b"lm loss: 5.199335E+00 | ", b"")
    (record,) = parse_log(line)
    assert record.losses == {"load_balancing_loss": 1.0}
    assert record.is_nan


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b" validation loss at iteration 10 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | \n", (10, "validation", None, False)),
        (b" validation loss at iteration 20 on validation set | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | \n", (20, "validation", None, True)),
        (b" validation loss at iteration 20 on test set | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | \n", (20, "test", None, True)),
        (b" validation-1 loss at iteration 10 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | \n", (10, "validation", "1", False)),
        (b" validation-wiki-de loss at iteration 20 on test set | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | \n", (20, "test", "wiki-de", True)),
        (b" validation loss at the end of training for val data | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | \n", (None, "validation", None, True)),
        (b" validation loss at the end of training for test data | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | \n", (None, "test", None, True)),
    ],
)  # fmt: skip
def test_validation_lines(line: bytes, expected: tuple[object, ...]) -> None:
    (record,) = parse_log(b"[default0]:" + line)
    assert isinstance(record, ValidationRecord)
    assert (record.iteration, record.split, record.dataset, record.final) == expected
    assert record.losses == {"lm loss": 2.5}
    assert record.perplexities == {"lm loss": 12.0}


@pytest.mark.parametrize(
    ("line", "kind", "iteration", "minutes"),
    [
        (b"[after training is done] datetime: 2025-10-11 19:28:52 ", MarkerKind.TRAINING_DONE, None, None),
        (b"[before the start of training step] datetime: 2025-10-11 19:28:52.123456 ", MarkerKind.BEFORE_TRAINING, None, None),
        (b"[exiting program after receiving SIGTERM.] datetime: 2025-10-11 19:28:52 ", MarkerKind.EXITING_SIGNAL, None, None),
        (b"[exiting program after 1.503 minutes] datetime: 2025-10-11 19:28:52 ", MarkerKind.EXITING_DURATION, None, 1.503),
        (b"[exiting program after 1.5.3 minutes] datetime: 2025-10-11 19:28:52 ", MarkerKind.OTHER, None, None),
        (b"[exiting program at iteration 400] datetime: 2025-10-11 19:28:52 ", MarkerKind.EXITING_INTERVAL, 400, None),
        (b"[after in-job setup and before x] datetime: 2025-10-11 19:28:52 ", MarkerKind.OTHER, None, None),
        (b">> '--exit-on-missing-checkpoint' set ... exiting. <<", MarkerKind.EXITING_MISSING_CHECKPOINT, None, None),
        (
            b">> '--exit-on-missing-checkpoint' is set but no checkpoint was found under load directory '/ck' <<",
            MarkerKind.EXITING_MISSING_CHECKPOINT,
            None,
            None,
        ),
    ],
)  # fmt: skip
def test_markers(line: bytes, kind: MarkerKind, iteration: int | None, minutes: float | None) -> None:
    (record,) = parse_log(b"[default0]:" + line + b"\n")
    assert isinstance(record, MarkerRecord)
    assert (record.kind, record.iteration, record.minutes) == (kind, iteration, minutes)
    if b"datetime" in line:
        assert record.time is not None
        assert record.time.replace(microsecond=0) == datetime(2025, 10, 11, 19, 28, 52)


@pytest.mark.parametrize(
    ("line", "event", "iteration", "path"),
    [
        (b"saving checkpoint at iteration     500 to /s/my run/ck", "saving", 500, "/s/my run/ck"),
        (b"  successfully saved checkpoint at iteration     500 to /s/ck", "saved", 500, "/s/ck"),
        (b"saving checkpoint at iteration     500 to /s/ck in torch_dist format", "saving", 500, "/s/ck"),
        (b"  successfully saved checkpoint from iteration     500 to /s/ck", "saved", 500, "/s/ck"),
        (b"  successfully saved checkpoint from iteration     500 to /s/ck [ t 1/2, p 1/1 ]", "saved", 500, "/s/ck"),
        (b"  scheduled an async checkpoint save at iteration     500 to /s/ck", "scheduled", 500, "/s/ck"),
        (b"[2026-01-01 10:00:00.000001] saving checkpoint at iteration 12345678 to /s/ck in torch format", "saving", 12345678, "/s/ck"),
        (b"  [2026-01-01 10:00:00.000001] successfully saved checkpoint from iteration     500 to /s/ck [ t 1/1, gtp_remat 1/1, p 1/1 ]", "saved", 500, "/s/ck"),
        (b"  [2026-01-01 10:00:00.000001] successfully saved local checkpoint from iteration     500", "saved", 500, None),
        (b" loading checkpoint from /s/ck at iteration 500", "loading", 500, "/s/ck"),
        (b" loading distributed checkpoint from /s/ck at iteration 500", "loading", 500, "/s/ck"),
        (b" loading release checkpoint from /s/ck", "loading", None, "/s/ck"),
        (b"  successfully loaded checkpoint from /s/ck [ t 1/1, p 1/1 ] at iteration 500", "loaded", 500, "/s/ck"),
        (b"  successfully deleted checkpoint from iteration     400 at /s/ck", "deleted", 400, "/s/ck"),
    ],
)  # fmt: skip
def test_checkpoint_lines(line: bytes, event: str, iteration: int | None, path: str | None) -> None:
    assert parse_log(b"[node07:0]:" + line + b" \n") == [
        CheckpointRecord(CheckpointEvent(event), iteration, path)
    ]


def test_no_random_start_for_a_missing_non_persistent_checkpoint() -> None:
    text = b"WARNING: could not find the metadata file /x\n    will not load any non-persistent checkpoint\n"
    assert parse_log(text) == []


TRACEBACK = (
    b"%(p)sTraceback (most recent call last):\n"
    b'%(p)s  File "/opt/pretrain_gpt.py", line 3, in <module>\n'
    b"%(p)s    raise RuntimeError('this line quotes RuntimeError: inside')\n"
    b"%(p)s           ^^^^^^^^^^^^\n"
)


@pytest.mark.parametrize(
    ("line", "kind", "exception"),
    [
        (b"RuntimeError: shape '[1]' is invalid", ErrorKind.EXCEPTION, "RuntimeError"),
        (b"KeyboardInterrupt", ErrorKind.EXCEPTION, "KeyboardInterrupt"),
        (b"torch.distributed.DistStoreTimeout: no answer", ErrorKind.EXCEPTION, "torch.distributed.DistStoreTimeout"),
        (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of", ErrorKind.CUDA_OUT_OF_MEMORY, "torch.OutOfMemoryError"),
        (b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", ErrorKind.CUDA_OUT_OF_MEMORY, "torch.cuda.OutOfMemoryError"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", PREFIXES)
def test_last_line_of_a_traceback(line: bytes, kind: ErrorKind, exception: str, prefix: bytes) -> None:
    text = TRACEBACK % {b"p": prefix} + b"INFO:other process talks\n" + prefix + line + b"\n"
    for cut in (len(text), len(text) // 2, 40):
        parser = LogParser()
        records = parser.feed(text[:cut]) + parser.feed(text[cut:]) + parser.finish()
        assert [(record.kind, record.exception) for record in records] == [(kind, exception)]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"pretrain_gpt.py: error: unrecognized arguments: --foo", ErrorKind.USAGE),
        (b"srun: error: node1: task 0: Exited with exit code 1", ErrorKind.SLURM),
        (
            b"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-21T10:00:00 DUE TO TIME LIMIT ***",
            ErrorKind.SLURM,
        ),
        (b"slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.", ErrorKind.HOST_OUT_OF_MEMORY),
    ],
)
def test_errors_of_launchers(line: bytes, kind: ErrorKind) -> None:
    (record,) = parse_log(line + b"\n")
    assert isinstance(record, ErrorRecord)
    assert record.kind is kind
    assert line.decode() in record.message


def test_warnings_are_no_errors() -> None:
    text = (
        b"/opt/mlm/x.py:11: FutureWarning: KeyError handling changes\n  warnings.warn('RuntimeError: no')\n"
        b"WARNING:megatron:Error rate is low\nA page on Exception handling\n"
    )
    assert parse_log(text) == []


def test_bytes_that_are_no_text() -> None:
    text = b"\xff\xfe\x00\x00" + ITERATION_LINES["0.16"] + b"ValueError: caf\xe9\n"
    iteration, error = parse_log(text)
    assert isinstance(iteration, IterationRecord)
    assert isinstance(error, ErrorRecord)
    assert error.message == "caf\N{REPLACEMENT CHARACTER}"


def test_a_line_without_end_does_not_pile_up() -> None:
    parser = LogParser()
    for _ in range(40):
        assert parser.feed(b"#" * (1 << 16)) == []
    assert len(parser.finish()) == 0
    assert len(parser._pending) == 0


@pytest.mark.slow
@given(st.lists(st.integers(min_value=0, max_value=len(CPU_LOG)), max_size=20))
def test_chunks_do_not_matter(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(CPU_LOG)]
    parser = LogParser()
    records = []
    for start, end in itertools.pairwise(bounds):
        records += parser.feed(CPU_LOG[start:end])
    assert records + parser.finish() == parse_log(CPU_LOG)


@pytest.mark.slow
@given(
    st.lists(
        st.sampled_from([*ITERATION_LINES.values(), b"\n", b"|", b" iteration ", b"Error", b"\x00"])
        | st.binary()
    )
)
def test_any_bytes_are_read_without_error(parts: list[bytes]) -> None:
    text = b"".join(parts)
    whole = parse_log(text)
    complete = sum(text.count(line) for line in set(ITERATION_LINES.values()))
    assert sum(isinstance(record, IterationRecord) and not record.torn for record in whole) >= complete


@pytest.mark.parametrize("log", [CPU_LOG, GPU_LOG])
def test_grep_pattern_keeps_every_record(log: bytes) -> None:
    kept = subprocess.run(
        ["grep", "-aE", RECORD_LINES_ERE], input=log, capture_output=True, check=True
    ).stdout
    assert len(kept) < 0.8 * len(log)
    assert parse_log(kept) == parse_log(log)


@pytest.mark.parametrize(
    "loss", [b"5.2E+0[default0]:noise", b"5.2Estimated", b"5.2 iteration 3/4", b"0:01:02"]
)
def test_a_damaged_loss_ends_a_line(loss: bytes) -> None:
    (record,) = parse_log(ITERATION_LINES["0.16"].replace(b"5.199335E+00", loss))
    assert isinstance(record, IterationRecord)
    assert (record.learning_rate, record.loss, record.torn, record.is_nan) == (1e-3, None, True, False)


def test_grep_pattern_keeps_every_wording() -> None:
    lines = b"".join(b"noise\n" + line for line in ITERATION_LINES.values())
    lines += b"noise\n>> '--exit-on-missing-checkpoint' set ... exiting. <<\n"
    lines += b">> '--exit-on-missing-checkpoint' is set but no checkpoint was found <<\n"
    lines += (
        b"srun: error: node1: task 0: Exited with exit code 1\n[default0]:KeyError: 'x'\nfoo.SomeError: y\n"
    )
    lines += b"slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.\n"
    lines += b"    will not load any checkpoints and will start from random\n"
    kept = subprocess.run(
        ["grep", "-aE", RECORD_LINES_ERE], input=lines, capture_output=True, check=True
    ).stdout
    assert b"noise" not in kept
    assert parse_log(kept) == parse_log(lines)
    assert len(parse_log(kept)) == len(ITERATION_LINES) + 7


def iteration(number: int, loss: float = 1.0) -> IterationRecord:
    return IterationRecord(number, 100, number * 4, losses={"lm loss": loss})


def test_merge_drops_what_a_restart_threw_away() -> None:
    first = [iteration(number, 1.0) for number in (10, 20, 30, 40)]
    loaded = CheckpointRecord(CheckpointEvent.LOADED, 20, "/ck")
    second = [iteration(number, 2.0) for number in (21, 30, 50)]
    merged = merge_iterations([*first, loaded, *second])
    assert [(record.iteration, record.loss) for record in merged] == [
        (10, 1.0),
        (20, 1.0),
        (21, 2.0),
        (30, 2.0),
        (50, 2.0),
    ]


def test_merge_keeps_the_loaded_iteration() -> None:
    # Logged every 10 iterations: the first line after the load is the 40th, so 30 was lost though no line
    # repeats it.
    records = [
        iteration(10),
        iteration(20),
        iteration(30),
        CheckpointRecord(CheckpointEvent.LOADED, 25, None),
        iteration(40),
    ]
    assert [record.iteration for record in merge_iterations(records)] == [10, 20, 40]


def test_merge_keeps_the_curve_while_a_restart_has_not_logged() -> None:
    records = [iteration(10), iteration(20), CheckpointRecord(CheckpointEvent.LOADED, 10, None)]
    assert [record.iteration for record in merge_iterations(records)] == [10, 20]


def test_merge_starts_again_after_a_random_start() -> None:
    records = [
        iteration(10, 1.0),
        iteration(20, 1.0),
        CheckpointRecord(CheckpointEvent.RANDOM_START, None, None),
        iteration(30, 9.0),
    ]
    assert [(record.iteration, record.loss) for record in merge_iterations(records)] == [(30, 9.0)]


@given(st.lists(st.integers(min_value=1, max_value=50)))
def test_merge_is_ascending_and_keeps_the_last(numbers: list[int]) -> None:
    records = [iteration(number, float(index)) for index, number in enumerate(numbers)]
    merged = merge_iterations(records)
    kept = [record.iteration for record in merged]
    assert kept == sorted(set(kept))
    for record in merged:
        last = max(index for index, number in enumerate(numbers) if number == record.iteration)
        assert record.loss == float(last)
        assert not math.isnan(record.loss)
    if numbers:
        assert kept[-1] == numbers[-1]


@pytest.mark.slow
@given(st.lists(st.sampled_from(sorted(ITERATION_LINES)), min_size=2, max_size=12))
def test_lines_of_several_layouts_read_as_alone(releases: list[str]) -> None:
    """Only the previous line determines how a line is matched."""
    records = parse_log(b"".join(ITERATION_LINES[release] for release in releases))
    assert records == [parse_log(ITERATION_LINES[release])[0] for release in releases]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("release", ITERATION_LINES)
def test_values_that_were_the_same_for_long_and_change(release: str, prefix: bytes) -> None:
    line = prefix + ITERATION_LINES[release]
    changed = [
        line,
        line.replace(b"loss scale: 1.0", b"loss scale: 65536.0").replace(
            b"skipped iterations:   0", b"skipped iterations:   3"
        ),
        line.replace(b"global batch size:     4", b"global batch size:    16"),
        line.replace(b"iteration        7/", b"iteration 123456789/"),
        line.replace(b"nan iterations:   0", b"nan iterations:   1").replace(
            b"lm loss: 5.199335E+00 | ", b""
        ),
        line.replace(b"92.4", b"11.25")
        .replace(b"5.199335E+00", b"nan")
        .replace(b"grad norm: 0.908", b"grad norm: inf"),
    ]
    log = [one for one in changed for _ in range(3)]
    alone = [parse_log(one)[0] for one in log]
    assert len({repr(record) for record in alone}) == len(changed)
    assert [repr(record) for record in parse_log(b"".join(log))] == [repr(record) for record in alone]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_what_stands_between_iterations_and_beside_them(prefix: bytes, end: bytes) -> None:
    """Iteration lines are not searched for other records; the text around them is, and keeps its position."""
    line = prefix + ITERATION_LINES["0.16"].rstrip()
    memory = b"[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 |"
    log = [
        *[line, line, line, line + memory, line + line.removeprefix(prefix), line],
        *[prefix + b"Traceback (most recent call last):", line, prefix + b"Diverged: the loss"],
        *[line + b" ValueError: not the beginning of a line", b"ValueError: x", line, line],
        *[prefix + b"  saving checkpoint at iteration      70 to /ck in torch_dist format", line[:-60], line],
    ]
    records = parse_log(end.join(log))
    short = {IterationRecord: "i", MemoryRecord: "m", ErrorRecord: "e", CheckpointRecord: "c"}
    assert "".join(short[type(record)] for record in records) == "iiiim" + "iii" + "ie" + "ie" + "iic" + "ii"
    assert [record.torn for record in records if isinstance(record, IterationRecord)].index(True) == 11
    assert [record.exception for record in records if isinstance(record, ErrorRecord)] == [
        "Diverged",
        "ValueError",
    ]


def test_fields_appended_to_the_layout_before() -> None:
    line = ITERATION_LINES["0.16"]
    longer = line.replace(b"nan iterations:   0 |", b"nan iterations:   0 | samples per second: 43.2 |")
    records = parse_log(line + longer + line)
    assert [record.extra for record in records] == [{}, {"samples per second": 43.2}, {}]


def test_text_where_a_number_belongs_ends_only_its_line() -> None:
    line = ITERATION_LINES["0.16"]
    log = [line, line, line, line.replace(b"0.908", b"N/A"), line, line.replace(b"   28 |", b"   2x |"), line]
    records = parse_log(b"".join(log))
    assert [record.torn for record in records] == [False, False, False, True, False, True, False]
    assert records == [record for one in log for record in parse_log(one)]


def test_what_follows_iterations_is_read_as_alone() -> None:
    line = ITERATION_LINES["0.16"]
    for other in (b"  ValueError: quoted, as it is indented\n", b" ValueError: said by a process\n"):
        assert parse_log(line * 3 + other)[3:] == parse_log(b"\n" + other)


@pytest.mark.parametrize(("size", "expected"), [(b"1.5.2", 1.5), (b".", None), (b".5", 0.5), (b"x", None)])
def test_memory_sizes_torn(size: bytes, expected: float | None) -> None:
    (record,) = parse_log(
        b"[Rank 0] (after 1 iterations) memory (MB) | allocated: " + size + b" | reserved: 2.0\n"
    )
    assert record == MemoryRecord(
        0, "after 1 iterations", expected, None, 2.0 if expected is not None else None, None
    )


PRIMUS = (
    b"[20251023 05:40:16][rank-7/8][INFO ] [-----trainer.py:1966] :  iteration       %d/      50 | "
    b"consumed samples:         2560 | elapsed time per iteration (ms): 6026.7/6080.2 | "
    b"hip mem usage/free/total/usage_ratio: 123.4GB/68.6GB/191.98GB/64.25%% | "
    b"throughput per GPU (TFLOP/s/GPU): 729.5/731.5 | tokens per GPU (tokens/s/GPU): 11000.1/10900.2 | "
    b"learning rate: 1.000000E-05 | global batch size:   128 | lm loss: 1.077362E+01 | loss scale: 1.0 | "
    b"grad norm: 4.1 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
"""As AMD's Primus writes: the value of this iteration, and the mean of those before."""


def test_pairs_of_values_and_means() -> None:
    parser = LogParser()
    records = parser.feed(b"".join(PRIMUS % number for number in range(1, 60)))
    assert [record.iteration for record in records] == list(range(1, 60))
    for record in records:
        assert (record.loss, record.learning_rate, record.throughput, record.elapsed_ms) == (
            10.77362,
            1e-5,
            729.5,
            6026.7,
        )
        assert not record.torn
    assert parser.unread_lines == 0


@pytest.mark.parametrize(
    "odd", [b"lots", b"1.2.3", b"-", b"", b"n/a", b"729.5/", b"1e", b"(729.5)", b"7 2", b"1_0x", b"\xff\xfe"]
)
def test_an_odd_field_costs_that_field_alone(odd: bytes) -> None:
    parser = LogParser()
    line = PRIMUS % 3
    records = parser.feed(PRIMUS % 1 + PRIMUS % 2 + line.replace(b"729.5/731.5", odd) + PRIMUS % 4)
    assert [record.loss for record in records] == [10.77362] * 4
    assert records[2].unread == ("throughput per GPU (TFLOP/s/GPU)",)
    assert parser.unread_lines == 1


@pytest.mark.parametrize(
    "odd", [b"lots", b"None", b"nan", b"-8", b"", b"7 2", b"1,280", b"1.2K", b"1.5", b"9" * 99, b"\xff"]
)
def test_an_odd_number_of_samples_costs_that_field_alone(odd: bytes) -> None:
    line = (PRIMUS % 3).replace(b"2560", odd)
    records = parse_log(PRIMUS % 1 + PRIMUS % 2 + line * 3 + PRIMUS % 4)
    assert [(record.iteration, record.loss) for record in records] == [
        (number, 10.77362) for number in (1, 2, 3, 3, 3, 4)
    ]
    # as many as so many batches of 128 hold
    assert (records[2].consumed_samples, records[2].unread) == (384, ("consumed samples",))
    assert records[2] == records[4] == parse_log(line)[0]


@pytest.mark.parametrize("same", [b"2560.0", b"2.56e3"])
def test_a_number_of_samples_in_another_notation(same: bytes) -> None:
    (record,) = parse_log((PRIMUS % 3).replace(b"2560", same))
    assert (record.consumed_samples, record.unread, record.torn) == (2560, (), False)


@pytest.mark.parametrize("name", [b"global batch size", b"number of skipped iterations"])
@pytest.mark.parametrize("odd", [b"-5", b"1.5", b"1e30", b"1e400", b"-inf", b"nan", b"9" * 19, b"9" * 60])
def test_a_count_that_is_none_costs_that_field_alone(name: bytes, odd: bytes) -> None:
    line = re.sub(rb"(%s: +)\d+" % name, rb"\g<1>" + odd, PRIMUS % 3)
    records = parse_log(PRIMUS % 1 + PRIMUS % 2 + line * 2 + PRIMUS % 4)
    assert [record.loss for record in records] == [10.77362] * 5
    for record in records[2:4]:
        assert record.unread == (name.decode(),)
        assert (record.global_batch_size, record.skipped_iterations) in ((None, 0), (128, None))


@pytest.mark.parametrize("same", [b"128.0", b"1.28e2"])
def test_a_batch_size_in_another_notation(same: bytes) -> None:
    (record,) = parse_log((PRIMUS % 3).replace(b"  128 |", same + b" |"))
    assert (repr(record.global_batch_size), record.unread) == ("128", ())


def test_a_line_without_samples_and_batch_is_none_of_an_iteration() -> None:
    line = (PRIMUS % 3).replace(b"2560", b"lots")
    assert parse_log(line.replace(b"  128 |", b"  many |")) == []


@pytest.mark.parametrize("value", [b"a|b", b"a | b", b"[1|2]", b"1.0|2.0", b"|", b"a|b: 1", b"x || y"])
@pytest.mark.parametrize("after", [b" lm loss:", b" number of nan iterations:"])
def test_a_bar_in_a_value_costs_that_field_alone(value: bytes, after: bytes) -> None:
    line = (PRIMUS % 3).replace(after, b" note: " + value + b" |" + after)
    records = parse_log(PRIMUS % 1 + line * 3 + PRIMUS % 4)
    assert [(record.loss, record.grad_norm, record.nan_iterations) for record in records] == [
        (10.77362, 4.1, 0)
    ] * 5


def test_a_torn_line_takes_no_field_of_another_process() -> None:
    begin, _, _ = (PRIMUS % 3).partition(b" lm loss")
    _, found, rest = (PRIMUS % 4).replace(b"1.077362E+01", b"9.9").partition(b" learning rate")
    for text in (b"[default1]: x |", b" | "):
        (record,) = parse_log(begin + text + found + rest)
        assert (record.learning_rate, record.loss) == (1e-5, None), text


@pytest.mark.parametrize(
    "line",
    [
        b" loading checkpoint from /a at iteration " + b"9" * 5000,
        b"iteration " + b"9" * 4000 + b"/ 10 | consumed samples: 1 |",
        b"iteration 1/ 10 | consumed samples: " + b"9" * 4000 + b" | lm loss: 1 |",
        b"iteration 1/ 10 | consumed samples: 1e400 | lm loss: nan |",
        b"number of parameters on (tensor, pipeline) model parallel rank (1,,2): 5",
        b"number of parameters on (tensor, pipeline) model parallel rank ( , ): 5",
        b"[exiting program at iteration " + b"9" * 150 + b"] datetime: 2026-99-99 99:99:99",
        b"saving checkpoint at iteration " + b"1" * 30 + b" to /x",
        b"Number of parameters in billions: " + b"9" * 400 + b".1",
        b"[Rank " + b"1" * 100 + b"] (x) memory (MB) | allocated: 1",
    ],
)
def test_malformed_numbers_are_ignored(line: bytes) -> None:
    good = b"saving checkpoint at iteration 5 to /x in torch_dist format\n"
    records = parse_log(line + b"\n" + good)
    assert records[-1] == CheckpointRecord(CheckpointEvent.SAVING, 5, "/x")


def test_a_long_line_is_cut_and_hides_nothing_after_it() -> None:
    record = b"saving checkpoint at iteration 5 to /x\n"
    bar = b"\r".join(b"%d%% |####|" % number for number in range(3000))
    for text in (b"x" * 100_000 + b"\n" + record, bar + b"\r" + record, bar + b"\n" + record):
        for size in (7000, 1 << 20):
            parser = LogParser()
            records = [
                found for at in range(0, len(text), size) for found in parser.feed(text[at : at + size])
            ]
            assert [item.iteration for item in records] == [5]
