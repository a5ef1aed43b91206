"""A model that no architecture of the converter can express is reported before its training is submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checked_chain import alps, changed, checked, errors_of, line_of

from airflow_megatron.spec.model.schema import TrainerSection

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

ODD = changed(("  vocab_size: 100\n", "  vocab_size: 100\n  rotary_interleaved: true\n"))
LLAMA = "  position_embedding_type: rope\n  normalization: RMSNorm\n  swiglu: true\n"


def upstream(**section: str) -> ClusterProfile:
    trainers = {"megatron_lm": TrainerSection(checkout="/opt/upstream", **section)}
    return alps().model_copy(update={"trainers": trainers})


def by_upstream(text: str, release: str) -> str:
    return changed(
        ("name: trunk\n", f"name: trunk\ntrainer: megatron_lm\nrelease: {release}\n"),
        ("lr: [1e-3", "micro_batch_size: [8]\n  lr: [1e-3"),
        text=text,
    )


@pytest.mark.slow
def test_where_the_setting_stands() -> None:
    (problem,) = errors_of(ODD)
    assert problem.line == line_of(ODD, "  rotary_interleaved")
    assert problem.message.startswith(
        "stage pretrain at point lr0.001: convert cannot convert its checkpoints: GPT2LMHeadModel cannot express this"
        " model: rotary_interleaved is True, not False (nor can "
    )
    assert problem.message.endswith("; the same at 1 more point and in 1 more stage")
    assert problem.hint.startswith(
        "change rotary_interleaved; or the converter or hf_architecture of convert"
    )


@pytest.mark.slow
def test_a_setting_under_its_flags_name_and_one_that_is_not_given() -> None:
    text = changed(("  vocab_size: 100\n", f"  vocab_size: 100\n{LLAMA}  disable_bias_linear: true\n"))
    assert errors_of(text) == []
    named = changed(("    parent: [", "    params: {hf_architecture: opensci}\n    parent: ["), text=text)
    assert errors_of(changed(("swiglu: true", "qk_layernorm: true\n  swiglu: true"), text=named)) == []
    (problem,) = errors_of(named)
    assert "OpensciForCausalLM cannot express this model: qk_layernorm is False, not True" in problem.message
    assert problem.line == line_of(named, "megatron:")


@pytest.mark.slow
@pytest.mark.parametrize(
    "spared",
    [
        {"params: {tokenizer": "params: {converter: /ours.py, tokenizer"},
        {"params: {tokenizer": "params: {converter: mbridge, hf_config: /there, tokenizer"},
        {"params: {tokenizer": "params: {hf_architecture: /ours.yaml, tokenizer"},
        {"kind: convert": "kind: convert\n    command: [ours]"},
        {"name: trunk": "name: trunk\nextra_arguments: {our_positions: {}}"},
    ],
    ids=["script", "library", "own-architecture", "own-command", "fork"],
)
def test_what_only_the_job_can_know(spared: dict[str, str]) -> None:
    assert errors_of(changed(*spared.items(), text=ODD)) == []


@pytest.mark.slow
@pytest.mark.parametrize("declared", ["{}", "{type: int, default: 3}", "{action: StoreTrue}"])
def test_an_argument_of_a_fork_that_is_not_given(declared: str) -> None:
    text = changed(
        ("name: trunk\n", f"name: trunk\nextra_arguments: {{our_flag: {declared}}}\n"),
        ("  vocab_size: 100\n", f"  vocab_size: 100\n{LLAMA}  disable_bias_linear: true\n"),
    )
    assert errors_of(by_upstream(text, "core_v0.16.1"), upstream()) == []


@pytest.mark.slow
@pytest.mark.parametrize("release", ["core_v0.12.0", "core_v0.19.0"])
def test_upstream(release: str) -> None:
    text = by_upstream(changed(("  vocab_size: 100\n", f"  vocab_size: 100\n{LLAMA}")), release)
    assert errors_of(text, upstream()) == []
    odd = text.replace("swiglu: true", "squared_relu: true\n  bias_gelu_fusion: false")
    problem = errors_of(odd, upstream())[0]
    assert "squared_relu is True, not False; swiglu is False, not True" in problem.message
    assert problem.line == line_of(odd, "  squared_relu")
    in_a_file = changed(("squared_relu: true", "squared_relu: true\n  yaml_cfg: /there"), text=odd)
    assert all("--yaml-cfg" in problem.message for problem in errors_of(in_a_file, upstream()))
    taken = changed(("override_opt", "use_checkpoint_args: true\n      override_opt"), text=odd)
    assert len(errors_of(taken, upstream())) == 2


@pytest.mark.slow
def test_a_template_may_add_to_the_command() -> None:
    text = changed(
        ("kind: train\n    megatron:", "kind: train\n    template: job.sbatch.j2\n    megatron:"), text=ODD
    )
    text = text.replace("parent: [pretrain, cooldown]", "parent: pretrain")
    assert any("rotary_interleaved is True" in str(warning) for warning in checked(text).warnings)
