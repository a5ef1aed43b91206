"""AutoExperiment files as sweeps: points, stages, jobs, scripts, warnings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from autoexperiment_harness import CONFORMANCE
from processor_limits import processor_limit

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.slurm.submission.job_script import JobScriptError, render_job_script
from airflow_megatron.spec.dialects.autoexperiment import dialect as autoexperiment
from airflow_megatron.spec.dialects.recognition import is_autoexperiment
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.shipped_files import shipped
from airflow_megatron.spec.documents.yaml_document import load_yaml_file, load_yaml_text
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.spec_files import load_sweep, load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.dialects.autoexperiment.dialect import AutoExperimentSweep

SMALL = """\
cmd: "sbatch --nice=5 {sbatch_script}"
check_interval_secs: 60
lr: [1e-3, 2e-3]
mode:
  - train:
      template: train.sbatch
      termination_str: "step {steps} of"
  - eval:
      template: eval.sbatch
      start_condition_cmd: "test -e {logs}/{exp}/ckpt && echo 1 || echo 0"
      termination_cmd: "echo $(( $(ls {logs}/{exp}/*.json | wc -l) >= 1 ))"
steps: 10
logs: logs
exp: "lr{lr}"
output_file: "{logs}/{exp}/{mode}.out"
sbatch_script: "scripts/{name}.sbatch"
name: "{exp}_{mode}"
"""
TEMPLATE = """\
#!/bin/bash -x
#SBATCH --job-name={name}
#SBATCH --output={output_file}
echo ${{HOME}} {lr} {steps}
"""


@pytest.fixture
def cluster() -> ClusterProfile:
    return load_cluster("local")


def _load(text: str, file: str = "study.yaml") -> AutoExperimentSweep:
    document = load_yaml_text(text, file)
    assert is_autoexperiment(document)
    return autoexperiment.load(document)


@pytest.fixture
def small(tmp_path: Path) -> AutoExperimentSweep:
    for name in ("train.sbatch", "eval.sbatch"):
        (tmp_path / name).write_text(TEMPLATE, encoding="utf-8")
    return _load(SMALL, str(tmp_path / "study.yaml"))


@pytest.fixture(scope="module")
def scaling() -> AutoExperimentSweep:
    return autoexperiment.load(load_yaml_file(CONFORMANCE / "scaling_exps.yaml"))


def test_other_languages_are_not_recognised() -> None:
    for text in (
        "point: x\nstages: {a: {kind: train}}\n",
        "sweep: {type: product}\njob: {name: n}\nbackend: {}\n",
        "name: n\ncluster: local\n",
        "- 1\n",
    ):
        assert not is_autoexperiment(load_yaml_text(text, "x.yaml"))


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (
            "name: e_{LR}\ncmd: sbatch {sbatch_script}\nLR: [1, 2]\n",
            2,
            "cmd is a field of AutoExperiment, and as a file of that tool this one lacks output_file, sbatch_script",
        ),
        ("a:\n  - template: t.sh\n", 2, "this one lacks name, output_file, cmd, sbatch_script"),
        ("name: a\ntermination_str: done\n", 2, "termination_str is a field of AutoExperiment"),
        ("job: {base_output_dir: x}\n", 1, "job: is a section of oellm-autoexp"),
        ("slurm: {time: 1h}\nproject: {name: x}\n", 2, "project: is a section of oellm-autoexp"),
    ],
)
def test_the_tool_that_is_probably_meant(text: str, line: int, told: str) -> None:
    with pytest.raises(SpecError) as error:
        load_sweep_text(text, "x.yaml")
    (problem,) = error.value.problems
    assert problem.line == line
    assert told in problem.message
    assert problem.hint.endswith("or write a native spec, with point: and stages:")


@pytest.mark.parametrize(
    "text",
    [
        "name: a\n",
        "LR: [1, 2]\n",
        "point: p\ncmd: x\n",
        "cmd: x\nstages: {a: {kind: train}}\n",
        "cmd: x\nsweep: {lr: [1]}\n",
        "job: 5\n",
    ],
)
def test_errors_of_native_specs_stay(text: str) -> None:
    with pytest.raises(SpecError) as error:
        load_sweep_text(text, "x.yaml")
    assert not [
        problem for problem in error.value.problems if "oellm" in str(problem) or "AutoE" in str(problem)
    ]


@pytest.mark.parametrize("line", ["backend: nccl", "job: [a, b]", "stages: 4", "sweep: x"])
def test_words_of_other_languages_can_be_keys_of_ones_own(line: str) -> None:
    key = line.partition(":")[0]
    text = SMALL.replace('"{exp}_{mode}"', f'"{{exp}}_{{mode}}_{{{key}}}"') + f"{line}\n"
    assert len(_load(text).points) in (2, 4)


class TestScalingStudy:
    """1,080 jobs are 90 points × a tree of 12 stages."""

    def test_tree(self, scaling: AutoExperimentSweep) -> None:
        parents = {stage.name: stage.parent for stage in scaling.tree}
        expected: dict[str, str | None] = {
            "PRETRAIN_TRAIN": None,
            "PRETRAIN_CONVERT_EVAL": "PRETRAIN_TRAIN",
        }
        for scale in ("100M", "200M", "400M", "1B", "2B"):
            expected[f"COOLDOWN_{scale}_TRAIN"] = "PRETRAIN_TRAIN"
            expected[f"COOLDOWN_{scale}_CONVERT_EVAL"] = f"COOLDOWN_{scale}_TRAIN"
        assert parents == expected
        assert [stage.waits for stage in scaling.tree] == ["parent"] + ["condition"] * 11

    def test_the_tree_needs_no_expansion(self) -> None:
        document = load_yaml_file(CONFORMANCE / "scaling_exps.yaml")
        with processor_limit(0.1):
            sweep = autoexperiment.load(document)
        assert "expansion" not in vars(sweep)

    @pytest.mark.slow
    def test_points(self, scaling: AutoExperimentSweep, cluster: ClusterProfile) -> None:
        assert len(scaling.points) == 90
        assert len({point.name for point in scaling.points}) == 90
        assert scaling.points[0].name == "10M_LR=0.01_MICRO_BATCH_SIZE=4_WITH"
        assert scaling.points[0].swept == ("EXPERIMENTS", "LR", "MICRO_BATCH_SIZE", "BIAS")
        jobs = [job for point in scaling.points for job in scaling.jobs(point, cluster)]
        assert len(jobs) == 1080
        assert {job.name: job.params for job in jobs} == {
            job.params["name"]: job.params for job in scaling.expansion.jobs
        }
        # directory and name separate the records of jobs
        assert len({job.stage_dir for job in jobs}) == 1080

    def test_common_values_can_choose_points(self, scaling: AutoExperimentSweep) -> None:
        names = scaling.names_of(scaling.point("25M_LR=0.001_MICRO_BATCH_SIZE=16_WITHOUT"))
        assert (names["LR"], names["MODEL"], names["GLOBAL_BATCH_SIZE"]) == (0.001, "25M", 64)
        assert "TRAIN_ITERS" not in names

    def test_warnings(self, scaling: AutoExperimentSweep) -> None:
        warnings = "\n".join(str(problem) for problem in scaling.warnings())
        for message in (
            ":1:1: job_id_regexp is not used",
            ":132:9: a branch starts from checkpoint 0",
            "at 150 of 1,080 jobs",
            "cooldown_helper.sh takes any iteration that ends in ITER",
            "at learning rate 0 (up to 2475 of 61036)",
            "a KeyError in the log counts as a finished job at 180 of 1,080 jobs",
            "before the last checkpoint is there",
            ":115:17: 540 jobs need the script template /p/home/",
            "set template: builtin",
        ):
            assert message in warnings

    def test_our_own_scripts(self, cluster: ClusterProfile) -> None:
        text = (CONFORMANCE / "scaling_exps.yaml").read_text(encoding="utf-8")
        sweep = _load(f"{text.replace('SAVE_INTERVAL: 2000', 'SAVE_INTERVAL: 100')}\ntemplate: builtin\n")
        jobs = {job.stage: job for job in sweep.jobs(sweep.points[0], cluster)}
        assert [stage.kind for stage in sweep.tree[:4]] == ["train", "convert", "evaluate", "train"]
        trunk, branch = jobs["PRETRAIN_TRAIN"], jobs["COOLDOWN_100M_TRAIN"]
        assert trunk.params["train_iters"] == 61036
        assert trunk.params["weight_decay"] == 0.01
        assert trunk.slurm.time == 360 * 60
        assert (branch.params["lr_decay_iters"], branch.params["lr_warmup_iters"]) == (3052, 0)
        assert branch.start == Condition(
            "checkpoint", path=f"{trunk.run_dir}/checkpoints", iteration=2700, producer=trunk.stage_dir
        )
        assert branch.run_dir == f"{trunk.run_dir}/cooldown_s100M"
        assert jobs["COOLDOWN_100M_CONVERT_EVAL"].iteration == 3052
        assert sweep.missing_templates() == []

    def test_our_own_scripts_refuse_checkpoint_0(self, cluster: ClusterProfile) -> None:
        text = (CONFORMANCE / "scaling_exps.yaml").read_text(encoding="utf-8")
        sweep = _load(f"{text}\ntemplate: builtin\n")
        point = sweep.point("10M_LR=0.01_MICRO_BATCH_SIZE=16_WITH")
        with pytest.raises(
            SpecError, match=r"study.yaml:132:9: .*COOLDOWN100M_TRAIN starts from checkpoint 0"
        ):
            sweep.jobs(point, cluster)


class TestJobs:
    """The fields of a job that the tool gives a meaning."""

    def test_script(self, small: AutoExperimentSweep, cluster: ClusterProfile) -> None:
        train, evaluate = small.jobs(small.points[1], cluster)
        assert train.script == (
            "#!/bin/bash -x\n#SBATCH --job-name=lr0.002_train\n#SBATCH --output=logs/lr0.002/train.out\n"
            "echo ${HOME} 0.002 10\n"
        )
        assert train.template is None
        assert train.slurm.options == ["--nice=5"]
        assert train.log == f"{cluster.run_root}/study/logs/lr0.002/train.out"
        assert train.check_interval == 60
        assert evaluate.name == "lr0.002_eval"

    def test_conditions(self, small: AutoExperimentSweep, cluster: ClusterProfile) -> None:
        train, evaluate = small.jobs(small.points[0], cluster)
        assert train.start is None
        assert train.finish == Condition("log", path=str(train.log), pattern="step 10 of")
        assert evaluate.start == Condition(
            "command",
            command="test -e logs/lr0.001/ckpt && echo 1 || echo 0",
            directory=train.work_dir,
            prints="1",
        )
        assert evaluate.start_every_attempt
        assert evaluate.finish is not None
        assert (evaluate.finish.kind, evaluate.finish.prints) == ("command", "1")
        assert [(dependency.stage, dependency.until) for dependency in evaluate.depends_on] == [
            ("train", "condition")
        ]

    def test_jobs_survive_json(self, small: AutoExperimentSweep, cluster: ClusterProfile) -> None:
        for job in small.jobs(small.points[0], cluster):
            assert Job.from_json(job.to_json()) == job

    def test_a_missing_key_names_the_template(
        self, small: AutoExperimentSweep, cluster: ClusterProfile
    ) -> None:
        (small.templates.directory / "train.sbatch").write_text(
            "#!/bin/bash\necho {stepz}\n", encoding="utf-8"
        )
        with pytest.raises(
            SpecError, match=r"train.sbatch:2: no job has a key 'stepz'.*did you mean 'steps'"
        ):
            small.jobs(small.points[0], cluster)

    def test_a_lone_brace_names_the_template(
        self, small: AutoExperimentSweep, cluster: ClusterProfile
    ) -> None:
        (small.templates.directory / "train.sbatch").write_text("#!/bin/bash\nf() { :; }\n", encoding="utf-8")
        with pytest.raises(SpecError, match=r"train.sbatch:2: .*written twice"):
            small.jobs(small.points[0], cluster)

    def test_a_missing_template_is_named(self, small: AutoExperimentSweep, cluster: ClusterProfile) -> None:
        (small.templates.directory / "eval.sbatch").unlink()
        evaluate = small.jobs(small.points[0], cluster)[1]
        assert evaluate.script is None
        assert evaluate.template == str(small.templates.directory / "eval.sbatch")
        (problem,) = small.missing_templates()
        assert problem.line == 9
        assert "2 jobs need the script template" in problem.message
        with pytest.raises(JobScriptError, match=f"needs the script template {re.escape(evaluate.template)}"):
            render_job_script(evaluate, cluster, 1, shipped("sbatch"))

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            (
                "step {steps} of",
                "step (",
                "study.yaml:7:7: lr0.001_train: termination_str 'step (' is not a regular",
            ),
            ("check_interval_secs: 60", "check_interval_secs: soon", "check_interval_secs is 'soon'"),
        ],
    )
    def test_wrong_fields(self, cluster: ClusterProfile, old: str, new: str, message: str) -> None:
        sweep = _load(SMALL.replace(old, new))
        with pytest.raises(SpecError) as refused:
            sweep.jobs(sweep.points[0], cluster)
        assert message in str(refused.value)


def test_lists_that_choose_no_stage_are_axes(cluster: ClusterProfile) -> None:
    sweep = _load(
        "size:\n  - s: {w: 1, mode: [{a: {cmd: 'sbatch a'}}, {b: {cmd: 'sbatch b'}}]}\n"
        "  - l: {w: 2, mode: [{a: {cmd: 'sbatch a'}}, {b: {cmd: 'sbatch b'}}]}\n"
        "name: '{w}{mode}'\noutput_file: o\nsbatch_script: s\n"
    )
    assert [point.name for point in sweep.points] == ["s", "l"]
    assert [stage.name for stage in sweep.tree] == ["a", "b"]
    assert [[job.name for job in sweep.jobs(point, cluster)] for point in sweep.points] == [
        ["1a", "1b"],
        ["2a", "2b"],
    ]


def test_indistinguishable_jobs_are_separate_points(cluster: ClusterProfile) -> None:
    sweep = _load(
        "mode:\n  - a: {cmd: 'sbatch 1', x: 1}\n  - a: {cmd: 'sbatch 2', x: 2}\n"
        "name: 'n{x}'\noutput_file: o\nsbatch_script: s\n"
    )
    assert [stage.name for stage in sweep.tree] == ["job"]
    assert len({point.name for point in sweep.points}) == 2
    assert [job.name for point in sweep.points for job in sweep.jobs(point, cluster)] == ["n1", "n2"]


def test_stages_get_names_of_their_own() -> None:
    text = (
        "name: n{termination_str}\ntemplate: t\noutput_file: o\ncmd: sbatch x\nsbatch_script: s\nMODE:\n"
        + "".join(
            f"- {label}: {{termination_str: s{index}}}\n"
            for index, label in enumerate(("a", "a b", "a,b", "a-b-2"))
        )
    )
    names = [instance.name for instance in _load(text).tree]
    assert names == ["a", "a-b", "a-b-2", "a-b-2-2"]


def test_point_names_are_short_and_plain() -> None:
    sweep = _load(
        f"path: ['/data/{'x' * 200}', '/data/{'x' * 200}y', 'a b', 'a-b']\n"
        "name: '{path}'\noutput_file: o\nsbatch_script: s\ncmd: sbatch s\n"
    )
    names = [point.name for point in sweep.points]
    assert len(set(names)) == 4
    assert all(len(name) <= 121 and name.isascii() and " " not in name and "/" not in name for name in names)


def test_keys_that_are_read_or_like_none_are_not_warned_of() -> None:
    text = "cmds: a\nout_files: '{output_files}'\noutput_files: b\nTERM: x\n"
    fields = "output_file: o\nsbatch_script: s\ncmd: sbatch s\nname: n\ntermination_str: x\n"
    told = [problem.message for problem in _load(text + fields + "start: '{cmds}'\n").warnings()]
    assert not [message for message in told if "AutoExperiment has no key" in message]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: '{nope}'\n", "study.yaml:1:1: x stays as it is written at every job: there is no key 'nope'"),
        ("m: [{a: {e: []}}, {b: {q: 1}}]\n", "m.a.e is empty, so what holds it makes no job"),
        (
            "m: [{a: {}}, {b: {q: 1}}]\nk: 1\n",
            "'a' holds no key, so m gets no value here and its name is lost",
        ),
        (
            "m: [{a: {T: 1}}]\nT: 2\n",
            "study.yaml:1:10: m.a.T is never used: T in line 2 comes later and wins",
        ),
        ("t: 12:30:00\n", "12:30:00 is read as 45000, a number in base 60"),
        ("t: 010\n", "010 is read as 8, an octal number"),
        ("cmd: bash run.sh\n", "is not an sbatch command"),
        ("t: 1\n", "neither termination_cmd nor termination_str"),
        ("t: 1\n", "has no template"),
        (f"template: {'x' * 300}\n", "study.yaml:1:1: 1 job needs the script template"),
        ("termination_strr: done\n", "no key 'termination_strr', and no text here reads it (did you mean"),
        ("m: [{a: {start_condition_cmdd: x}}, {b: {q: 1}}]\n", "did you mean 'start_condition_cmd'"),
    ],
)
def test_warnings(text: str, message: str) -> None:
    fields = "output_file: o\nsbatch_script: s\n" + ("" if "cmd:" in text else "cmd: sbatch s\n")
    name = (
        "name: 'n{m}'\n"
        if "{b:" in text and "{}" not in text
        else "name: 'n{q}'\n"
        if "{}" in text
        else "name: n\n"
    )
    sweep = _load(f"{text}{fields}{name}")
    assert message in "\n".join(str(problem) for problem in sweep.warnings())


class TestUnresolvedTexts:
    """Texts in scripts and commands must be resolved; unused texts and braces of the shell may remain."""

    FILE = (
        "cmd: sbatch {sbatch_script}\ntemplate: t.sbatch\nTOKENS: 100\noutput_file: o\n"
        "sbatch_script: s\nname: n\ntermination_str: done\nA: '{A_TEXT}'\nA_TEXT: %s\n"
    )

    def jobs(self, tmp_path: Path, cluster: ClusterProfile, text: str, reads: str = "{A}") -> list[Job]:
        (tmp_path / "t.sbatch").write_text(f"#!/bin/bash\necho {reads}\n")
        sweep = _load(self.FILE % text, str(tmp_path / "study.yaml"))
        return sweep.jobs(sweep.points[0], cluster)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "'{TOKENZ}'",
                r"A_TEXT: there is no key 'TOKENZ', so the script would hold .*did you mean 'TOKENS'",
            ),
            ("'expr({TOKENZ} // 2)'", r":9:1: A_TEXT: there is no key 'TOKENZ'"),
            ("'expr(1 / 0)'", r":9:1: A_TEXT: 'expr\(1 / 0\)' cannot be worked out"),
            ("'{TOKENS.x}'", r":9:1: A_TEXT: '\{TOKENS.x\}' cannot be replaced: .*'x'"),
            ("'{TOKENS[0]}'", r":9:1: A_TEXT: '.TOKENS.0..' cannot be replaced: .*subscriptable"),
            ("'{TOKENS:q}'", r":9:1: A_TEXT: '.TOKENS:q.' cannot be replaced: .*'q'"),
            (
                r"'\${HOME} {TOKENS}'",
                r"A_TEXT: \$\{HOME\} names no key, .*\{TOKENS\} too \(write .\$\{\{HOME\}\}",
            ),
        ],
    )
    def test_in_a_script(self, text: str, message: str, tmp_path: Path, cluster: ClusterProfile) -> None:
        with pytest.raises(SpecError, match=message):
            self.jobs(tmp_path, cluster, text)

    def test_a_key_that_others_refer_to_is_reported_alone(
        self, tmp_path: Path, cluster: ClusterProfile
    ) -> None:
        (tmp_path / "t.sbatch").write_text("#!/bin/bash\necho {A} {A_TEXT}\n")
        text = (self.FILE % "'expr(TOKENS // 2)'").replace("output_file: o", "output_file: 'o_{A}'")
        with pytest.raises(SpecError) as raised:
            (sweep := _load(text, str(tmp_path / "study.yaml"))).jobs(sweep.points[0], cluster)
        (problem,) = raised.value.problems
        assert (problem.line, problem.hint) == (9, "write it with numbers, {KEY} and + - * / // % **")

    @pytest.mark.parametrize("text", [r"'\${HOME}'", "'/d/{x}/{0000..0010}.tar'", "\"awk '{print $1}'\""])
    def test_braces_of_the_shell(self, text: str, tmp_path: Path, cluster: ClusterProfile) -> None:
        (job,) = self.jobs(tmp_path, cluster, text)
        assert job.script is not None

    def test_of_no_script(self, tmp_path: Path, cluster: ClusterProfile) -> None:
        (job,) = self.jobs(tmp_path, cluster, "'{TOKENZ}'", reads="{TOKENS}")
        assert job.script == "#!/bin/bash\necho 100\n"

    @pytest.mark.parametrize("field", ["cmd", "termination_str", "output_file"])
    def test_in_a_field_of_the_tool(self, field: str, tmp_path: Path, cluster: ClusterProfile) -> None:
        text = self.FILE % "1"
        lines = [
            f"{field}: 'sbatch {{LOGZ}} x'" if line.startswith(field) else line for line in text.splitlines()
        ]
        (tmp_path / "t.sbatch").write_text("#!/bin/bash\n")
        sweep = _load("\n".join(lines), str(tmp_path / "study.yaml"))
        with pytest.raises(SpecError, match=rf"{field}: there is no key 'LOGZ'"):
            sweep.jobs(sweep.points[0], cluster)


def test_repeated_names_say_what_to_add() -> None:
    sweep = _load("lr: [1, 2]\nm: [a, b]\nname: 'n{lr}'\noutput_file: o\nsbatch_script: s\ncmd: sbatch s\n")
    with pytest.raises(
        SpecError, match=r"given more than once: 'n1', 'n2' \(add \{m\}, which varies, to name\)"
    ):
        _ = sweep.points


def test_repeated_names_of_items_with_the_same_name() -> None:
    items = "m:\n  - a: {w: 1}\n  - a: {w: 2}\n"
    sweep = _load(
        f"{items}lr: [1, 2]\nname: '{{m}}{{lr}}'\noutput_file: o\nsbatch_script: s\ncmd: sbatch s\n"
    )
    with pytest.raises(SpecError) as refused:
        _ = sweep.points
    (problem,) = refused.value.problems
    assert (problem.line, problem.hint) == (3, "items 1 and 2 of m have the same name, 'a': rename one")


@pytest.mark.parametrize(
    ("item", "hint"),
    [("b: {depth: 2}", "add heads, as other items have it"), ("b: {head: 2}", "write heads instead of head")],
)
def test_a_key_that_one_item_lacks_has_its_place(
    item: str, hint: str, tmp_path: Path, cluster: ClusterProfile
) -> None:
    (tmp_path / "t.sbatch").write_text("#!/bin/bash\necho {heads}\n")
    items = f"m:\n  - a: {{heads: 1}}\n  - {item}\n"
    fields = "template: t.sbatch\nname: '{m}'\noutput_file: o\nsbatch_script: s\ncmd: sbatch s\n"
    sweep = _load(items + fields, str(tmp_path / "study.yaml"))
    with pytest.raises(SpecError) as refused:
        _ = [sweep.jobs(point, cluster) for point in sweep.points]
    (problem,) = refused.value.problems
    assert (problem.line, problem.hint) == (3, hint)
    assert problem.message == "m b has no heads, which line 2 of t.sbatch reads"


STUDY = """\
cmd: "sbatch {sbatch_script}"
template: train.sbatch
sbatch_script: "sbatch/{name}.sbatch"
output_file: "logs/{name}.out"
termination_str: "after training is done"
LR: 1e-3
NODES: 1
name: "n_lr{LR}"
"""


def study(tmp_path: Path, text: str, reads: str = "{LR} {NODES}") -> AutoExperimentSweep:
    (tmp_path / "train.sbatch").write_text(f"#!/bin/bash\necho {reads}\n")
    return _load(text, str(tmp_path / "study.yaml"))


class TestKeysThatNothingReads:
    """A key that is neither AutoExperiment's own nor read by a template or a text is named."""

    def told(self, tmp_path: Path, line: str, reads: str = "{LR} {NODES}") -> list[str]:
        return [problem.with_severity("") for problem in study(tmp_path, STUDY + line, reads).warnings()]

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (
                "max_jobs: 5\n",
                "max_jobs: neither the template nor another value reads it (write max_jobs into the",
            ),
            ("max_jobs: 5\n", "sidecar, study.yaml.airflow.yml)"),
            ("A: 1\nB: '{A}'\nC: [1]\n", "A, B, C: neither the template"),
            ("M: [{x: {Y: 1}}]\n", "Y: neither the template"),
            ("start_condition: x\n", "no key 'start_condition', and no text here reads it (did you mean"),
            ("TERMINATION_CMD: x\n", "did you mean 'termination_cmd'?"),
            ("check_interval: 60\n", "another value reads it (did you mean 'check_interval_secs'?)"),
            (
                "M: [{x: {NODEZ: 2}}]\n",
                "NODEZ: neither the template nor another value reads it (did you mean 'NODES'?)",
            ),
        ],
    )
    def test_it_is_named(self, line: str, message: str, tmp_path: Path) -> None:
        (told,) = self.told(tmp_path, line)
        assert message in told

    @pytest.mark.parametrize(
        ("line", "reads"),
        [
            ("A: 1\n", "{A} {LR} {NODES}"),
            ("A: 1\nB: '{A}'\n", "{B} {LR} {NODES}"),
            ("A: 1\nB: 'expr({A} + 1)'\n", "{B:03d} {LR} {NODES}"),
            ("A: 1\nB: ${A}\n", "{B} {LR} {NODES}"),
            ("P: {A: 1}\nB: ${P.A}\n", "{B} {LR} {NODES}"),
            ("A: &a 1\nB: *a\n", "{B} {LR} {NODES}"),
            ("M: [{x: {A: 1}}, {y: {A: 2}}]\nname: 'n{M}'\n", "{A} {LR} {NODES}"),
            ("start_condition_cmd: 'test {A}'\nA: 1\n", "{LR} {NODES}"),
            ("RUN_DIR: /runs/x\n", "{LR} {NODES}"),
            ("'a b': 1\n", "{a b} {LR} {NODES}"),
        ],
    )
    def test_what_is_read_is_not(self, line: str, reads: str, tmp_path: Path) -> None:
        text = line if "name:" in line else ""
        lines = [one for one in STUDY.splitlines() if not (text and one.startswith("name:"))]
        sweep = study(tmp_path, "\n".join([*lines, line]), reads)
        assert [problem.message for problem in sweep.warnings()] == []

    def test_keys_of_the_sidecar_are_read_elsewhere(self, tmp_path: Path) -> None:
        study(tmp_path, STUDY)
        (tmp_path / "study.yaml").write_text(STUDY)
        (tmp_path / "study.yaml.airflow.yml").write_text("cluster: local\nrestart: {failed: 2}\n")
        assert load_sweep(tmp_path / "study.yaml").warnings() == []

    def test_of_a_missing_template_only_the_misspelt_are(self, tmp_path: Path) -> None:
        sweep = _load(STUDY + "IMAGE: x\ntermination_cmdd: x\n", str(tmp_path / "study.yaml"))
        told = "\n".join(problem.message for problem in sweep.warnings())
        assert "IMAGE" not in told
        assert "'termination_cmdd'" in told


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cmd:", "cmdd:", "study.yaml:1:1: cmd missing; there is 'cmdd' (did you mean 'cmd'?)"),
        ("output_file:", "OUTPUT_FILE:", "study.yaml:4:1: output_file missing; there is 'OUTPUT_FILE'"),
    ],
)
def test_a_misspelt_field_has_its_place(old: str, new: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        _ = _load(STUDY.replace(old, new)).points
    assert message in str(refused.value)


def test_a_file_of_an_unreleased_version_is_named() -> None:
    text = """
autoexp: {sbatch_script: s, cmd: sbatch s, name: n, template: t}
args: {lr: 1}
experiments: {size: [1, 2]}
"""
    with pytest.raises(SpecError, match=r"study.yaml:2:1: output_file missing.*never released.*native spec"):
        _ = _load(text).points


class TestFieldsOfTheTool:
    """What AutoExperiment hands to a shell is a text."""

    @pytest.mark.parametrize("field", ["cmd", "output_file", "sbatch_script", "termination_str"])
    @pytest.mark.parametrize("value", ["5", "true", "'expr(1)'"])
    def test_another_value_is_refused(
        self, field: str, value: str, tmp_path: Path, cluster: ClusterProfile
    ) -> None:
        lines = [line for line in STUDY.splitlines() if not line.startswith(field)]
        sweep = study(tmp_path, "\n".join([*lines, f"{field}: {value}"]))
        with pytest.raises(SpecError, match=rf":8:1: n_lr0.001: {field} is .*, not a text"):
            sweep.jobs(sweep.points[0], cluster)

    @pytest.mark.parametrize(("value", "word"), [("''", "empty"), ("' '", "blank")])
    def test_a_log_has_a_name(self, value: str, word: str, tmp_path: Path, cluster: ClusterProfile) -> None:
        sweep = study(tmp_path, STUDY.replace('"logs/{name}.out"', value))
        with pytest.raises(SpecError, match=f":4:1: n_lr0.001: output_file is {word}"):
            sweep.jobs(sweep.points[0], cluster)

    @pytest.mark.parametrize("value", ["''", "false", "0"])
    def test_nothing_is_no_condition(self, value: str, tmp_path: Path, cluster: ClusterProfile) -> None:
        sweep = study(tmp_path, f"{STUDY}start_condition_cmd: {value}\n")
        assert sweep.jobs(sweep.points[0], cluster)[0].start is None

    @pytest.mark.parametrize(
        ("value", "shown"), [("true", "true"), (10**400, "1000"), (f"'{10**400}'", "'1000"), ("-0", "0")]
    )
    def test_what_is_no_time(
        self, value: object, shown: str, tmp_path: Path, cluster: ClusterProfile
    ) -> None:
        sweep = study(tmp_path, f"{STUDY}check_interval_secs: {value}\n")
        told = f":9:1: n_lr0.001: check_interval_secs is {shown}.*, not a number of seconds"
        with pytest.raises(SpecError, match=told):
            sweep.jobs(sweep.points[0], cluster)


class TestCommands:
    """``cmd`` is one call of sbatch, with options and the job's script."""

    def sweep(self, tmp_path: Path, cmd: str) -> AutoExperimentSweep:
        return study(tmp_path, STUDY.replace('"sbatch {sbatch_script}"', repr(cmd)))

    @pytest.mark.parametrize(
        ("cmd", "options"),
        [
            ("sbatch {sbatch_script}", []),
            ("/usr/bin/sbatch -N 2 --qos=x {sbatch_script}", ["-N", "2", "--qos=x"]),
            ("sbatch --nice=5 -- {sbatch_script}", ["--nice=5"]),
            ('sbatch "--constraint=a&b" "{sbatch_script}"', ["--constraint=a&b"]),
            ("sbatch --nice=5 ./{sbatch_script}", ["--nice=5"]),
        ],
    )
    def test_options(self, cmd: str, options: list[str], tmp_path: Path, cluster: ClusterProfile) -> None:
        sweep = self.sweep(tmp_path, cmd)
        assert sweep.jobs(sweep.points[0], cluster)[0].slurm.options == options
        assert sweep.warnings() == []

    @pytest.mark.parametrize(
        ("cmd", "message"),
        [
            ("sbatch other.sh", "does not name the job's sbatch_script"),
            ("sbatch --nice=5", "does not name the job's sbatch_script"),
            ("sbatch {sbatch_script} && echo ok", "is not an sbatch command alone"),
            ("sbatch {sbatch_script} > log", "is not an sbatch command alone"),
            ("A=1 sbatch {sbatch_script}", "is not an sbatch command alone"),
            (
                "A=1 sbatch -N 2 {sbatch_script}; sbatch --qos=q x",
                "given to sbatch without -N 2 --qos=q x, and nothing",
            ),
            (
                "cd /x&&sbatch -p big {sbatch_script} -y",
                "the script is given to sbatch without -p big, and nothing",
            ),
            (
                "bash -c 'sbatch --qos=q {sbatch_script}'",
                "the script is given to sbatch without --qos=q, and nothing",
            ),
            (
                "sbatch '--comment=a b' {sbatch_script} | tee i",
                "to sbatch without '--comment=a b', and nothing",
            ),
            ("bash {sbatch_script} --time=1", "the script is given to sbatch, and nothing"),
            ("cd $HOME; sbatch {sbatch_script}", "is not an sbatch command alone"),
        ],
    )
    def test_what_is_left_out_is_named(
        self, cmd: str, message: str, tmp_path: Path, cluster: ClusterProfile
    ) -> None:
        sweep = self.sweep(tmp_path, cmd)
        assert sweep.jobs(sweep.points[0], cluster)
        (warning,) = sweep.warnings()
        assert message in warning.message

    @pytest.mark.parametrize(
        ("cmd", "message"),
        [
            ("sbatch {sbatch_script} a b", "cmd gives the script the arguments 'a b'"),
            (
                "sbatch --account=$(whoami) {sbatch_script}",
                "'--account=$(whoami)', which a shell would compute",
            ),
            ("sbatch --mail-user=$USER {sbatch_script}", "which a shell would compute; write the value"),
            ('sbatch "{sbatch_script}', "is no command: no closing quotation"),
        ],
    )
    def test_what_cannot_be_done_is_refused(
        self, cmd: str, message: str, tmp_path: Path, cluster: ClusterProfile
    ) -> None:
        sweep = self.sweep(tmp_path, cmd)
        with pytest.raises(SpecError) as refused:
            sweep.jobs(sweep.points[0], cluster)
        assert message in str(refused.value)

    def test_a_blank_in_the_scripts_name(self, tmp_path: Path, cluster: ClusterProfile) -> None:
        sweep = study(tmp_path, STUDY.replace("n_lr{LR}", "n lr{LR}"))
        with pytest.raises(SpecError, match="cmd does not quote the blank in sbatch_script"):
            sweep.jobs(sweep.points[0], cluster)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--output={output_file}", ""),
        ("-e {output_file}", ""),
        ("--job-name={name}", ""),
        ("--output=other.out", "the log is output_file"),
        ("--chdir=/tmp", "use cd in the script"),
        ("-e x.err", "both streams go to output_file"),
        ("--open-mode=truncate", "the submission's own append"),
    ],
)
def test_options_of_a_script_that_give_way_are_named(
    line: str, named: str, tmp_path: Path, cluster: ClusterProfile
) -> None:
    sweep = study(tmp_path, STUDY)
    (tmp_path / "train.sbatch").write_text(f"#!/bin/bash\n#SBATCH {line}\necho {{LR}} {{NODES}}\n")
    told = [str(problem) for problem in check_sweep(sweep, cluster).warnings]
    assert len(told) == bool(named)
    assert all(named in text for text in told)


def test_texts_that_refer_to_each_other_in_a_circle(tmp_path: Path, cluster: ClusterProfile) -> None:
    sweep = study(tmp_path, STUDY + "A: '{B}'\nB: '{A}'\n", "{A} {LR} {NODES}")
    assert any(
        "A stays as it is written at every job: its references go in a circle" in p.message
        for p in sweep.warnings()
    )
    with pytest.raises(
        SpecError, match=r":9:1: A: '\{A\}' cannot be replaced: its references go in a circle"
    ):
        sweep.jobs(sweep.points[0], cluster)


@pytest.mark.parametrize("text", ["\"awk '{print $1}' {LR}\"", "'{LR} {0..9}'", "'{LR.nope}'"])
def test_keys_beside_braces_of_the_shell(text: str, tmp_path: Path, cluster: ClusterProfile) -> None:
    sweep = study(tmp_path, f"{STUDY}start_condition_cmd: {text}\n")
    with pytest.raises(SpecError, match=r":9:1: start_condition_cmd: "):
        sweep.jobs(sweep.points[0], cluster)


@pytest.mark.parametrize("text", ["x expr({LR})", " expr({LR})", "expr ({LR})", "expr({LR}"])
def test_an_expression_is_a_whole_value(text: str, tmp_path: Path) -> None:
    told = [
        problem.message for problem in study(tmp_path, f"{STUDY}A: '{text}'\n", "{A} {LR} {NODES}").warnings()
    ]
    assert len(told) == 1
    assert "stays text: an expression is the whole value" in told[0]
    shells = study(tmp_path, f"{STUDY}A: 'expr 1 + 1'\n", "{A} {LR} {NODES}")
    assert shells.warnings() == []


def test_a_missing_key_gets_a_near_name(tmp_path: Path) -> None:
    told = [
        str(problem) for problem in study(tmp_path, f"{STUDY}A: '{{NODS}}'\n", "{A} {LR} {NODES}").warnings()
    ]
    assert any("there is no key 'NODS' (did you mean 'NODES'?)" in text for text in told)


def test_our_own_scripts_run_all_jobs_or_none(tmp_path: Path) -> None:
    text = STUDY.replace("template: train.sbatch", "template: [train.sbatch, builtin]")
    told = [str(p) for p in study(tmp_path, text.replace("n_lr{LR}", "n_{template}")).warnings()]
    assert any("1 job has template: builtin, and 1 has another" in text for text in told)


def test_a_mapping_without_keys_is_named(tmp_path: Path) -> None:
    told = [problem.message for problem in study(tmp_path, STUDY + "M: {}\n").warnings()]
    assert told == ["M holds no key, so it gives no value"]


def test_a_file_may_be_a_named_list(cluster: ClusterProfile) -> None:
    text = "\n".join(
        f"- {name}:\n    {{name: {name}, template: t.sbatch, output_file: {name}.out, cmd: sbatch {name}, "
        f"sbatch_script: {name}, termination_str: DONE}}"
        for name in ("one", "two")
    )
    loaded = load_sweep_text(text, "study.yaml")
    jobs = [job.name for point in loaded.points for job in loaded.jobs(point, cluster)]
    assert jobs == ["one", "two"]


def test_a_value_that_was_set_has_its_place(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(SMALL)
    with pytest.raises(SpecError, match=r"--set lr=expr\({absent}\): lr: there is no key 'absent'"):
        check_sweep(load_sweep(file, ["lr=expr({absent})"]), load_cluster("local"))


def test_a_misspelt_key_of_the_sidecar_names_the_intended_one(tmp_path: Path) -> None:
    (tmp_path / "train.sbatch").write_text("#SBATCH --job-name={name}\n")
    (tmp_path / "eval.sbatch").write_text("#SBATCH --job-name={name}\n")
    (tmp_path / "study.yaml").write_text(SMALL + "clustre: local\n")
    texts = [str(problem) for problem in load_sweep(tmp_path / "study.yaml").warnings()]
    assert any("did you mean 'cluster', in the sidecar, study.yaml.airflow.yml?" in text for text in texts)
