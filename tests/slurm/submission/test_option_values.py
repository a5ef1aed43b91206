"""Values of sbatch's options, compared with the real sbatch, which reads its options before it connects."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.slurm.submission.sbatch_options import read_options, wrong_long_name, wrong_value

if TYPE_CHECKING:
    from pathlib import Path

NUMBERS = ("4", " 4", "+4", "04", "0", "-1", "x", "1k", "4x", "1-2", "1.5", "")
SIZES = ("64", "0", "1k", "1KB", "64G", "64gb", "2T", "1P", "-1", "1.5G", "1 G", "G", "")
TIMES = (
    *("10", "10:00", "06:00:00", "1-2", "1-2:03", "1-2:03:04", "1-", "0:0:0", "-1", "INFINITE", "unlimited"),
    *("6h", "1.5", "", "1::2", ":5", "5:", "1:2:", "1-2:3:", "+5", "1 2", "1-2-3", "1:2:3:4", "tomorrow"),
)
MOMENTS = (
    *(
        "now",
        "now+1hour",
        "16:00",
        "noon",
        "fika",
        "2030-01-31T10:00",
        "01/31/30",
        "tomorrow",
        "noontomorrow",
    ),
    *("tomorow", "monday", "elevenses"),
)
MAILS = (
    *("NONE", "all", "begin,END", "FAIL,TIME_LIMIT_90", "array_tasks", "INVALID_DEPEND,STAGE_OUT", "END,"),
    *("END,,FAIL", "TIME_LIMIT_70", "END FAIL", "END;FAIL", "ENDED", ""),
)
VALUES = {
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu", "tmp"), SIZES),
    **dict.fromkeys(("time", "time-min"), TIMES),
    **dict.fromkeys(("ntasks", "ntasks-per-core", "ntasks-per-node", "ntasks-per-socket"), NUMBERS),
    **dict.fromkeys(("ntasks-per-gpu", "cpus-per-task", "cpus-per-gpu", "mincpus"), NUMBERS),
    **dict.fromkeys(("threads-per-core", "sockets-per-node", "cores-per-socket", "thread-spec"), NUMBERS),
    "ntasks-per-tres": NUMBERS,
    "delay-boot": TIMES,
    "nodes": (
        *("2", " 2", "+2", "02", "0", "-1", "2k", "1M", "2K-3k", "1-2", "2- 3", "2-+3", "2 ", "abc", "two"),
        *("", "1 2", "1-", "4x", "2-x", "1.5", "+ 2", "2kk", "2g"),
    ),
    **dict.fromkeys(("begin", "deadline"), MOMENTS),
    "distribution": (
        *(
            "block",
            "CYCLIC",
            "plane=4",
            "*",
            "block:cyclic",
            "*:*:fcyclic",
            "cyclic,Pack",
            "nopack",
            "block,NoPack",
        ),
        *(
            "blocky",
            "cyc",
            "plane",
            "plane=4,pack",
            "fcyclic",
            "block:cyc",
            "block,foo",
            "block,",
            "block:block:block:block",
        ),
    ),
    "gres-flags": ("enforce-binding", "Disable-Binding", "enforce", "enforce-binding,x", ""),
    "profile": ("task", "ENERGY,task", "none", "all", "Tsk", "task,x", ""),
    "core-spec": ("1", "0", "+1", " 1", "01", "", "x", "1x", "-1"),
    "wait-all-nodes": ("0", "1", "+1", " 1", "00", "", "2", "x", "1x"),
    "no-kill": ("off", "NO", "SET", "", "on", "yes"),
    "gpu-bind": (
        *("none", "NONE", "closest", "single:1", "per_task:1", "map_gpu:0,1", "mask_gpu:0x1"),
        *("verbose,closest", "closest,verbose", "single", "per_task", "verbose", "quiet,none", "gpu", ""),
    ),
    **dict.fromkeys(("contiguous", "overcommit", "spread-job", "reboot"), ("1", "yes", "")),
    "switches": ("1", "1@10", "1@01:00:00", "0", "x", "@10", ""),
    "kill-on-invalid-dep": ("yes", "NO", "y", "true", "1", ""),
    "exclusive": ("user", "MCS", "", "yes", "true"),
    "mail-type": MAILS,
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of an sbatch whose controller does not exist."""
    lines = ("ClusterName=x", "SlurmctldHost=localhost(127.0.0.1)", "SlurmctldPort=1", "NodeName=n1")
    (tmp_path / "slurm.conf").write_text("\n".join((*lines, "PartitionName=main Nodes=n1 Default=YES", "")))
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    return {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf")}


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUES)
def test_values_are_refused_as_by_sbatch(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    for value in VALUES[name]:
        option = f"--{name}={value}"
        # the wrong option behind it is only reached if the first one is valid
        done = subprocess.run(
            ["sbatch", option, "--open-mode=wrong", str(tmp_path / "job.sh")],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        refused = "Invalid --open-mode" not in done.stderr.splitlines()[0]
        (read,) = read_options([option])
        assert (option, bool(wrong_value(read))) == (option, refused)


@pytest.mark.parametrize("value", ["compute", "nomultithreadd", ""])
def test_hints_are_refused_as_by_sbatch(value: str, environment: dict[str, str], tmp_path: Path) -> None:
    """sbatch reads them after all other options."""
    done = subprocess.run(
        ["sbatch", f"--hint={value}", str(tmp_path / "job.sh")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "unrecognized --hint argument" in done.stderr
    (read,) = read_options([f"--hint={value}"])
    assert wrong_value(read).startswith(
        "write some of compute_bound, memory_bound, multithread, nomultithread"
    )


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["--mail-type"], "--mail-type needs a value"),
        (["--mail-t"], "--mail-t needs a value"),
        (["--mail-type=ENDED"], "write some of NONE, BEGIN, END"),
        (["--time-min", "6h"], "write minutes or [days-]hours:minutes:seconds"),
        (["-n", "0"], "write a number of 1 or more"),
        (["-N", "two"], "write a number, or the smallest and the largest: 2 or 2-4"),
        (["--gpu-bind=gpu"], "write none, closest, single:TASKS"),
        (["--oom-kill-step=yes"], "write 0 or 1, or no value"),
        (["--contiguous=yes"], "write --contiguous, without a value"),
        (["--mem-per-gpu=1.5G"], "write a whole number with K, M, G or T"),
    ],
)
def test_what_to_write_instead(words: list[str], instead: str) -> None:
    (read,) = read_options(words)
    assert wrong_value(read).startswith(instead)


@pytest.mark.parametrize(
    "words",
    [
        ["--exclusive"],
        ["--exclusive=topo"],  # Slurm 24.11
        ["--nodes=2,4"],  # Slurm 23.11
        ["--nodes=1-15:4"],
        ["--requeue=expedite"],  # Slurm 25.11
        ["--segment=4"],  # Slurm 24.11
        ["--oom-kill-step=0"],
        ["--gpu-bind=map:0,1"],
        ["--resources=flat:2"],  # Slurm 26.05
        ["--mem-update=10@60"],
        ["--spread-segments"],
        ["--container-type=oci"],
        ["--gpus=a100:4"],
        ["--constraint=a&b"],
        ["--plugin-of-the-site=x"],
        ["--nice"],
        ["--hint=Compute_Bound"],
        ["--hint=nomultithread"],
        ["--gres-flags=one-task-per-sharing"],  # Slurm 23.02
    ],
)
def test_values_that_releases_and_sites_define_are_not_examined(words: list[str]) -> None:
    (read,) = read_options(words)
    assert wrong_value(read) == ""


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("mem", "", ""),
        ("option-of-the-site", "", ""),
        ("container-image", "", ""),  # of pyxis
        ("--mem", "'--mem' is not the long name of an option", "write mem, without dashes or a value"),
        ("mem=64G", "'mem=64G' is not the long name of an option", "write mem, without dashes or a value"),
        ("-w", "'-w' is not the long name of an option", "write nodelist, without dashes or a value"),
        ("w", "sbatch has no option 'w'", "did you mean 'nodelist'?"),
        ("memm", "sbatch has no option 'memm'", "did you mean 'mem'?"),
        ("exclus", "sbatch has no option 'exclus'", "did you mean 'exclusive'?"),
    ],
)
def test_long_names_of_options(name: str, message: str, hint: str) -> None:
    assert wrong_long_name(name) == (message, hint)
