"""The trainer: log lines, schedule, checkpoints, resumption and exits."""

from __future__ import annotations

import math
import re
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from trainer_harness import ITERATION, VALIDATION, Data, Outcome, Trainer, pretrain_args

if TYPE_CHECKING:
    import subprocess

RECORDED = Path(__file__).parents[2] / "fixtures" / "logs" / "core_v0.16.1-cpu-tp2.log"


def test_log_lines_have_the_recorded_form(reference: tuple[Outcome, Path]) -> None:
    ours, recorded = reference[0].stdout, RECORDED.read_text(encoding="utf-8", errors="replace")
    for pattern in (
        ITERATION,
        VALIDATION,
        re.compile(r"^\[before the start of training step\] datetime: \S+ \d\d:\d\d:\d\d\.\d{6} $", re.M),
        re.compile(r"^\[after training is done\] datetime: \S+ \d\d:\d\d:\d\d\.\d{6} $", re.M),
        re.compile(
            r"^\[\S+ \S+\] saving checkpoint at iteration {6}\d\d? *\d? to \S+ in torch_dist format$", re.M
        ),
        re.compile(
            r"^  \[\S+ \S+\] successfully saved checkpoint from iteration +\d+ to \S+ \[ t 1/\d, p 1/1 \]$",
            re.M,
        ),
        re.compile(
            r"^ > number of parameters on \(tensor, pipeline\) model parallel rank \(0, 0\): \d+$", re.M
        ),
        re.compile(r"^Number of parameters in transformer block in billions: +\d+\.\d\d$", re.M),
        re.compile(r"^Total number of parameters in billions: \d+\.\d\d$", re.M),
        re.compile(
            r"^Theoretical memory footprints: weight and optimizer=\S+ MB, activation=\S+ MB, total=\S+ MB$",
            re.M,
        ),
        re.compile(
            r"^\[Rank 0\] \(after 1 iterations\) memory \(MB\) \| allocated: 0\.00 \| max allocated", re.M
        ),
    ):
        assert pattern.search(recorded), f"the recorded log has no {pattern.pattern}"
        assert pattern.search(ours), f"our log has no {pattern.pattern}"


def test_every_iteration_is_logged_once(reference: tuple[Outcome, Path]) -> None:
    found = [int(m["iteration"]) for m in ITERATION.finditer(reference[0].stdout)]
    assert found == list(range(1, 13))
    assert [line.consumed for line in reference[0].lines.values()] == [4 * i for i in range(1, 13)]


def test_order_at_the_end_of_a_run(reference: tuple[Outcome, Path]) -> None:
    text = reference[0].stdout
    marks = ["[after training is done]", "iteration 12 on validation set", "iteration 12 on test set"]
    positions = [text.index(mark) for mark in marks]
    assert positions == sorted(positions)


def wsd_rate(step: int, *, warmup: int, decay: int, wsd: int, high: float, low: float) -> float:
    """The learning rate that belongs to an iteration, from the formula (minus_sqrt decay)."""
    if warmup and step <= warmup:
        return high * step / warmup
    if step > decay:
        return low
    start = decay - wsd
    share = 1.0 if step <= start else 1.0 - math.sqrt((step - start) / wsd)
    return low + share * (high - low)


def test_learning_rate_follows_the_wsd_formula(reference: tuple[Outcome, Path]) -> None:
    for step, line in reference[0].lines.items():
        assert line.lr == f"{wsd_rate(step, warmup=3, decay=12, wsd=4, high=1e-2, low=1e-3):.6E}"


def test_checkpoint_layout(reference: tuple[Outcome, Path]) -> None:
    save = reference[1]
    assert (save / "latest_checkpointed_iteration.txt").read_text() == "12"
    for iteration in (4, 8, 12):
        names = {path.name for path in (save / f"iter_{iteration:07d}").iterdir()}
        assert {".metadata", "metadata.json", "common.pt", "__0_0.distcp"} <= names


def test_the_loss_falls(reference: tuple[Outcome, Path]) -> None:
    lines = reference[0].lines
    assert float(lines[12].loss) < float(lines[1].loss) - 1.0


def copy_checkpoints(save: Path, target: Path, last: int) -> Path:
    """Copy checkpoints up to an iteration, as a run that stopped there would have left them."""
    shutil.copytree(save, target)
    (target / "latest_checkpointed_iteration.txt").write_text(str(last))
    return target


def test_resumed_run_equals_the_uninterrupted_one(
    trainer: Trainer, data: Data, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    save = copy_checkpoints(reference[1], tmp_path / "checkpoints", 8)
    resumed = trainer.run("pretrain_gpt.py", *pretrain_args(data, save, ["--load", save]))
    assert resumed.status == 0, resumed.stderr
    assert f" loading distributed checkpoint from {save} at iteration 8\n" in resumed.stdout
    assert f"  successfully loaded checkpoint from {save} [ t 1/1, p 1/1 ] at iteration 8\n" in resumed.stdout
    assert resumed.lines == {i: line for i, line in reference[0].lines.items() if i > 8}
    wanted = reference[0].validations
    assert resumed.validations == {name: wanted[name] for name in resumed.validations}
    assert set(resumed.validations) == {"12", "12 on validation set", "12 on test set"}


def test_dropout_continues_where_it_was(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    dropout = ["--attention-dropout", 0.1, "--hidden-dropout", 0.1, "--num-workers", 1]
    whole = trainer.run("pretrain_gpt.py", *pretrain_args(data, tmp_path / "a", dropout))
    load = ["--load", tmp_path / "a", "--ckpt-step", 4]
    part = trainer.run("pretrain_gpt.py", *pretrain_args(data, tmp_path / "b", [*dropout, *load]))
    assert part.status == 0, part.stderr
    assert part.lines == {step: line for step, line in whole.lines.items() if step > 4}
    assert len(part.lines) == 8


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Read the output until a text appears; return the text read so far."""
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if text in line:
            return read
    raise AssertionError(f"no {text!r} in {read}")


def test_sigterm_saves_and_the_next_attempt_continues(
    trainer: Trainer, data: Data, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    save = tmp_path / "checkpoints"
    args = pretrain_args(data, save, ["--exit-signal-handler", "--load", save])
    process = trainer.start("pretrain_gpt.py", *args)
    # Early, while the model is being built: the signal must not be lost, and one iteration is done all the same.
    wait_for(process, "setting random seeds")
    process.send_signal(signal.SIGTERM)
    stopped = trainer.wait(process)
    assert stopped.status == 0, stopped.stderr
    assert re.search(
        r"^\[exiting program after receiving SIGTERM\.\] datetime: \S+ \S+ $", stopped.stdout, re.M
    )
    assert "after training is done" not in stopped.stdout
    assert stopped.stdout.index("successfully saved") < stopped.stdout.index("[exiting program")
    assert stopped.lines == {1: reference[0].lines[1]}
    resumed = trainer.run("pretrain_gpt.py", *args)
    assert resumed.status == 0, resumed.stderr
    assert resumed.lines == {i: line for i, line in reference[0].lines.items() if i > 1}
    assert resumed.validations == reference[0].validations


def test_another_exit_signal_in_the_middle(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    save = tmp_path / "checkpoints"
    args = pretrain_args(
        data, save, ["--exit-signal-handler", "--exit-signal", "SIGUSR2", "--train-iters", 5000]
    )
    process = trainer.start("pretrain_gpt.py", *args, "--save-interval", 5000, "--eval-interval", 5000)
    read = wait_for(process, "iteration        3/")
    process.send_signal(signal.SIGUSR2)
    stopped = trainer.wait(process)
    assert stopped.status == 0, stopped.stderr
    assert "exiting program after receiving SIGTERM." in stopped.stdout
    last = max(int(m["iteration"]) for m in ITERATION.finditer(read + stopped.stdout))
    assert (save / "latest_checkpointed_iteration.txt").read_text() == str(last)
    assert last < 5000


def test_exit_duration_and_interval(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    duration = trainer.run(
        "pretrain_gpt.py", *pretrain_args(data, tmp_path / "a", ["--exit-duration-in-mins", "0.001"])
    )
    assert duration.status == 0, duration.stderr
    assert re.search(r"^\[exiting program after \d+\.\d+ minutes\] datetime: ", duration.stdout, re.M)
    assert (tmp_path / "a" / "latest_checkpointed_iteration.txt").read_text() == "1"
    interval = trainer.run("pretrain_gpt.py", *pretrain_args(data, tmp_path / "b", ["--exit-interval", "5"]))
    assert interval.status == 0
    assert "[exiting program at iteration 5] datetime: " in interval.stdout
    assert (tmp_path / "b" / "latest_checkpointed_iteration.txt").read_text() == "5"


def test_cooldown_branches_from_an_intermediate_checkpoint(
    trainer: Trainer, data: Data, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    parent, own = reference[1], tmp_path / "cooldown_s7" / "checkpoints"
    schedule = ["--train-iters", 7, "--lr-warmup-iters", 0, "--lr-wsd-decay-iters", 3, "--save-interval", 2]
    schedule += ["--override-opt_param-scheduler"]
    cooldown = pretrain_args(data, own, [*schedule])
    first = trainer.run(
        "pretrain_gpt.py", *cooldown, "--load", parent, "--ckpt-step", 4, "--exit-interval", 6
    )
    assert first.status == 0, first.stderr
    assert (parent / "latest_checkpointed_iteration.txt").read_text() == "12"
    assert sorted(first.lines) == [5, 6]
    second = trainer.run("pretrain_gpt.py", *cooldown, "--load", own)
    assert second.status == 0, second.stderr
    lines = {**first.lines, **second.lines}
    assert sorted(lines) == [5, 6, 7]
    assert lines[5].loss == reference[0].lines[5].loss  # same weights, same data
    for step, line in lines.items():
        assert line.lr == f"{wsd_rate(step, warmup=0, decay=7, wsd=3, high=1e-2, low=1e-3):.6E}"
        assert line.consumed == 4 * step
    assert {path.name for path in own.glob("iter_*")} == {"iter_0000006", "iter_0000007"}


def test_changed_schedule_needs_the_override(
    trainer: Trainer, data: Data, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    extra = ["--load", reference[1], "--ckpt-step", 4, "--lr", "5e-3"]
    refused = trainer.run("pretrain_gpt.py", *pretrain_args(data, tmp_path / "a", extra))
    assert refused.status == 2
    assert "max_lr 0.01 (now 0.005)" in refused.stderr
    assert "--override-opt_param-scheduler" in refused.stderr
    lower = trainer.run(
        "pretrain_gpt.py", *pretrain_args(data, tmp_path / "b", [*extra, "--override-opt_param-scheduler"])
    )
    assert lower.lines[5].lr == "5.000000E-03"


def test_a_run_killed_while_saving_never_loads_the_torn_checkpoint(
    trainer: Trainer, data: Data, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    save = copy_checkpoints(reference[1], tmp_path / "checkpoints", 8)
    # The state after a kill during the save of iteration 12: data without metadata.json, and the old tracker.
    (save / "iter_0000012" / "metadata.json").unlink()
    resumed = trainer.run("pretrain_gpt.py", *pretrain_args(data, save, ["--load", save]))
    assert resumed.status == 0, resumed.stderr
    assert resumed.lines[12] == reference[0].lines[12]
    assert (save / "iter_0000012" / "metadata.json").is_file()
    (save / "iter_0000004" / "metadata.json").unlink()
    refused = trainer.run(
        "pretrain_gpt.py", *pretrain_args(data, tmp_path, ["--load", save, "--ckpt-step", 4])
    )
    assert refused.status == 2
    assert "iter_0000004 is incomplete: it has no metadata.json" in refused.stderr


def test_a_checkpoint_with_a_file_for_each_rank(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    rank = tmp_path / "old" / "iter_0000004" / "mp_rank_00"
    rank.mkdir(parents=True)
    (rank / "model_optim_rng.pt").write_bytes(b"weights")
    words = ["--load", tmp_path / "old", "--ckpt-step", 4]
    refused = trainer.run("pretrain_gpt.py", *pretrain_args(data, tmp_path / "own", words))
    assert refused.status == 2
    assert "iter_0000004 has the format torch, and this program loads torch_dist only" in refused.stderr


def test_finished_run_started_again_only_validates(
    trainer: Trainer, data: Data, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    save = copy_checkpoints(reference[1], tmp_path / "checkpoints", 12)
    again = trainer.run("pretrain_gpt.py", *pretrain_args(data, save, ["--load", save]))
    assert again.status == 0, again.stderr
    assert not again.lines
    assert "[after training is done]" in again.stdout
    assert "saving checkpoint" not in again.stdout
    assert again.validations["12 on test set"] == reference[0].validations["12 on test set"]


def test_validation_without_training_starts_with_the_first_samples(
    trainer: Trainer, data: Data, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    blend = [0.5, data.directory / "valid_text_document", 0.5, data.directory / "test_text_document"]
    words = ["--load", reference[1], "--skip-train", "--valid-data-path", *blend]
    outcomes = [
        trainer.run("pretrain_gpt.py", *pretrain_args(data, tmp_path, [*words, *more]))
        for more in ([], ["--finetune"])
    ]
    assert [outcome.status for outcome in outcomes] == [0, 0], outcomes[0].stderr
    continued, fresh = (outcome.validations for outcome in outcomes)
    assert continued["12 on validation set"] == fresh["0 on validation set"]


def test_data_suffice_after_a_change_to_smaller_batches(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    blend = [0.5, data.directory / "train_text_document", 0.5, data.directory / "valid_text_document"]
    args = pretrain_args(data, tmp_path / "c", ["--train-data-path", *blend])
    assert trainer.run("pretrain_gpt.py", *args, "--exit-interval", 8).status == 0
    smaller = ["--global-batch-size", 2, "--override-opt_param-scheduler"]
    outcome = trainer.run("pretrain_gpt.py", *args, "--load", tmp_path / "c", *smaller)
    assert outcome.status == 0, outcome.stderr
    assert outcome.lines[12].consumed == 40


def test_missing_checkpoint(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    empty = tmp_path / "none"
    args = pretrain_args(data, tmp_path / "own", ["--load", empty, "--train-iters", 5, "--exit-interval", 1])
    fresh = trainer.run("pretrain_gpt.py", *args)
    tracker = empty / "latest_checkpointed_iteration.txt"
    assert f"WARNING: could not find the metadata file {tracker}\n" in fresh.stdout
    assert "    will not load any checkpoints and will start from random\n" in fresh.stdout
    assert sorted(fresh.lines) == [1]
    refused = trainer.run("pretrain_gpt.py", *args, "--exit-on-missing-checkpoint")
    assert refused.status == 0
    assert ">> '--exit-on-missing-checkpoint' set ... exiting. <<" in refused.stdout
    assert not refused.lines


def test_retained_checkpoints_and_progress(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    extra = ["--save-interval", 2, "--save-retain-interval", 4, "--log-progress", "--log-throughput"]
    outcome = trainer.run(
        "pretrain_gpt.py", *pretrain_args(data, tmp_path / "c", [*extra, "--exit-interval", 8])
    )
    assert outcome.status == 0, outcome.stderr
    assert sorted(path.name for path in (tmp_path / "c").glob("iter_*")) == ["iter_0000004", "iter_0000008"]
    assert re.search(r"successfully deleted checkpoint from iteration {7}6 at", outcome.stdout)
    assert "throughput per GPU (TFLOP/s/GPU): " in outcome.stdout
    assert "Saved checkpoint\tIteration: 8" in (tmp_path / "c" / "progress.txt").read_text()


def test_use_checkpoint_args_and_finetune(
    trainer: Trainer, data: Data, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    short = pretrain_args(data, tmp_path / "own")
    del short[:4]  # number of layers, hidden size
    outcome = trainer.run(
        "pretrain_gpt.py",
        *short,
        "--use-checkpoint-args",
        "--load",
        reference[1],
        "--finetune",
        "--exit-interval",
        1,
    )
    assert outcome.status == 0, outcome.stderr
    assert sorted(outcome.lines) == [1]
    assert float(outcome.lines[1].loss) < float(reference[0].lines[1].loss) - 1.0


def test_nan_fails_with_a_traceback(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    outcome = trainer.run(
        "pretrain_gpt.py",
        *pretrain_args(data, tmp_path, ["--lr", "1e30", "--clip-grad", 0, "--lr-warmup-iters", 0]),
    )
    assert outcome.status == 1
    assert re.search(r"found (NaN|Inf) in local", outcome.stderr)
    assert "Traceback (most recent call last):" in outcome.stderr


def test_a_refused_command_line_prints_one_line_and_leaves_no_files(
    trainer: Trainer, data: Data, tmp_path: Path
) -> None:
    outcome = trainer.run("pretrain_gpt.py", *pretrain_args(data, tmp_path / "c", ["--save-intervall", "4"]))
    assert outcome.status == 2
    assert outcome.stderr == (
        "pretrain_gpt.py: error: this trainer has no argument '--save-intervall'; did you mean --save-interval or"
        " --save-retain-interval or --exit-interval?\n"
    )
    assert not (tmp_path / "c").exists()


def test_another_model_in_the_checkpoint(
    trainer: Trainer, data: Data, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    outcome = trainer.run(
        "pretrain_gpt.py", *pretrain_args(data, tmp_path, ["--load", reference[1], "--num-layers", 4])
    )
    assert outcome.status == 2
    assert "num_layers of the checkpoint" in outcome.stderr
