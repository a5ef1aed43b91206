"""What a spec may hold: each wrong place is told once, with file, line, column and hint."""

from __future__ import annotations

import pytest
from example_specs import CHAIN, STAGES, spec_text

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.spec_files import load_sweep_text


def told(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_sweep_text(text, "s.yaml")
    return str(caught.value).splitlines()


def with_stage(lines: str) -> str:
    return f"name: x\npoint: p\nstages:\n  pretrain:\n    kind: train\n    {lines}\n"


def test_a_whole_spec() -> None:
    sweep = load_sweep_text(CHAIN, "s.yaml")
    assert sweep.name == "chain"
    assert (sweep.spec.cluster, sweep.spec.trainer, sweep.spec.release) == (
        "local",
        "megatron_core",
        "core_v0.16.1",
    )


def test_the_file_names_the_sweep() -> None:
    assert load_sweep_text(f"point: p\n{STAGES}", "specs/warm-up.yaml").name == "warm-up"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"pont: p\npoint: p\n{STAGES}",
            "s.yaml:1:1: unknown key 'pont' (did you mean 'point'?)",
        ),
        (with_stage("megatorn: {lr: 1}"), "s.yaml:6:5: unknown key 'megatorn' (did you mean 'megatron'?)"),
        (
            with_stage("slurm: {gpus: 4}"),
            "s.yaml:6:13: unknown key 'gpus' (known here: account, constraint, ",
        ),
        (with_stage("slurm: {cpu_per_task: 4}"), "(did you mean 'cpus_per_task'?)"),
        (
            with_stage("restart: {retriable: 4}"),
            "s.yaml:6:15: unknown key 'retriable' (did you mean 'retryable'?)",
        ),
        ("name: x\n" + STAGES, "s.yaml:1:1: 'point' is missing (add point: …)"),
        ("name: x\npoint: p\n", "s.yaml:1:1: 'stages' is missing (add stages: …, or benchmark: …)"),
        ("name: x\npoint: p\nstages:\n  a: {parent: b}\n", "s.yaml:4:3: 'kind' is missing (add kind: …)"),
        ("name: x\npoint: p\nstages: {}\n", "'stages' is missing"),
        ("[1, 2]\n", "s.yaml:1:1: expected keys with values (write name: …)"),
        (
            spec_text(point="p", more="max_active_points: many"),
            "s.yaml:3:1: max_active_points is 'many' (expected a whole number)",
        ),
        (spec_text(point="p", more="max_active_points: 0"), "greater than or equal to 1"),
        (spec_text(point="p", more="tags: wide"), "s.yaml:3:1: tags is 'wide' (expected a list)"),
        (spec_text(point="p", more="wrapper: nsys"), "s.yaml:3:1: wrapper is 'nsys' (expected a list)"),
        (
            spec_text(point="p", more="description: 3"),
            "s.yaml:3:1: description is 3 (expected text (quote it))",
        ),
        (
            spec_text(point="p", more="megatron: [lr]"),
            "s.yaml:3:1: megatron is ['lr'] (expected keys with values)",
        ),
        (
            spec_text(point="p", more="trainer: megatron"),
            "trainer is 'megatron' (expected one of 'megatron_core', 'megatron_lm' or 'megatron_deepspeed')",
        ),
        (
            with_stage("slurm: {time: soon}"),
            "slurm.time: 'soon' is not a duration (write 30m, 6h or 06:00:00)",
        ),
        (
            with_stage("slurm: {nodes: two}"),
            "s.yaml:6:13: stages.pretrain.slurm.nodes is 'two' (expected a whole number or an expression \"{{ … }}\")",
        ),
        (with_stage("slurm: {nodes: true}"), "expected a whole number"),
        (with_stage("slurm: {nodes: 1.5}"), "expected a whole number"),
        (with_stage("slurm: {nodes: -1}"), "greater than or equal to 0"),
        (
            "name: a.b\npoint: p\n" + STAGES,
            "s.yaml:1:1: name is 'a.b' (expected letters, digits, '_' and '-')",
        ),
        ("name: x\npoint: p\nstages:\n  a b: {kind: train}\n", "letters, digits, '_' and '-'"),
        (
            "name: x\npoint: p\nstages:\n  a: {kind: trian}\n",
            "expected one of 'train', 'lr_finder', 'benchmark', 'convert', 'evaluate', 'prefetch' or 'command'",
        ),
    ],
)
def test_wrong_places(text: str, message: str) -> None:
    assert any(message in line for line in told(text)), told(text)


def test_all_problems_are_reported_together_in_order() -> None:
    lines = told("pont: p\nname: a.b\npoll_interval: often\nstages:\n  pretrain: {kind: trian}\n")
    assert len(lines) == 5
    assert [int(line.split(":")[1]) for line in lines] == sorted(int(line.split(":")[1]) for line in lines)


def test_durations_and_expressions_are_read() -> None:
    text = with_stage('slurm: {time: 06:00:00, nodes: "{{ 2 * 2 }}", signal_before: 2m, cpus_per_task: 0x10}')
    slurm = load_sweep_text(text, "s.yaml").spec.stages["pretrain"].slurm
    assert (slurm.time, slurm.nodes, slurm.signal_before, slurm.cpus_per_task) == (
        21600,
        "{{ 2 * 2 }}",
        120,
        16,
    )
