"""Options of sbatch that would break the control of submissions are refused in every spelling, and no others."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from probed_specs import AUTOEXPERIMENT, NATIVE, OELLM, TEMPLATE, errors_of, shown

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.submission.sbatch_options import (
    directive_options,
    kept_directive,
    misspelt_option,
    read_options,
    refused_options,
    split_directive,
)
from airflow_megatron.slurm.submission.single_job import SubmissionRequest, submission_script
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

ALWAYS = [
    *(
        "--array=1-10",
        "--array 1-10",
        "-a1-10",
        "-a 1-10",
        "--arr=1-3",
        "--ar=1",
        "-va1-3",
        "-Oa 1-3",
        "--array",
    ),
    *(
        "--wait",
        "-W",
        "--wai",
        "-vW",
        "-WO",
        "--test-only",
        "--test",
        "--te",
        "--hold",
        "--hol",
        "--ho",
        "-H",
        "-sH",
    ),
    *("-M other", "-Mother", "--clusters=other", "--clusters other", "--cluster=x", "--clust=x", "-vMother"),
    *(
        "--wrap=date",
        "--wrap date",
        "--wra=date",
        "--wr=x",
        "--quiet",
        "-Q",
        "--quie",
        "--usage",
        "--us",
        "--help",
    ),
    *(
        "-h",
        "--version",
        "-V",
        "--vers",
        "--dependency=afterok:1",
        "-d afterok:1",
        "-dafterok:1",
        "--dep=expand:1",
    ),
    *("--input=/etc/passwd", "-i /etc/passwd", "--inp=x", "hetjob", "packjob", ":", "--", "other.sh"),
    *("--nice=5 --array=1-3", "--nice=5 -H", "--mem=4G --wait --nice", "'--array=1-3'", '"--array=1-3"'),
    *(
        "--wa",
        "--h",
        "--comment=x --hold",
    ),
]
RENDERED = [
    *(
        "--output=/x",
        "-o /x",
        "-o/x",
        "--out=/x",
        "--error=/x",
        "-e /x",
        "-e/x",
        "--err=/x",
        "--open-mode=truncate",
    ),
    *(
        "--open=append",
        "--job-name=x",
        "-J x",
        "-Jx",
        "--job=x",
        "--chdir=/tmp",
        "-D /tmp",
    ),
    *(
        "-D/tmp",
        "--chd=/x",
        "--export=NONE",
        "--expor=ALL",
        "--export-file=/x",
        "--export-f=x",
        "--get-user-env",
    ),
    *("--get", "--signal=USR1@60", "--sig=9", "--parsable", "--pars", "-vJx", "-Oo/x", "--nice=3 -o/x"),
]
FINE = [
    *(
        "--nice=5",
        "--nice",
        "--mail-type=END",
        "--mail-user=me@site",
        "--licenses=a:1",
        "-L a",
        "--prefer=x",
    ),
    *(
        "--exclusive",
        "--exclusive=user",
        "--nodelist=n1",
        "-w n1",
        "-wn1",
        "--hint=nomultithread",
        "--switches=1@10",
    ),
    *(
        "--requeue",
        "--no-requeue",
        "--begin=now+1hour",
        "-b now",
        "--deadline=now+1day",
        "--gres=gpu:4",
        "--mem=0",
    ),
    *(
        "--wckey=x",
        "--wait-all-nodes=1",
        "--gpu-bind=none",
        "--distribution=block:cyclic",
        "-m block",
        "--contiguous",
    ),
    *(
        "--cpu-freq=high",
        "--network=single",
        "--reboot",
        "--verbose",
        "-v",
        "-vv",
        "--profile=task",
        "--acctg-freq=30",
    ),
    *(
        "--container-image=/x.sqsh",
        "--container-image /x.sqsh",
        "--container-mounts=/a:/b",
        "--comment-plugin x",
    ),
    *(
        "--tres-per-task=gpu:1",
        "--segment=16",
        "--propagate=NONE",
        "-C a100",
        "-Ca100",
        "--qos=high",
        "-q high",
    ),
    *("-A account", "-p partition", "-t 1:00:00", "-N2", "-n 8", "-c 4", "--ntasks-per-node=4", "--tmp=100G"),
    *("--exclude=n1", "-x n1", "-s", "--oversubscribe", "-k", "--no-kill", "-S 1", "--power=level", "--bb=x"),
    *(
        "--constraint='a&b'",
        "--mem=4G # as much",
        "--reservation=wait",
        "-A hold",
        "--wckey=--array",
        "-w -H",
    ),
]
PLACES = {
    "sweep": (NATIVE + "slurm: {options: [@]}\n", False),
    "stage": (NATIVE.replace("time: 10m", "time: 10m, options: [@]"), False),
    "inherited": (NATIVE + "slurm: {options: [--nice=1, @]}\n", False),
    "ae command": (
        AUTOEXPERIMENT.replace('"sbatch --nice=5 {sbatch_script}"', "'sbatch @ {sbatch_script}'"),
        True,
    ),
    "ae script": (AUTOEXPERIMENT, True),
    "ae script, after others": (AUTOEXPERIMENT, True),
}


def _written(folder: Path, place: str, option: str) -> Path:
    text, own = PLACES[place]
    quoted = option.replace("'", "''")
    path = folder / "study.yaml"
    path.write_text(text.replace("@", quoted if own else f"'{quoted}'"))
    lead = "#SBATCH --nodes=1\n# a comment\n\n" if "after" in place else ""
    script = f"#!/bin/bash\n{lead}#SBATCH {option}\necho {{steps}}\n" if "script" in place else TEMPLATE
    (folder / "job.sbatch").write_text(script)
    return path


@pytest.mark.parametrize("place", PLACES)
def test_what_the_submission_owns_is_refused(place: str, tmp_path: Path) -> None:
    own = PLACES[place][1]
    for option in ALWAYS + ([] if own else RENDERED):
        if place == "ae command" and option in ("--array", "--", "--clusters", "other.sh"):
            continue  # consumes the next argument, the script
        assert "which a job may not set" in errors_of(_written(tmp_path, place, option)), option


@pytest.mark.parametrize("place", PLACES)
def test_other_options_are_taken(place: str, tmp_path: Path) -> None:
    for option in FINE:
        if "#" not in option or place != "ae command":
            assert errors_of(_written(tmp_path, place, option)) == "", option


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--nodes=99", "nodes"),
        ("-N99", "nodes"),
        ("--nodes 2", "nodes"),
        ("--time=99", "time"),
        ("-t 1-0", "time"),
        ("--cpus-per-task=9", "cpus_per_task"),
        ("-c9", "cpus_per_task"),
        ("--gpus-per-node=8", "gpus_per_node"),
        ("--partition=x", "partition"),
        ("-p x", "partition"),
    ],
)
def test_what_a_field_gives_is_written_there(option: str, field: str, tmp_path: Path) -> None:
    """The cluster's limits, the number of processes and estimates are those of the fields."""
    path = tmp_path / "study.yaml"
    path.write_text(NATIVE + f"slurm: {{options: ['{option}']}}\n")
    assert f"which slurm.{field} sets (write {field}: … in slurm:)" in shown(path)
    assert errors_of(path) == ""


@pytest.mark.parametrize("option", RENDERED)
def test_options_of_scripts_are_replaced(option: str) -> None:
    assert refused_options(read_options(split_directive(option)), own_script=True) == []
    kept = kept_directive(option)
    owned = {"job-name", "output", "error", "open-mode", "chdir", "comment", "parsable"}
    assert not owned & {name for read in read_options(split_directive(kept)) for name in read.meant}


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (" --nodes=2 --job-name=x --time=1:00", "--nodes=2 --time=1:00"),
        (" -N2 -Jx", "-N 2"),
        (" --output=/x/%j.out", ""),
        (" -o /x -p main", "-p main"),
        (" --constraint='a&b' --err=x", "'--constraint=a&b'"),
        (" --constraint='a&b'  # as is", "--constraint='a&b'  # as is"),
    ],
)
def test_only_the_replaced_options_of_a_line_are_dropped(line: str, kept: str) -> None:
    assert kept_directive(line) == kept


def test_directives_are_those_that_sbatch_reads() -> None:
    script = "#!/bin/bash\n#SBATCH -N 1 # one\n# x\n\n#SBATCH --time=1\nset -e\n#SBATCH --hold\n"
    assert directive_options(script) == ["-N", "1", "--time=1"]


@pytest.mark.parametrize(
    "key", ["wait", "hold", "test_only", "wrap", "clusters", "dependency", "signal", "export", "input"]
)
def test_keys_of_oellm_files_are_refused_too(key: str, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    value = "true" if key in ("wait", "hold", "test_only") else "x"
    path.write_text(OELLM.replace("account: abc", f"account: abc, {key}: {value}"))
    errors = errors_of(path)
    if errors:
        assert "which a job may not set" in errors
        return
    # options that the package sets itself are omitted with a warning
    sweep = load_sweep(path)
    plan = check_sweep(sweep)
    assert any(f"slurm.sbatch.{key}: " in str(warning) for warning in plan.warnings)
    script = job_script(plan.jobs[0], load_cluster("local"), 1)
    directives = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert not [line for line in directives if f"--{key.replace('_', '-')}" in line]


def test_options_of_a_command_reach_its_script(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(AUTOEXPERIMENT.replace("--nice=5", "--nice=5 --comment=x --account='my team'"))
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --account=other --job-name=mine\necho {steps}\n"
    )
    script = shown(path)
    script = script[script.index("#SBATCH --job-name") :]
    assert "#SBATCH --nice=5 '--account=my team'" in script
    assert "mine" not in script
    assert script.index("--account=other") < script.index("my team")


def test_a_singleton_is_what_every_attempt_is() -> None:
    assert refused_options(read_options(["--dependency=singleton"]), own_script=True) == []
    assert refused_options(read_options(["--dependency=singleton"]))


def test_a_value_apart_from_its_option_is_explained() -> None:
    (refused,) = refused_options(read_options(["--nice", "5"]))
    assert (refused.text, refused.instead) == ("5", "write --nice=5")


def test_a_comment_is_replaced_and_reported(tmp_path: Path) -> None:
    path = _written(tmp_path, "stage", "--comment='two words'")
    assert errors_of(path) == ""
    assert "slurm.options hold --comment, which gives way" in shown(path)


HEADS = [
    *("   # a", "\t# a", "\x0b# a", "\x0c \r# a", " \t ", "\x0c", "# a\x0cdate", "# a\u2028date"),
    *("# a\x1cdate", "# a\x85date", "#", "##", "  #SBATCH --hold", "#BSUB -H", "#PBS -h"),
]
COMMANDS = ["date", " date", ":", "\xa0", "\u2028", "\x1c", "\x85 # a", "\\", "{steps}# a", "\ufeff#"]


def _seen_by_sbatch(script: str, folder: Path) -> str:
    """Return sbatch's interpretation of a script from its verbose output; it has no controller."""
    (folder / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=localhost\nSlurmctldPort=9\nSlurmctldTimeout=1\nMessageTimeout=1\n"
        "NodeName=localhost\nPartitionName=p Nodes=localhost\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(folder / "slurm.conf")}
    with subprocess.Popen(
        ["sbatch", "-v", "--test-only", "--ignore-pbs"], env=environment, text=True,
        stdin=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as sbatch:  # fmt: skip
        assert sbatch.stdin is not None
        assert sbatch.stderr is not None
        sbatch.stdin.write(script)
        sbatch.stdin.close()
        output = "".join(
            itertools.takewhile(lambda line: "end of defined options" not in line, sbatch.stderr)
        )
        sbatch.kill()
    return output


@pytest.mark.parametrize("line", HEADS + COMMANDS, ids=repr)
def test_options_stand_where_sbatch_looks_for_them(line: str, tmp_path: Path) -> None:
    script = f"#!/bin/bash\n{line}\n#SBATCH --account=seen\necho {{steps}}\n"
    seen = line in HEADS
    assert ("--account=seen" in directive_options(script)) is seen
    (tmp_path / "study.yaml").write_text(AUTOEXPERIMENT)
    (tmp_path / "job.sbatch").write_bytes(script.replace("--account=seen", "--array=1-3").encode())
    assert ("which a job may not set" in errors_of(tmp_path / "study.yaml")) is seen
    assert directive_options(script.replace("\n", "\r\n")) == directive_options(script)
    if shutil.which("sbatch"):
        assert ("account             : seen" in _seen_by_sbatch(script, tmp_path)) is seen


@pytest.mark.parametrize("line", ["#PBS -t 1-3", "#PBS -h", "#BSUB -J other", "#BSUB -H", "#PBS -N x"])
@pytest.mark.parametrize("head", ["", "date\n"])
def test_options_of_other_schedulers_are_not_read(head: str, line: str, tmp_path: Path) -> None:
    """sbatch also reads them, after its own options, so that a job would lose its name."""
    (tmp_path / "study.yaml").write_text(AUTOEXPERIMENT)
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n{head}{line}\necho {{steps}}\n")
    assert f"its script holds {line}: options of PBS and LSF are not read" in shown(tmp_path / "study.yaml")
    request = SubmissionRequest(Attempt("name", "/r/.jobs/job", 1), "#!/bin/bash\n", {}, "token")
    assert " --ignore-pbs " in submission_script(request)


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_a_script_keeps_its_lines(character: str, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(AUTOEXPERIMENT)
    text = f"echo 'a{character}#SBATCH --hold'"
    (tmp_path / "job.sbatch").write_text(f"#!/bin/bash\n{text}\necho {{steps}}\n")
    sweep = load_sweep(tmp_path / "study.yaml")
    assert text in job_script(check_sweep(sweep).jobs[0], load_cluster("local"), 1)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        *[("--nodess=2", "nodes"), ("--partiton=x", "partition"), ("--gpus-per-nod3=1", "gpus-per-node")],
        *[("--uenv=x", ""), ("--container-image=x", ""), ("--no-container-mount-home", ""), ("--view=a", "")],
        *[("--nodes=2", ""), ("--part=x", ""), ("-N2", ""), ("x", "")],
    ],
)
def test_an_option_that_is_like_one_of_sbatchs_is_named(word: str, near: str) -> None:
    (option,) = read_options([word])
    assert misspelt_option(option) == (f"did you mean {near!r}?" if near else "")
