"""AutoExperiment files as sweeps: points, stages, jobs, scripts, warnings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from autoexperiment_harness import CONFORMANCE

from airflow_megatron.spec.dialects.autoexperiment import dialect as autoexperiment
from airflow_megatron.spec.dialects.recognition import is_autoexperiment
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.yaml_document import load_yaml_file, load_yaml_text
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.spec.model.jobs import Job

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
        started = time.process_time()
        sweep = autoexperiment.load(document)
        assert time.process_time() - started < 0.1
        assert "expansion" not in vars(sweep)

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
        # where it works and what it is called keeps every job's records apart
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
        ("t: 1\n", "have no template"),
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
    """What reaches a script or a command must be resolved; what nothing reads, and the shell's braces, may stay."""

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
            (
                r"'\${HOME} {TOKENS}'",
                r"A_TEXT: \$\{HOME\} names no key, .*\{TOKENS\} too \(write .\$\{\{HOME\}\}",
            ),
        ],
    )
    def test_in_a_script(self, text: str, message: str, tmp_path: Path, cluster: ClusterProfile) -> None:
        with pytest.raises(SpecError, match=message):
            self.jobs(tmp_path, cluster, text)

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
