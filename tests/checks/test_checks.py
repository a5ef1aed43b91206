"""Errors and warnings of the checks before submission, and valid specs without any."""

from __future__ import annotations

import pytest
from checked_chain import TRUNK, alps, changed, checked, errors_of, line_of

from airflow_megatron.checks.findings import Finding, problems_of
from airflow_megatron.checks.sweeps.names import name_findings, template_findings
from airflow_megatron.checks.trainings.checkpoints import SavedCheckpoints
from airflow_megatron.megatron.commands.commands import leaves_checkpoints
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.model.schema import TrainerSection
from airflow_megatron.spec.spec_files import load_sweep_text

COMMAND = """\
name: study
cluster: local
point: only
stages:
  run:
    kind: command
    VALUES
    command: [echo, hello]
    slurm: {time: 10m}
"""


@pytest.mark.slow
def test_a_good_sweep_passes_without_a_word() -> None:
    plan = checked(TRUNK)
    assert plan.warnings == ()
    assert len(plan.jobs) == 2 * 4


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ("params: {x: .inf}", "x is inf"),
        ("params: {x: [1, {y: .nan}]}", "x is [1, {'y': nan}]"),
        ('params: {x: "{{ 1e200 * -1e200 }}"}', "x is -inf"),
        ("params: {x: 'inf'}", ""),
    ],
)
def test_numbers_that_no_database_holds_are_refused(values: str, shown: str) -> None:
    text = COMMAND.replace("VALUES", values)
    problems = errors_of(text) if shown else list(checked(text).warnings)
    assert [problem.line for problem in problems] == [line_of(text, values)] * bool(shown)
    for problem in problems:
        assert problem.message == (
            f"stage run at point only: {shown}, and Airflow stores no infinite numbers and no NaN"
        )
        assert problem.hint == "write a finite number, or text in quotes: 'inf'"


def test_a_number_that_no_database_holds_is_counted_at_every_point() -> None:
    axes = "sweep: {params: {z: [.nan, 1], y: [1, 2, 3]}}\n"
    (problem,) = errors_of(
        COMMAND.replace("point: only", 'point: "y{{ y }}_z{{ z }}"').replace("    VALUES\n", "") + axes
    )
    assert "stage run at point y1_znan: z is nan" in problem.message
    assert problem.message.endswith("; the same at 2 more points")


def test_one_value_that_several_stages_get_is_one_error() -> None:
    text = changed(("time: 6h}", "time: 6h, options: [--job-name=x]}"))
    (problem,) = errors_of(text)
    assert problem.line == line_of(text, "slurm: ")
    assert problem.message == (
        "stage pretrain at point lr0.001: slurm.options hold --job-name=x, which a job may not set; the same at 1 more"
        " point and in 3 more stages"
    )


@pytest.mark.parametrize(
    ("option", "message", "hint"),
    [
        (
            "--time-min=2h",
            "slurm.options hold --time-min=2h, which sbatch refuses",
            "write minutes or [days-]hours:minutes:seconds: 06:00:00",
        ),
        # options that a field sets too
        (
            "-N two",
            "slurm.options hold -N two, which sbatch refuses",
            "write a number, or the smallest and the largest: 2 or 2-4",
        ),
        (
            "--cpus-per-task=0",
            "slurm.options hold --cpus-per-task=0, which sbatch refuses",
            "write a number of 1 or more",
        ),
        (
            "--mem=10 gig",
            "slurm.options hold gig, which a job may not set",
            "remove gig, or quote a value with blanks",
        ),
    ],
)
def test_a_value_of_an_option_that_sbatch_refuses(option: str, message: str, hint: str) -> None:
    text = changed(("time: 6h}", f"time: 6h, options: ['{option}']}}"))
    (problem,) = errors_of(text)
    assert problem.line == line_of(text, "slurm: ")
    assert f"{message};" in problem.message
    assert problem.hint == hint


@pytest.mark.parametrize(
    ("option", "hint"), [("#SBATCH --exclusive", "write --exclusive"), ("#SBATCH", "remove it")]
)
def test_a_whole_line_of_a_script_among_the_options(option: str, hint: str) -> None:
    text = changed(("time: 6h}", f"time: 6h, options: ['{option}']}}"))
    (problem,) = errors_of(text)
    assert problem.line == line_of(text, "slurm: ")
    assert f"slurm.options hold {option!r}, which sbatch reads as a comment;" in problem.message
    assert problem.hint == hint


@pytest.mark.parametrize(
    ("option", "what", "hint"),
    [
        ("# --nice=5", "'# --nice=5', a comment", "write --nice=5, or remove it"),
        ("# low priority", "'# low priority', a comment", "remove it"),
        ("", "an empty text", "remove it"),
    ],
)
def test_an_option_without_effect(option: str, what: str, hint: str) -> None:
    text = changed(("time: 6h}", f"time: 6h, options: ['{option}']}}"))
    warning, *_ = checked(text).warnings
    assert f"slurm.options hold {what}, which has no effect" in str(warning)
    assert hint in str(warning)


@pytest.mark.slow
def test_a_value_with_blanks_in_quotes_is_one_value() -> None:
    assert errors_of(changed(("time: 6h}", "time: 6h, options: ['--licenses=\"a b\"']}"))) == []


def test_the_same_text_in_two_places_is_two_errors() -> None:
    options = "slurm: {options: [--job-name=x]}\n    "
    text = changed(
        (
            "    megatron:\n      train_iters: 300\n      lr_decay_iters: 360",
            f"    {options}megatron:\n      train_iters: 300\n      lr_decay_iters: 360",
        ),
        ("    start: {checkpoint", f"    {options}start: {{checkpoint"),
    )
    assert [problem.message.partition(" at ")[0] for problem in errors_of(text)[:2]] == [
        "stage pretrain",
        "stage cooldown",
    ]


class TestCheckpoints:
    @pytest.mark.parametrize(
        ("pairs", "message", "hint"),
        [
            (
                [("checkpoint: 240", "checkpoint: 250")],
                "needs checkpoint 250 of pretrain, which saves every 60 iterations only",
                "pretrain saves 240 and 300",
            ),
            (
                [("checkpoint: 240", "checkpoint: 30")],
                "needs checkpoint 30 of pretrain, which saves every 60 iterations only",
                "pretrain saves 60 and 120",
            ),
            (
                [
                    ("checkpoint: 240", "checkpoint: 360"),
                    (
                        "train_iters: 300\n      lr_decay_iters: 300",
                        "train_iters: 400\n      lr_decay_iters: 400",
                    ),
                ],
                "needs checkpoint 360 of pretrain, which ends at iteration 300",
                "pretrain saves 240 and 300",
            ),
            (
                [
                    (
                        "      lr_wsd_decay_iters: 60\n      save_interval: 60\n",
                        "      lr_wsd_decay_iters: 60\n",
                    )
                ],
                "needs checkpoint 240 of pretrain, which has no save_interval and saves none before its end",
                "pretrain saves 300",
            ),
            (
                [
                    (
                        "      save_interval: 60\n  cooldown",
                        "      save_interval: 60\n      save_retain_interval: 180\n  cooldown",
                    )
                ],
                "needs checkpoint 240 of pretrain, whose save_retain_interval of 180 deletes it as soon as the next",
                "use a multiple of 180, or save_retain_interval: 60",
            ),
        ],
        ids=["between", "too-early", "after-the-end", "never-saved", "deleted"],
    )
    def test_one_that_is_not_there(self, pairs: list[tuple[str, str]], message: str, hint: str) -> None:
        text = changed(*pairs)
        (problem,) = [problem for problem in errors_of(text) if "checkpoint" in problem.message]
        assert problem.message.startswith(f"stage cooldown at point lr0.001: {message}")
        assert problem.message.endswith("; the same at 1 more point")
        assert problem.hint == hint
        assert (problem.file, problem.line) == ("s.yaml", line_of(text, "checkpoint: "))

    @pytest.mark.slow
    def test_the_last_one_is_always_saved(self) -> None:
        text = changed(
            ("train_iters: 300\n      lr_decay_iters: 360", "train_iters: 290\n      lr_decay_iters: 360")
        )
        assert errors_of(text.replace("checkpoint: 240", "checkpoint: 290")) == []

    def test_nothing_to_train(self) -> None:
        (problem,) = errors_of(changed(("checkpoint: 240", "checkpoint: 300")))
        assert (
            "starts at iteration 300 and ends at train_iters 300: there is nothing to train"
            in problem.message
        )

    def test_iteration_zero(self) -> None:
        """The result for a cooldown with too few iterations, which would start from any existing checkpoint."""
        (problem,) = errors_of(changed(("checkpoint: 240", 'checkpoint: "{{ train_iters - 360 }}"')))
        assert "whole number from 1" in problem.message

    def test_of_a_branch_that_starts_later(self) -> None:
        text = changed(
            (
                "  convert:",
                """\
  second:
    kind: train
    parent: cooldown
    start: {checkpoint: 180}
    megatron: {train_iters: 360, lr_decay_iters: 300, override_opt_param_scheduler: true, lr_wsd_decay_iters: 60}
  convert:""",
            )
        )
        assert any(
            "needs checkpoint 180 of cooldown, which itself starts at iteration 240" in problem.message
            for problem in errors_of(text)
        )

    def test_a_conversion_of_one_that_is_not_saved(self) -> None:
        text = changed(("slurm: {nodes: 1", "params: {iteration: 250}\n    slurm: {nodes: 1"))
        problems = errors_of(text)
        assert {problem.line for problem in problems} == {line_of(text, "iteration: 250")}
        assert "stage cooldown.convert at point lr0.001: needs checkpoint 250 of cooldown" in str(problems[0])

    @pytest.mark.slow
    def test_a_condition_that_can_do_without(self) -> None:
        either = changed(("start: {checkpoint: 240}", "start: {any: [{checkpoint: 250}, {log: done}]}"))
        assert errors_of(either) == []
        both = changed(("start: {checkpoint: 240}", "start: {all: [{checkpoint: 250}, {log: done}]}"))
        assert "needs checkpoint 250 of pretrain" in str(errors_of(both)[0])

    @pytest.mark.slow
    def test_working_on_each_while_some_are_deleted(self) -> None:
        text = changed(
            (
                "      save_interval: 60\n  cooldown",
                "      save_interval: 60\n      save_retain_interval: 120\n  cooldown",
            ),
            ("parent: [pretrain, cooldown]", "parent: pretrain\n    each_checkpoint: true"),
        )
        (warning,) = checked(text).warnings
        assert (
            "save_retain_interval of pretrain deletes checkpoints that are not multiples of 120"
            in warning.message
        )
        assert (
            checked(text.replace("each_checkpoint: true", "each_checkpoint: {spacing: 120}")).warnings == ()
        )

    @pytest.mark.parametrize(
        ("run", "iteration", "near"),
        [
            (SavedCheckpoints("a", 0, 100, 10, None), 55, [50, 60]),
            (SavedCheckpoints("a", 0, 100, 10, 50), 30, [50, 100]),
            (SavedCheckpoints("a", 40, 100, 10, None), 20, [50, 60]),
            (SavedCheckpoints("a", 0, None, None, None), 20, []),
            (SavedCheckpoints("a", 0, 95, 10, None), 200, [90, 95]),
        ],
    )
    def test_nearest(self, run: SavedCheckpoints, iteration: int, near: list[int]) -> None:
        assert run.nearest(iteration) == near


class TestSchedules:
    @pytest.mark.parametrize(
        ("pairs", "message"),
        [
            (
                [("lr_warmup_iters: 10", "lr_warmup_iters: 360")],
                "lr_warmup_iters 360 is not below lr_decay_iters 360 (shorten the warm-up, or train longer)",
            ),
            (
                [("lr_warmup_iters: 10", "lr_warmup_fraction: 1.0")],
                "lr_warmup_fraction 1 is not below lr_decay_iters 360",
            ),
            (
                [
                    (
                        "      lr_decay_iters: 360\n      lr_wsd_decay_iters: 60\n",
                        "      lr_decay_iters: 360\n",
                    )
                ],
                "the style WSD needs lr_wsd_decay_iters (add lr_wsd_decay_iters: 72)",
            ),
            (
                [
                    (
                        "lr_decay_iters: 360\n      lr_wsd_decay_iters: 60",
                        "lr_decay_iters: 360\n      lr_wsd_decay_iters: 361",
                    )
                ],
                "the WSD decay of 361 iterations is longer than the whole schedule of 360 (lr_wsd_decay_iters of at",
            ),
            (
                [("      override_opt_param_scheduler: true\n", "")],
                "its schedule differs from that of the checkpoint it loads (lr_decay_iters differs), which Megatron",
            ),
        ],
        ids=["warmup", "fraction", "no-decay", "too-long", "refused"],
    )
    def test_what_cannot_run(self, pairs: list[tuple[str, str]], message: str) -> None:
        problems = errors_of(changed(*pairs))
        assert any(
            message in str(problem).replace("; the same at 1 more point", "") for problem in problems
        ), problems

    @pytest.mark.parametrize("trainer", ["megatron_lm", "megatron_core"])
    def test_a_training_that_saves_nothing(self, trainer: str) -> None:
        """The launch commands of benchmarks have --save-interval 0 and no --save."""
        head, stages = TRUNK.split("  cooldown:")
        alone = changed(
            ("name: trunk\n", f"name: trunk\ntrainer: {trainer}\n"),
            ("save_interval: 60", "save_interval: 0"),
            text=head,
        )
        trainers = {"megatron_lm": TrainerSection(checkout="/opt/megatron")}
        cluster = alps().model_copy(update={"trainers": trainers})
        for job in checked(alone, cluster).jobs:
            assert not {"--save", "--save-interval", "--load", "--exit-signal-handler"} & set(job.command)
            assert not leaves_checkpoints(job)
        (problem, *_) = errors_of(alone + "  cooldown:" + stages, cluster)
        assert "needs checkpoint 240 of pretrain, which saves nothing (save_interval: 0)" in str(problem)
        assert leaves_checkpoints(checked(TRUNK).jobs[0])

    @pytest.mark.slow
    def test_a_trunk_without_decay(self) -> None:
        """Upstream asserts only that the decay is given: with 0 the rate stays at its peak to the end."""
        text = changed(("lr_decay_iters: 360\n      lr_wsd_decay_iters: 60", "lr_wsd_decay_iters: 0"))
        text = text.replace("lr_warmup_iters: 10", "lr_warmup_iters: 0")
        assert [str(warning) for warning in checked(text).warnings if "WSD" in warning.message] == []

    @pytest.mark.slow
    def test_upstream_begins_in_the_middle_of_a_decay_that_is_too_long(self) -> None:
        long = (
            "lr_decay_iters: 360\n      lr_wsd_decay_iters: 60",
            "lr_decay_iters: 360\n      lr_wsd_decay_iters: 361",
        )
        text = changed(("name: trunk\n", "name: trunk\ntrainer: megatron_lm\n"), long)
        trainers = {"megatron_lm": TrainerSection(checkout="/opt/megatron")}
        warnings = checked(text, alps().model_copy(update={"trainers": trainers})).warnings
        assert any("longer than the whole schedule" in warning.message for warning in warnings)

    @pytest.mark.slow
    def test_a_tail_at_the_minimum(self) -> None:
        """The shape of a sweep whose decay forgets that lr_decay_iters counts the warm-up."""
        text = changed(("lr_decay_iters: 300", 'lr_decay_iters: "{{ train_iters - lr_warmup_iters }}"'))
        warning = next(warning for warning in checked(text).warnings if "min_lr" in warning.message)
        assert "the last 10 of 300 iterations run at min_lr (0): lr_decay_iters is 290" in warning.message
        assert warning.hint == "lr_decay_iters: 300"
        assert warning.line == line_of(text, 'lr_decay_iters: "')

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("style", "decay", "message"),
        [
            ("cosine", 400, "where the cosine decay to 400 is still at 15% of the peak"),
            ("linear", 400, "where the linear decay to 400 is still at 26% of the peak"),
            ("linear", 200, "the last 100 of 300 iterations run at min_lr"),
            ("cosine", 300, ""),
            ("constant", 200, ""),
            ("inverse-square-root", 400, ""),
        ],
    )
    def test_other_styles(self, style: str, decay: int, message: str) -> None:
        text = f"""\
point: p
megatron: {{lr: 1e-3, lr_decay_style: {style}, lr_warmup_iters: 10, lr_decay_iters: {decay}, train_iters: 300,
  num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 128,
  mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 100, seq_length: 128,
  micro_batch_size: 1, save_interval: 10}}
stages: {{pretrain: {{kind: train}}}}
"""
        warnings = checked(text).warnings
        assert len(warnings) == bool(message)
        assert all(message in warning.message for warning in warnings)

    def test_trainings_counted_in_samples(self) -> None:
        text = """\
point: p
megatron:
  {lr: 1e-3, lr_decay_style: cosine, train_samples: 1000, lr_decay_samples: 900, lr_warmup_samples: 10,
   num_layers: 2, hidden_size: 64, num_attention_heads: 2, seq_length: 64, max_position_embeddings: 64,
   micro_batch_size: 1, mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 100, save_interval: 10}
trainer: megatron_lm
stages: {pretrain: {kind: train}}
"""
        cluster = alps().model_copy(
            update={"trainers": {"megatron_lm": TrainerSection(checkout="/opt/fork")}}
        )
        (warning,) = checked(text, cluster).warnings
        assert "the last 100 of 1000 samples run at min_lr" in warning.message

    @pytest.mark.slow
    def test_a_decay_that_is_cut_off(self) -> None:
        text = changed(("lr_decay_iters: 300", "lr_decay_iters: 330"))
        messages = [warning.message for warning in checked(text).warnings]
        assert any(
            "the WSD decay from 270 to 330 is cut off by the end of the training at 300" in one
            for one in messages
        )

    @pytest.mark.slow
    def test_a_decay_within_the_warm_up(self) -> None:
        text = changed(("lr_warmup_iters: 10", "lr_warmup_iters: 250"))
        warnings = [warning for warning in checked(text).warnings if "begins at" in warning.message]
        assert len(warnings) == 1
        assert "the WSD decay begins at 240, before the warm-up ends at 250" in warnings[0].message
        assert warnings[0].hint == "lr_wsd_decay_iters of at most 50"

    @pytest.mark.parametrize(
        ("style", "warmup", "end"),
        [
            (
                "cosine",
                "lr_warmup_samples: 4000",
                "warm-up of 4000 samples: the learning rate never exceeds",
            ),
            ("linear", "lr_warmup_samples: 100001", "never exceeds 0.1%"),
            ("linear", "lr_warmup_samples: 4000", "never exceeds 2.5%"),
            ("constant", "lr_warmup_samples: 101", "never exceeds 99%"),
            ("inverse-square-root", "lr_warmup_samples: 200", "never exceeds 50%"),
            ("cosine", "lr_warmup_fraction: 0.5", "warm-up of 100000 samples"),
            (
                "WSD, lr_wsd_decay_samples: 10, lr_wsd_decay_style: linear",
                "lr_warmup_samples: 400",
                "never exceeds 25%",
            ),
        ],
    )
    def test_a_training_that_ends_inside_its_warm_up(self, style: str, warmup: str, end: str) -> None:
        text = f"""\
point: p
megatron: {{lr: 1e-3, lr_decay_style: {style}, {warmup}, lr_decay_samples: 200000,
  train_samples: 100, num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 128,
  mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 100, seq_length: 128,
  micro_batch_size: 1, global_batch_size: 1, save_interval: 10}}
trainer: megatron_lm
stages: {{pretrain: {{kind: train}}}}
"""
        cluster = alps().model_copy(
            update={"trainers": {"megatron_lm": TrainerSection(checkout="/opt/fork")}}
        )
        (warning,) = checked(text, cluster).warnings
        assert "the training ends at 100, inside the warm-up" in warning.message
        assert end in warning.message
        assert warning.hint == "shorten the warm-up, or train longer"

    @pytest.mark.slow
    def test_a_branch_that_begins_within_its_decay(self) -> None:
        text = changed(
            (
                "lr_decay_iters: 300\n      lr_wsd_decay_iters: 60",
                "lr_decay_iters: 300\n      lr_wsd_decay_iters: 100",
            )
        )
        (warning,) = checked(text).warnings
        assert "the learning rate jumps from 100% to 52% of its peak at checkpoint 240" in warning.message
        assert warning.hint == "its decay begins at 200: start there"

    @pytest.mark.slow
    def test_a_learning_rate_of_its_own_is_no_jump(self) -> None:
        text = changed(
            (
                "lr_decay_iters: 300\n      lr_wsd_decay_iters: 60",
                "lr: 1e-5\n      lr_decay_iters: 300\n      lr_wsd_decay_iters: 100",
            )
        )
        assert checked(text).warnings == ()

    @pytest.mark.slow
    def test_a_schedule_that_has_no_effect(self) -> None:
        text = changed(("override_opt_param_scheduler", "use_checkpoint_opt_param_scheduler"))
        (warning,) = checked(text).warnings
        assert "keeps the schedule of pretrain: its own lr_decay_iters have no effect" in warning.message

    @pytest.mark.slow
    def test_weights_alone_bring_no_schedule(self) -> None:
        assert errors_of(changed(("override_opt_param_scheduler", "finetune"))) == []


class TestLimits:
    def test_within(self) -> None:
        assert checked(TRUNK, alps(max_nodes=2, max_time="6h", max_jobs=6, max_gpu_hours=194)).warnings == ()

    @pytest.mark.parametrize(
        ("limits", "message", "part"),
        [
            (
                {"max_nodes": 1},
                "stage pretrain at point lr0.001: requests 2 nodes; cluster alps allows 1 per job",
                "nodes: 2",
            ),
            (
                {"min_nodes": 4},
                "stage pretrain at point lr0.001: requests 2 nodes; cluster alps accepts jobs of 4 nodes or more",
                "nodes: 2",
            ),
            ({"max_time": "4h"}, "requests 06:00:00; cluster alps allows 04:00:00 per attempt", "time: 6h"),
            (
                {"max_gpu_hours": 100},
                "the sweep can take 194 GPU-hours (walltime × GPUs of 8 jobs); cluster alps allows 100",
                "time: 6h",
            ),
            ({"max_gpu_hours": 0.1}, "can take 194.0 GPU-hours (walltime", "time: 6h"),
        ],
    )
    def test_beyond(self, limits: dict[str, object], message: str, part: str) -> None:
        problems = errors_of(TRUNK, alps(**limits))
        assert any(
            message in problem.message and problem.line == line_of(TRUNK, part) for problem in problems
        ), problems

    def test_more_jobs_than_the_queue_takes(self) -> None:
        (warning,) = checked(TRUNK, alps(max_jobs=3)).warnings
        assert "up to 4 jobs can be due at once; cluster alps accepts 3" in warning.message
        assert "max_active_points: 1" in warning.hint
        assert checked(f"max_active_points: 1\n{TRUNK}", alps(max_jobs=3)).warnings == ()

    def test_a_sweep_that_keeps_itself_small_is_not_warned_about(self) -> None:
        assert checked(f"max_jobs: 3\n{TRUNK}", alps(max_jobs=3)).warnings == ()

    def test_polls_more_often_than_the_site_permits(self) -> None:
        cluster = alps().model_copy(update={"min_poll_interval": 60.0})
        text = f"{TRUNK}poll_interval: 5\n"
        (warning,) = checked(text, cluster).warnings
        assert warning.line == line_of(text, "poll_interval")
        assert warning.message == "poll_interval is 5; cluster alps is polled at most once every 60 s"
        assert warning.hint == "write 60 or more, or remove it"
        assert checked(TRUNK, cluster).warnings == ()
        assert checked(f"{TRUNK}poll_interval: 60\n", cluster).warnings == ()

    def test_jobs_without_a_walltime(self) -> None:
        text = changed((", time: 6h}", "}"))
        (warning,) = checked(text, alps(max_gpu_hours=10)).warnings
        assert warning.message == "4 jobs with GPUs have no walltime, so their GPU-hours are unknown"

    @pytest.mark.slow
    def test_of_the_chosen_points_only(self) -> None:
        sweep = load_sweep_text(TRUNK, "s.yaml")
        assert check_sweep(sweep, alps(max_gpu_hours=100), sweep.points[:1]).points == ("lr0.001",)


class TestNames:
    def jobs(self) -> list[Job]:
        return list(checked(TRUNK).jobs)

    def test_two_jobs_of_one_name(self) -> None:
        jobs = self.jobs()
        assert list(name_findings(jobs)) == []
        (finding,) = name_findings([*jobs, _copy(jobs[0])])
        assert finding.message == "two jobs are named 'trunk.lr0.001.pretrain'"

    def test_two_jobs_in_one_directory(self) -> None:
        jobs = self.jobs()
        (finding,) = name_findings([*jobs, _copy(jobs[0], name="another")])
        assert (
            "works in the directory of trunk.lr0.001.pretrain: /scratch/runs/trunk/lr0.001" in finding.message
        )

    @pytest.mark.parametrize("rest", ["{{ lr }}", "${LOGS}/x", "{% if x %}"])
    def test_templates_that_are_left(self, rest: str) -> None:
        job = self.jobs()[0]
        (finding,) = template_findings([_copy(job, run_dir=f"/scratch/{rest}")])
        assert not finding.warning
        assert "run_dir still contains" in finding.message
        (finding,) = template_findings([_copy(job, command=("echo", rest))])
        assert finding.warning

    def test_the_placeholder_of_each_checkpoint_is_not_an_iteration(self) -> None:
        text = changed(("parent: [pretrain, cooldown]", "parent: pretrain\n    each_checkpoint: true"))
        assert checked(text).warnings == ()


@pytest.mark.parametrize(
    ("iteration", "told"), [(240, None), (250, "saves every 60"), (400, "ends at iteration 300")]
)
def test_a_command_that_waits_for_a_checkpoint(iteration: int, told: str | None) -> None:
    stage = "  after:\n    kind: command\n    command: [x]\n    parent: pretrain\n"
    stage += f"    start: {{checkpoint: {iteration}}}\n"
    text = f"{TRUNK}{stage}"
    problems = errors_of(text)
    assert [problem.line for problem in problems] == [
        line_of(text, f"start: {{checkpoint: {iteration}}}")
    ] * bool(told)
    assert told is None or f"needs checkpoint {iteration} of pretrain, which {told}" in problems[0].message


@pytest.mark.slow
def test_fewer_samples_than_one_batch() -> None:
    trunk, _, _ = TRUNK.partition("  cooldown:")
    _, _, lengths = trunk.rpartition("megatron:\n")
    text = changed(
        (lengths, "      train_samples: 63\n      save_interval: 60\n"),
        ("WSD\n  lr_warmup_iters: 10", "constant"),
        text=trunk,
    )
    (problem,) = errors_of(text)
    assert "train_samples 63 is less than one batch of global_batch_size 64" in problem.message
    assert (problem.line, problem.hint) == (line_of(text, "train_samples"), "train_samples of 64 or more")
    assert errors_of(text.replace("63", "64")) == []


def _copy(job: Job, **values: object) -> Job:
    return Job.from_json({**job.to_json(), **values})


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "start: {checkpoint: 240}",
            "start: {any: [{checkpoint: 250}, {file: go}]}",
            "a condition that never holds",
        ),
        (
            "    start: {checkpoint",
            "    cancel: {checkpoint: 250, of: pretrain}\n    start: {checkpoint",
            "never holds",
        ),
        (
            "    start: {checkpoint",
            "    events: [{log: x, do: notify, when: {checkpoint: 250, of: pretrain}}]\n    start: {checkpoint",
            "never holds",
        ),
        ("start: {checkpoint: 240}", "start: {any: [{checkpoint: 240}, {file: go}]}", ""),
    ],
)
def test_checkpoints_that_conditions_ask_for(old: str, new: str, told: str) -> None:
    warnings = [problem.message for problem in checked(TRUNK.replace(old, new)).warnings]
    found = [message for message in warnings if "needs checkpoint 250 of pretrain" in message]
    assert len(found) == bool(told)
    assert all(told in message for message in found)


def test_a_stage_that_finishes_at_a_checkpoint_that_is_never_saved() -> None:
    text = TRUNK.replace("    start: {checkpoint", "    finish: {checkpoint: 250}\n    start: {checkpoint")
    (problem,) = errors_of(text)
    assert "needs checkpoint 250 of cooldown, which saves every 60 iterations only" in problem.message


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (
            "  logs: {kind: command, command: [x]}\n",
            "stage 'logs' works in logs/, where 'pretrain' keeps its files",
        ),
        (
            "  eval_results: {kind: train, megatron: {train_iters: 60, lr_wsd_decay_iters: 6}}\n",
            "stage 'eval_results' works in eval_results/, where 'pretrain' keeps its files",
        ),
        ("  prepare: {kind: command, command: [x]}\n", ""),
    ],
)
def test_a_stage_that_is_named_like_a_folder_of_a_training(stage: str, told: str) -> None:
    found = [problem.message for problem in errors_of(TRUNK + stage) if "where" in problem.message]
    assert len(found) == bool(told)
    assert all(told in message for message in found)


def test_an_error_is_not_hidden_by_a_warning_of_the_same_rule() -> None:
    sweep = load_sweep_text(TRUNK, "s.yaml")
    job = checked(TRUNK).jobs[0]
    findings = [
        Finding("rule", job, ("slurm",), "may be wrong", "", warning=True),
        Finding("rule", job, ("slurm",), "is wrong", ""),
    ]
    errors, warnings = problems_of(findings, sweep, alps())
    assert ["is wrong" in problem.message for problem in errors] == [True]
    assert ["may be wrong" in problem.message for problem in warnings] == [True]
