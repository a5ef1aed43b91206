"""Convert and evaluate stages: their commands and checks."""

from __future__ import annotations

import ast
import importlib
import json
from typing import TYPE_CHECKING

import pytest
import yaml
from example_specs import MODEL, spec_text

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.megatron.commands.conversion_options import ARCHITECTURES
from airflow_megatron.megatron.commands.evaluation_options import GIVEN, evaluation_options
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

STAGES = """\
stages:
  pretrain: {{kind: train, megatron: {{train_iters: 100, save_interval: 50, {model}}}}}
  convert:
    kind: convert
    parent: pretrain
    params: {{tokenizer: /tok, {convert}}}
    slurm: {{gpus_per_node: {gpus}}}
  evaluate:
    kind: evaluate
    parent: convert
    params: {{{evaluate}}}
    slurm: {{gpus_per_node: {gpus}}}
"""
OPENSCI = {
    "qk_layernorm": True,
    "normalization": "RMSNorm",
    "swiglu": True,
    "position_embedding_type": "rope",
}
ARGUMENTS = json.dumps({**MODEL, **OPENSCI})[1:-1]


def commands(
    cluster: ClusterProfile, *, convert: str = "", evaluate: str = "tasks: [a]", gpus: int = 1
) -> dict[str, list[str]]:
    """Return the words of each stage's command, without interpreter and script."""
    stages = STAGES.format(convert=convert, evaluate=evaluate, gpus=gpus, model=ARGUMENTS)
    plan = check_sweep(load_sweep_text(spec_text(point="p", stages=stages), "s.yaml"), cluster)
    return {job.stage.rpartition(".")[2]: list(job.command[2:]) for job in plan.jobs}


@pytest.mark.slow
def test_plain_stages_ask_for_nothing(cluster: ClusterProfile) -> None:
    words = commands(cluster)
    run = "/scratch/runs/example/p"
    assert words["convert"] == [
        *("--load", f"{run}/checkpoints", "--iteration", "100", "--output", f"{run}/converted_hf/iter_100"),
        *("--tokenizer", "/tok", "--done-marker", f"{run}/converted_checkpoints/iter_100.done"),
    ]
    assert words["evaluate"] == [
        *("--model", f"{run}/converted_hf/iter_100", "--output", f"{run}/eval_results/iter_100/results.json"),
        *("--tasks", "a"),
    ]


@pytest.mark.slow
def test_conversion_by_others(cluster: ClusterProfile) -> None:
    words = commands(
        cluster,
        convert="converter: /ours/to_hf.py, hf_architecture: opensci,"
        " converter_arguments: [--load_path, '{checkpoint}']",
    )
    assert words["convert"][-6:] == [
        *("--architecture", "opensci", "--converter", "/ours/to_hf.py"),
        *("--converter-argument=--load_path", "--converter-argument={checkpoint}"),
    ]
    words = commands(cluster, convert="converter: megatron_bridge, hf_config: /deepseek")
    assert words["convert"][-4:] == ["--converter", "megatron_bridge", "--hf-config", "/deepseek"]


@pytest.mark.slow
def test_the_evaluation_takes_what_is_rendered(
    cluster: ClusterProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
      tasks: [heldout, 'arc_easy@25', {task: mmlu, num_fewshot: 5}, mmlu], tasks_dir: [/a, /b], num_fewshot: 0,
      limit: 0.5, eval_backend: vllm, eval_batch_size: auto,
      eval_backend_arguments: {tensor_parallel_size: 2, enforce_eager: true, dtype: bfloat16}
    """
    words = commands(cluster, evaluate=" ".join(text.split()), gpus=2)["evaluate"]
    monkeypatch.syspath_prepend(project_root() / "Megatron-LM")
    args = importlib.import_module("evaluate_hf").build_parser().parse_args(words)
    assert [str(path) for path in args.tasks_dir] == ["/a", "/b"]
    assert (args.limit, args.backend, args.batch_size, args.num_fewshot) == (0.5, "vllm", "auto", 0)
    arguments = dict(word.split("=", 1) for word in args.backend_argument)
    assert {name: yaml.safe_load(value) for name, value in arguments.items()} == {
        "tensor_parallel_size": 2,
        "enforce_eager": True,
        "dtype": "bfloat16",
    }
    requests = importlib.import_module("megatron_core_trainer.evaluation.evaluation_requests")
    found = requests.parse_requests(args.tasks, args.num_fewshot)
    assert [(request.name, request.num_fewshot) for request in found] == [
        ("heldout", 0),
        ("arc_easy", 25),
        ("mmlu", 5),
        ("mmlu", 0),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"dtype": "bfloat16", "max_length": 2048},
        {"dtype": "float64", "max_length": "128"},
        {"dtype": None, "max_length": None},
        {"dtype": "", "max_length": 0},
        {"dtype": "auto", "add_bos_token": True},
        {"dtype": "half"},
        {"dtype": "@file:/run/dtype"},
    ],
)
def test_backend_arguments_that_the_harness_takes(arguments: dict[str, object]) -> None:
    words = list(evaluation_options(["a"], {"eval_backend_arguments": arguments}))
    assert words.count("--backend-argument") == len(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            {"dtype": value}
            for value in ("float99", "int8", 16, True, [1], "Float16", "torch.float16", "a,b")
        ),
        *({"max_length": value} for value in (-1, 1.5, True, "text", "", [1], "²")),
    ],
)
def test_backend_arguments_with_which_the_harness_ends(arguments: dict[str, object]) -> None:
    (name,) = arguments
    with pytest.raises(CommandError, match=rf"^eval_backend_arguments: {name} .* is not a "):
        list(evaluation_options(["a"], {"eval_backend_arguments": arguments}))
    assert list(evaluation_options(["a"], {"eval_backend": "vllm", "eval_backend_arguments": arguments}))


@pytest.mark.parametrize("given", [[""], [None], ["/a", None], {"a": 1}, [["/a"]], 7, [True]])
def test_directories_of_tasks_that_are_none(given: object) -> None:
    with pytest.raises(
        CommandError, match=r"^tasks_dir: .* is not a directory; write one directory, or a list"
    ):
        list(evaluation_options(["a"], {"tasks_dir": given}))


@pytest.mark.parametrize("given", [None, "", [], "/a", ["/a", "b"]])
def test_directories_of_tasks(given: object) -> None:
    words = list(evaluation_options(["a"], {"tasks_dir": given}))
    assert words.count("--tasks-dir") == (len(given) if isinstance(given, list) else bool(given))


@pytest.mark.parametrize("size", [1, 64, "64", "auto", "auto:4", "auto:0.5", "auto:10"])
def test_batch_sizes_that_the_harness_takes(size: object) -> None:
    """``auto:N`` is ``float(N)``, by which it divides the number of requests (lm_eval/models/huggingface.py)."""
    words = list(evaluation_options(["a"], {"eval_batch_size": size}))
    assert words == ["--tasks", "a", "--batch-size", str(size)]


@pytest.mark.parametrize(
    "size",
    [
        0,
        -4,
        1.5,
        True,
        "0",
        "Auto",
        "auto:",
        "auto:0",
        "auto:0.0",
        "auto:-1",
        "auto:x",
        "auto4",
        "auto:4:2",
        "",
        "auto:4\n",
    ],
)
def test_batch_sizes_that_it_does_not_take(size: object) -> None:
    with pytest.raises(
        CommandError, match=r"is not a whole number of 1 or more, auto, or auto:N with N above 0"
    ):
        list(evaluation_options(["a"], {"eval_batch_size": size}))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"convert": "converter: mbrige"},
            "s.yaml:8:31: there is no converter 'mbrige', and it is no .py file; did you mean 'mbridge'",
        ),
        (
            {"convert": "hf_architecture: qwen4"},
            "'qwen4', and it is no .yaml file; did you mean 'qwen",
        ),
        (
            {"convert": "converter: mbridge", "gpus": 0},
            "mbridge converts on a GPU, and the job requests none",
        ),
        (
            {"convert": "converter_arguments: [x]"},
            "converter_arguments are for a converter that is a Python script",
        ),
        ({"convert": "hf_config: /x"}, "hf_config is for another converter"),
        ({"evaluate": "tasks: [a, a]"}, "s.yaml:13:14: tasks names a twice"),
        ({"evaluate": "tasks: ['a b']"}, "'a b' is not a task; write its name, or name@5"),
        ({"evaluate": "tasks: [a@x]"}, "'a@x' is not a task"),
        (
            {"evaluate": "tasks: [{task: a, num_fewshots: 5}]"},
            "'num_fewshots' of a task; did you mean 'num_fewshot'",
        ),
        ({"evaluate": "tasks: [a], limit: 0"}, "limit is 0; write a number of items"),
        ({"evaluate": "tasks: [a], limit: 1.5"}, "limit is 1.5; write a number of items"),
        ({"evaluate": "tasks: [a], limit: 1.0"}, "limit is 1.0; write a number of items"),
        ({"evaluate": "tasks: [a], limit: .inf"}, "limit is inf; write a number of items"),
        (
            {"evaluate": "tasks: [a, 'a@5'], num_fewshot: 5"},
            "s.yaml:13:14: tasks names a and a@5, which are the same with num_fewshot 5",
        ),
        (
            {"evaluate": "tasks: [a], eval_batch_size: 0"},
            "eval_batch_size: 0 is not a whole number of 1 or more",
        ),
        (
            {"evaluate": "tasks: [a], eval_backend_arguments: {pretrained: /x}"},
            "pretrained is given by the stage; name another model with start: {from: DIRECTORY}",
        ),
        (
            {"evaluate": "tasks: [a], eval_backend_arguments: {batch_size: 8}"},
            "batch_size is given by the stage; write eval_batch_size: N",
        ),
        ({"evaluate": "tasks: [a], num_fewshot: -1"}, "num_fewshot: -1 is not a whole number"),
        (
            {"evaluate": "tasks: [a], eval_backend: vlm"},
            "there is no eval_backend 'vlm'; did you mean 'vllm'",
        ),
        (
            {"evaluate": "tasks: [a], eval_backend_arguments: [2]"},
            "eval_backend_arguments is [2]; write names with",
        ),
        (
            {"evaluate": "tasks: [a], eval_backend: vllm, eval_backend_arguments: {tensor_parallel_size: 4}"},
            "vllm runs on 4 GPUs, and the job requests 1 (set slurm: {gpus_per_node: 4}",
        ),
    ],
)
def test_what_is_refused(wrong: dict[str, str], message: str, cluster: ClusterProfile) -> None:
    with pytest.raises(SpecError) as caught:
        commands(cluster, **wrong)
    assert message in str(caught.value)


@pytest.mark.parametrize("tokenizer", ["[/tok]", "1", "true", "{name: gpt2}"])
def test_a_tokenizer_that_is_no_text(tokenizer: str, cluster: ClusterProfile) -> None:
    stages = STAGES.format(convert="", evaluate="tasks: [a]", gpus=1, model=ARGUMENTS)
    text = spec_text(point="p", stages=stages.replace("tokenizer: /tok", f"tokenizer: {tokenizer}"))
    with pytest.raises(
        SpecError, match=r"^s\.yaml:8:.* tokenizer is .*; write its directory, or its name on the"
    ):
        check_sweep(load_sweep_text(text, "s.yaml"), cluster)


def test_what_a_stage_gives_the_evaluation_is_what_its_program_takes_no_second_time() -> None:
    folder = project_root() / "Megatron-LM" / "megatron_core_trainer" / "evaluation"
    (taken,) = [
        line
        for line in (folder / "evaluation_models.py").read_text().splitlines()
        if line.startswith("_TAKEN")
    ]
    assert {name for name in GIVEN if name != "model"} == set(ast.literal_eval(taken.partition("= ")[2]))


@pytest.mark.slow
def test_a_param_that_is_almost_read(cluster: ClusterProfile) -> None:
    stages = STAGES.format(convert="", evaluate="tasks: [a], limits: 5", gpus=1, model=ARGUMENTS)
    text = spec_text(point="p", stages=stages)
    plan = check_sweep(load_sweep_text(text, "s.yaml"), cluster)
    (warning,) = [str(found) for found in plan.warnings if "limits" in str(found)]
    assert "evaluate does not read limits" in warning
    assert "did you mean 'limit'?" in warning


def test_the_architectures_that_a_spec_may_name_are_there() -> None:
    folder = project_root() / "Megatron-LM" / "megatron_core_trainer" / "conversion" / "architectures"
    assert tuple(sorted(path.stem for path in folder.glob("*.yaml"))) == ARCHITECTURES
