"""Text for a shell where no shell reads it is reported; the program of a shell is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from example_specs import spec_text

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

COMMAND = "  a: {kind: command, command: [sh, -c, exit]}\n"
MODEL = "megatron: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 128,\
 seq_length: 128, global_batch_size: 8, micro_batch_size: 8, lr: 1e-3, train_iters: 100, save_interval: 50,\
 tokenizer_type: NullTokenizer, vocab_size: 100, data_path: [%s]}\n"


def warnings(more: str, stages: str, cluster: ClusterProfile) -> list[str]:
    text = spec_text("seed: [1, 2]", point="p{{ seed }}", stages=f"stages:\n{stages}", more=more)
    plan = check_sweep(load_sweep_text(text, "s.yaml"), cluster)
    return [str(problem) for problem in plan.warnings if "shell" in str(problem)]


@pytest.mark.parametrize("value", ["$SCRATCH/x", "/opt/lib:$LD_LIBRARY_PATH", "${HOME}/x", "$(hostname)"])
def test_a_variable_of_the_spec(value: str, cluster: ClusterProfile) -> None:
    (one,) = warnings(f'env: {{PLACE: "{value}"}}', COMMAND, cluster)
    assert f"env sets PLACE to the text {value!r}, which no shell expands; the same at 1 more point" in one
    assert "setup of the cluster profile" in one


def test_a_variable_of_the_profile(cluster: ClusterProfile) -> None:
    profile = cluster.model_copy(update={"env": {"PATH": "/opt/bin:$PATH"}})
    (one,) = warnings("", COMMAND, profile)
    assert f"env of cluster {profile.name} sets PATH to the text '/opt/bin:$PATH'" in one
    assert warnings('env: {PATH: "/bin"}', COMMAND, profile) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", ["$DATA/c4", "~/data/c4", "~other/c4"])
def test_an_argument_of_a_training(path: str, cluster: ClusterProfile) -> None:
    (one,) = warnings(MODEL % path, "  pretrain: {kind: train}\n", cluster)
    assert f"its command has the text {path!r}, which no shell expands" in one


@pytest.mark.parametrize(
    "words",
    ['[bash, -c, "echo $HOME ~/x"]', '[env, A=1, bash, -lc, "echo $HOME"]', '[echo, "5$", "a~/b", "~"]'],
)
def test_what_a_shell_reads_or_nobody_expands(words: str, cluster: ClusterProfile) -> None:
    assert (
        warnings(
            'env: {PRICE: "5 $", HF_HOME: "~/x"}', f"  a: {{kind: command, command: {words}}}\n", cluster
        )
        == []
    )
