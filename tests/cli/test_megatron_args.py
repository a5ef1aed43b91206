from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from airflow_megatron.cli.megatron_args import app

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("release", ["0.16.1", "v0.16.1", "core_v0.16.1"])
def test_a_release_is_named_by_its_tag_or_its_number(release: str) -> None:
    line = json.dumps({"argv": ["--num-layer", "4"], "world_size": 1})
    result = CliRunner().invoke(app, ["check", "--release", release], input=line)
    assert result.exit_code == 0, result.output
    assert "core_v0.16.1 has no argument --num-layer" in json.loads(result.stdout)["problems"][0]["message"]


def test_a_release_that_is_not_known() -> None:
    result = CliRunner().invoke(app, ["check", "--release", "0.16.0"], input="")
    assert result.exit_code == 2
    assert "0.16.0: no such release; known are" in result.output
    assert "did you mean core_v0.16.1?" in result.output


def test_a_file_of_command_lines_is_not_an_argument() -> None:
    for options in ([], ["--env", "A=1"]):
        result = CliRunner().invoke(app, ["check", "--release", "0.16.1", *options, "my c.jsonl"], input="")
        assert result.exit_code == 2
        assert "reads its command lines from standard input, not from 'my c.jsonl'" in result.output
        assert "write check … < 'my c.jsonl'" in result.output
    usage = CliRunner().invoke(app, ["check", "--help"]).output.partition("Check command lines")[0]
    assert usage.split()[-1] == "[OPTIONS]"


COMMAND = [
    *("--num-layers", "12", "--hidden-size", "768", "--num-attention-heads", "12", "--seq-length", "1024"),
    *("--max-position-embeddings", "1024", "--micro-batch-size", "4", "--global-batch-size", "64"),
    *("--train-iters", "100", "--lr", "3e-4", "--bf16", "--eval-interval", "50"),
    *("--vocab-file", "vocab.json", "--merge-file", "merges.txt", "--mock-data"),
]
ROTARY = ["--position-embedding-type", "rope"]
SPLIT = ["--tensor-model-parallel-size", "2"]
DISTILL = ["--export-kd-cfg", "distill.yaml"]


def rules(*options: str, argv: list[str], release: str = "0.19.0", **line: object) -> list[str]:
    """Return the names of the rules that a command line violates, from the output of the command."""
    text = json.dumps({"argv": COMMAND + argv, "world_size": 8, **line})
    result = CliRunner().invoke(app, ["check", "--release", release, *options], input=text)
    assert result.exit_code == 0, result.output
    return [problem["rule"] for problem in json.loads(result.stdout)["problems"]]


def test_the_first_iteration_is_checked_on_request() -> None:
    assert rules(argv=["--eval-interval", "0"]) == []
    assert rules("--first-iteration", argv=["--eval-interval", "0"]) == ["iteration.evaluation-interval"]
    assert rules("--first-iteration", argv=[]) == []


@pytest.mark.slow
def test_a_machine_is_described() -> None:
    assert rules(argv=ROTARY) == ["network.rope-fusion"]
    assert rules("--transformer-engine", "2.8", argv=ROTARY) == []
    assert rules(argv=SPLIT) == []
    connections = ["parallel.cuda-device-max-connections"]
    eight = "CUDA_DEVICE_MAX_CONNECTIONS=8"
    assert rules("--env", eight, argv=SPLIT) == connections
    assert rules("--env", "NCCL_ALGO=Ring", eight, argv=SPLIT) == connections
    assert rules("--env", "NCCL_ALGO=Ring", "--env", eight, argv=SPLIT) == connections
    assert rules("--env", eight, "--compute-capability", "10", argv=SPLIT) == []
    assert rules(argv=SPLIT, env={}) == connections
    assert rules("--packages", "flashinfer,modelopt", argv=DISTILL) == []
    assert rules("--packages", "flashinfer", argv=DISTILL) == ["parse.package-flag"]


def test_the_machine_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there.yaml").write_text(
        "ssh_conn_id: x\nrun_root: /runs\npython: python3\nmegatron_lm_dir: /m\n"
        "gpu: b200\nenv: {CUDA_DEVICE_MAX_CONNECTIONS: 8}\n"
        "trainers: {megatron_lm: {transformer_engine: '2.8', packages: [modelopt]}}\n"
    )
    monkeypatch.setattr("airflow_megatron.spec.model.cluster_profile.clusters_dir", lambda: tmp_path)
    assert rules("--cluster", "there", argv=ROTARY + SPLIT + DISTILL) == []
    hopper = ("--compute-capability", "9")
    assert rules("--cluster", "there", *hopper, argv=SPLIT) == ["parallel.cuda-device-max-connections"]
    assert rules("--cluster", "there", *hopper, argv=SPLIT, env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}) == []


@pytest.mark.parametrize(
    "options",
    [
        ["--env", "NAME"],
        ["--cluster", "nowhere"],
        ["--transformer-engine", "x"],
        ["--compute-capability", "x"],
        ["--compute-capability", "90"],
        ["--compute-capability", "-1"],
        ["--compute-capability", "nan"],
    ],
)
def test_a_machine_that_cannot_be_read(options: list[str]) -> None:
    result = CliRunner().invoke(app, ["check", "--release", "0.19.0", *options], input="")
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
