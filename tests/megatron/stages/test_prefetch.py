"""Stages of kind ``prefetch``: their command, the settings of later jobs, and errors."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from airflow_megatron.megatron.stages.prefetch import prefetched_items
from airflow_megatron.plan.job_scripts import job_digest, job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.model.stage_kinds import PREFETCHED
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.model.jobs import Job

ITEMS: dict[str, Any] = {
    "models": ["our/tiny", {"name": "our/big", "revision": "v1", "files": ["*.json", "*.safetensors"]}],
    "tokenizers": ["gpt2"],
    "datasets": [{"name": "allenai/ai2_arc", "config": "ARC-Easy"}],
    "tasks": ["hellaswag"],
    "urls": ["https://example.org/a/words.txt?download=1"],
}


def jobs(params: dict[str, Any], profile: dict[str, Any] | None = None, **stage: Any) -> dict[str, Job]:
    spec = {
        **{"name": "s", "point": "p{{ seed }}", "sweep": {"params": {"seed": [1, 2]}}},
        "stages": {
            "prepare": {"kind": "command", "scope": "sweep", "command": ["true"]},
            "fetch": {"kind": "prefetch", "scope": "sweep", "params": params, **stage},
            "one": {"kind": "command", "parent": "fetch", "command": ["echo", "{{ seed }}"]},
            "two": {"kind": "command", "parent": "one", "command": ["true"], "env": {"HF_HUB_OFFLINE": "0"}},
        },
    }
    cluster = ClusterProfile.model_validate(
        {
            **{"name": "alps", "ssh_conn_id": "alps", "run_root": "/runs", "python": "/venv/bin/python"},
            **{"megatron_lm_dir": "/ours", **(profile or {})},
        }
    )
    plan = check_sweep(load_sweep_text(json.dumps(spec), "s.yaml"), cluster)
    return {job.name: job for job in plan.jobs}


def test_its_command_names_every_item() -> None:
    found = jobs(ITEMS)
    job = found["s.fetch"]
    assert job.command[:4] == ("/venv/bin/python", "/ours/prefetch.py", "--home", "/runs/s/.prefetched")
    items = [json.loads(word) for word in job.command[4:]]
    keys = {item.pop("key") for item in items}
    assert len(keys) == len(items) == 6
    tokenizer = items.pop(2)
    assert (tokenizer["name"], tokenizer["tokenizer"]) == ("tokenizer gpt2", "gpt2")
    assert "tokenizer*" in tokenizer["files"]
    assert items == [
        {"name": "model our/tiny", "model": "our/tiny"},
        {
            **{"name": "model our/big v1", "model": "our/big", "revision": "v1"},
            "files": ["*.json", "*.safetensors"],
        },
        {"name": "dataset allenai/ai2_arc ARC-Easy", "dataset": "allenai/ai2_arc", "config": "ARC-Easy"},
        {"name": "task hellaswag", "task": "hellaswag"},
        {
            **{"name": "file words.txt", "file": "words.txt"},
            "url": "https://example.org/a/words.txt?download=1",
        },
    ]


def test_the_jobs_after_it_run_offline() -> None:
    found = jobs(ITEMS)
    home = {"HF_HOME": "/runs/s/.prefetched"}
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    lines = found["s.p1.one"].env[PREFETCHED].split("\n")
    assert lines[:2] == ["/runs/s/.prefetched", "s"]
    assert lines[2:] == [f"{item['key']} {item['name']}" for item in prefetched_items(found["s.fetch"])]
    assert found["s.p1.one"].env == {**home, **offline, PREFETCHED: "\n".join(lines)}
    assert found["s.p2.two"].env == {**found["s.p1.one"].env, "HF_HUB_OFFLINE": "0"}
    assert found["s.prepare"].env == found["s.fetch"].env == {}


def test_a_longer_list_repeats_no_job_after_it() -> None:
    short, long = jobs({"models": ["gpt2"]}), jobs(ITEMS)
    same = {name for name, job in short.items() if job_digest(job) == job_digest(long[name])}
    assert same == {*short} - {"s.fetch"}
    assert short["s.p1.one"].env[PREFETCHED] != long["s.p1.one"].env[PREFETCHED]


def test_a_cache_of_the_site_is_used() -> None:
    found = jobs({"models": ["gpt2"]}, {"env": {"HF_HOME": "/shared/hf/"}})
    assert found["s.fetch"].command[3] == found["s.p1.one"].env["HF_HOME"] == "/shared/hf"
    found = jobs({"models": ["gpt2"]}, {"env": {"HF_HOME": "/shared/hf"}}, env={"HF_HOME": "/mine"})
    assert found["s.fetch"].command[3] == found["s.p1.one"].env["HF_HOME"] == "/mine"


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({}, "stage fetch fetches nothing; add params: {models: [gpt2]}"),
        ({"models": "gpt2"}, "models is 'gpt2'; write a list: models: [gpt2]"),
        ({"models": [3]}, "3 is no item of models; write a name or {name: …, revision: …, files: …}"),
        ({"models": [{"name": "gpt2", "branch": "x"}]}, "is no item of models"),
        ({"models": ["/data/gpt2"]}, "'/data/gpt2' is no repository of the hub; write OWNER/NAME"),
        *(
            ({"models": [name]}, f"{name!r} is no repository of the hub; write OWNER/NAME")
            for name in (
                "..",
                "a--b",
                "-gpt2",
                "gpt2.git",
                "gpt2-",
                "a/.b",
                "a..b",
                "a/b.git",
                ".a",
                "a/-b",
                "a.",
            )
        ),
        ({"models": ["o/" + "n" * 97]}, "is no repository of the hub"),
        ({"tasks": ["arc_easy,mmlu"]}, "'arc_easy,mmlu' is no task; write one name for each item"),
        ({"tasks": ["arc_easy@x"]}, "'arc_easy@x' is no task"),
        (
            {"urls": ["https://a/x", "https://b/x"]},
            "https://a/x and https://b/x would both be stored as x; add file: NAME to one of them",
        ),
        ({"tasks": ["a\nb"]}, r"name is 'a\nb'; write text in one line"),
        ({"datasets": [{"name": "c4", "config": 3}]}, "config is 3; write text in one line"),
        ({"urls": ["ftp://x/y"]}, "'ftp://x/y' is no address; write https://…"),
        ({"urls": ["https://example.org/"]}, "'' is no name of a file; add file: NAME"),
        ({"urls": [{"url": "https://x/y", "file": "../y"}]}, "'../y' is no name of a file"),
        ({"urls": [{"url": "https://x/y", "sha256": "abc"}]}, "write 64 hexadecimal digits"),
    ],
)
def test_items_that_are_wrong(params: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        jobs(params)
    assert told in str(caught.value)


def test_tasks_as_an_evaluation_names_them() -> None:
    """One list of a sweep's ``params`` serves both stages."""
    job = jobs({"tasks": ["arc_easy@25", "arc_easy", "mmlu@0"]})["s.fetch"]
    assert [item["task"] for item in prefetched_items(job)] == ["arc_easy", "mmlu"]


@pytest.mark.parametrize(
    "name", ["_a", "a", "gpt2", "a-b/c.d_e", "o/" + "n" * 96, "a.gitx", "Qwen/Qwen2.5-0.5B"]
)
def test_repositories_of_the_hub(name: str) -> None:
    assert jobs({"models": [name]})["s.fetch"].command


def test_an_address_may_be_given_twice() -> None:
    assert jobs({"urls": ["https://a/x", "https://a/x", {"url": "https://b/x", "file": "y"}]})[
        "s.fetch"
    ].command


def test_it_runs_once_for_the_sweep() -> None:
    with pytest.raises(SpecError, match="add scope: sweep"):
        jobs({"models": ["gpt2"]}, scope="point")


def test_it_may_run_on_the_login_node_first() -> None:
    here = [jobs({"models": ["gpt2"], **where})["s.fetch"] for where in ({}, {"where": "login"})]
    assert [job.stage_kind.runs_first_on_login_node(job) for job in here] == [False, True]
    assert here[0].command == here[1].command
    with pytest.raises(SpecError, match="write login or job"):
        jobs({"models": ["gpt2"], "where": "laptop"})
    with pytest.raises(SpecError, match="a login node gets no secrets from Airflow"):
        jobs({"models": ["gpt2"], "where": "login"}, secrets={"HF_TOKEN": {"variable": "hf"}})


def test_a_job_reports_missing_items_before_it_starts(tmp_path: Path) -> None:
    home = tmp_path / "it's here"
    lines = [str(home), "s", "k1 model our/tiny", "k2 task arc_easy", "k3 file words.txt"]

    def check() -> tuple[int, str]:
        words = [shell_file("prefetched"), 'am_check_prefetched "$1" || exit', "echo started"]
        done = subprocess.run(
            ["bash", "-c", "\n".join(words), "job", "\n".join(lines)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout == "started\n") == (done.returncode == 0)
        return done.returncode, done.stderr

    def told(missing: str) -> str:
        return (
            f"airflow-megatron: error: {missing}; this job runs offline: clear the prefetch stage of s, or run: "
            "airflow-megatron prefetch s\n"
        )

    assert check() == (
        1,
        told(f"3 of 3 items are not in {home}: model our/tiny, task arc_easy, file words.txt"),
    )
    (home / "prefetched").mkdir(parents=True)
    (home / "hub").mkdir()
    (home / "hub" / "a b").write_text("12345")
    (home / "hub" / "link").symlink_to("a b")
    for key in ("k1", "k2", "k3"):
        (home / "prefetched" / key).write_text("5\thub/a b\n5\thub/link\n")
    assert check() == (0, "")
    (home / "prefetched" / "k2").write_text("5\thub/a b\n6\thub/link\n")
    assert check() == (1, told(f"1 of 3 items are not in {home}: task arc_easy (hub/link)"))
    lines[2:] = [f"n{number} model our/m{number}" for number in range(12)]
    assert check()[1].count("model our/m") == 10
    assert "model our/m9 and 2 more; " in check()[1]


def test_only_jobs_after_it_are_checked() -> None:
    cluster = ClusterProfile.model_validate(
        {
            **{"name": "alps", "ssh_conn_id": "alps", "run_root": "/runs", "python": "/venv/bin/python"},
            "megatron_lm_dir": "/ours",
        }
    )
    found = jobs(ITEMS)
    checked = {name for name, job in found.items() if "am_check_prefetched '" in job_script(job, cluster, 1)}
    assert checked == {"s.p1.one", "s.p1.two", "s.p2.one", "s.p2.two"}
