"""Stages that would write the same files are refused, except stages that follow each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from example_specs import spec_text

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

MODEL = "megatron: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 128,\
 seq_length: 128, global_batch_size: 8, micro_batch_size: 8, lr: 1e-3, data_path: [/d],\
 tokenizer_type: NullTokenizer, vocab_size: 100, save_interval: 50, eval_interval: 50, train_iters: 100,\
 override_opt_param_scheduler: true}\nparams: {tokenizer: /tok, tasks: [a]}"


def problems(stages: str, cluster: ClusterProfile, sweep: str = "seed: [1, 2]") -> list[str]:
    text = spec_text(sweep, point="p{{ seed }}", stages=f"stages:\n{stages}", more=MODEL)
    try:
        check_sweep(load_sweep_text(text, "s.yaml"), cluster)
    except SpecError as error:
        return [str(problem) for problem in error.problems]
    return []


CHAIN = "  train: {kind: train}\n  convert: {kind: convert, parent: train}\n"
EACH = "  train: {kind: train}\n  convert: {kind: convert, parent: train, each_checkpoint: true}\n"


@pytest.mark.parametrize(
    ("stages", "one", "line", "path"),
    [
        (
            CHAIN + "  quick: {kind: evaluate, parent: convert}\n  full: {kind: evaluate, parent: convert}\n",
            "train.quick",
            10,
            "eval_results/iter_100/results.json",
        ),
        (
            CHAIN + "  quick: {kind: evaluate, parent: convert}\n  full: {kind: evaluate, parent: quick}\n",
            "train.quick",
            10,
            "eval_results/iter_100/results.json",
        ),
        (
            EACH
            + "  quick: {kind: evaluate, parent: convert, each_checkpoint: true}\n"
            + "  full: {kind: evaluate, parent: convert, each_checkpoint: true}\n",
            "train.quick",
            10,
            "eval_results/iter_*/results.json",
        ),
        (
            EACH
            + "  quick: {kind: evaluate, parent: convert, each_checkpoint: true}\n"
            + "  full: {kind: evaluate, parent: convert, params: {iteration: 100}}\n",
            "train.quick",
            10,
            "eval_results/iter_100/results.json",
        ),
        (CHAIN + "  again: {kind: convert, parent: train}\n", "train.convert", 9, "converted_hf/iter_100"),
        (
            CHAIN + "  eval: {kind: evaluate, parent: convert, for_each: {shots: [0, 5]}}\n",
            "train.eval_0",
            10,
            "eval_results/iter_100/results.json",
        ),
        (
            (
                "  a: {kind: command, command: [x], outputs: [/data/out]}\n"
                "  b: {kind: command, command: [y], outputs: [/data/out]}\n"
            ),
            "a",
            8,
            "/data/out",
        ),
    ],
)
def test_two_stages_that_write_the_same_are_refused_by_name_and_line(
    cluster: ClusterProfile, stages: str, one: str, line: int, path: str
) -> None:
    found = problems(stages, cluster)
    assert len([text for text in found if f"stage {one} (line {line})" in text]) == 1
    assert path in found[0]


def test_two_points_that_write_the_same_are_refused(cluster: ClusterProfile) -> None:
    (found,) = problems("  a: {kind: command, command: [x], outputs: [/data/out]}\n", cluster)
    assert "stage a at point p1 (line 8)" in found
    assert "with the point's values in it" in found
    (found,) = problems("  a: {kind: train, megatron: {save: /all/checkpoints}}\n", cluster)
    assert "/all/checkpoints/latest_checkpointed_iteration.txt" in found


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages",
    [
        CHAIN + "  eval: {kind: evaluate, parent: convert}\n",
        EACH + "  eval: {kind: evaluate, parent: convert, each_checkpoint: true}\n",
        # other checkpoints
        CHAIN
        + "  half: {kind: convert, parent: train, start: {checkpoint: 50}}\n"
        + "  eval: {kind: evaluate, parent: convert}\n",
        (
            "  train: {kind: train}\n  convert: {kind: convert, parent: train, each_checkpoint: {from_iteration: 80}}\n"
            "  half: {kind: convert, parent: train, start: {checkpoint: 50}}\n"
        ),
        # a branch has a separate directory
        (
            "  train: {kind: train}\n  more: {kind: train, parent: train, start: {checkpoint: 50}}\n"
            "  convert: {kind: convert, parent: [train, more]}\n"
        ),
        # one after the other on one file
        (
            "  a: {kind: command, command: [x], outputs: [table]}\n"
            '  b: {kind: command, parent: a, command: [y], outputs: ["{{ parent.run_dir }}/table"]}\n'
        ),
        # a second evaluation of a model in a separate directory
        CHAIN
        + "  quick: {kind: evaluate, parent: convert}\n"
        + '  full: {kind: evaluate, parent: convert, start: {from: "{{ parent.run_dir }}/converted_hf/iter_100"}}\n',
        # commands of the user's own
        CHAIN
        + "  quick: {kind: command, parent: convert, command: [x]}\n"
        + "  full: {kind: command, parent: convert, command: [y]}\n",
    ],
)
def test_sequences_and_other_directories_are_not(cluster: ClusterProfile, stages: str) -> None:
    assert problems(stages, cluster) == []
