"""Conversion to Hugging Face: the same logits, settings from the checkpoint, refusals; and evaluation of the result."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from trainer_harness import SCRIPTS, TIMEOUT_S, Data, Outcome, Trainer, pretrain_args

if TYPE_CHECKING:
    from pathlib import Path

VARIANTS = {
    "grouped_untied": [
        *("--group-query-attention", "--num-query-groups", "2", "--untie-embeddings-and-output-weights"),
        *("--rotary-base", "100000", "--norm-epsilon", "1e-6", "--kv-channels", "16"),
    ],
    "qkv_bias": [
        *("--add-qkv-bias", "--make-vocab-size-divisible-by", "1"),
        *("--use-rope-scaling", "--rope-scaling-factor", "32"),
    ],
    "half_precision": ["--bf16"],
    "maximal_update": [
        *(
            "--use-mup",
            "--mup-base-hidden-size",
            "8",
            "--mup-embedding-mult",
            "3",
            "--mup-base-head-dim",
            "4",
        ),
        *("--enable-depth-scale", "--depth-base", "1", "--group-query-attention", "--num-query-groups", "2"),
    ],
}


def brief_run(trainer: Trainer, data: Data, save: Path, extra: list[str]) -> None:
    args = pretrain_args(
        data, save, [*extra, "--lr-warmup-iters", "0", "--exit-interval", "2", "--lr", "3e-2"]
    )
    outcome = trainer.run("pretrain_gpt.py", *args)
    assert outcome.status == 0, outcome.stderr


@pytest.fixture(scope="module")
def converted(
    trainer: Trainer, reference: tuple[Outcome, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Outcome, Path]:
    """The reference run's last checkpoint, converted, in a run directory."""
    run = tmp_path_factory.mktemp("run")
    outcome = trainer.run(
        *("convert_to_hf.py", "--load", reference[1], "--output", run / "converted_hf" / "iter_12"),
        *("--done-marker", run / "converted_checkpoints" / "iter_12.done"),
    )
    assert outcome.status == 0, outcome.stderr
    return outcome, run


def test_output_and_marker(converted: tuple[Outcome, Path], data: Data) -> None:
    outcome, run = converted
    output = run / "converted_hf" / "iter_12"
    assert {path.name for path in output.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    marker = json.loads((run / "converted_checkpoints" / "iter_12.done").read_text())
    assert marker["iteration"] == 12
    assert 0 < marker["max_abs_logit_difference"] < 1e-4
    assert f"of {data.directory}/test_text_document" in outcome.stdout
    assert sorted(path.name for path in run.iterdir()) == ["converted_checkpoints", "converted_hf"]
    assert [path.name for path in output.parent.iterdir()] == ["iter_12"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_settings_come_from_the_checkpoint(
    variant: str, trainer: Trainer, data: Data, tmp_path: Path
) -> None:
    brief_run(trainer, data, tmp_path / "checkpoints", VARIANTS[variant])
    output = tmp_path / "hf"
    outcome = trainer.run("convert_to_hf.py", "--load", tmp_path / "checkpoints", "--output", output)
    assert outcome.status == 0, outcome.stderr
    config = json.loads((output / "config.json").read_text())
    assert config["vocab_size"] == 257
    if variant == "grouped_untied":
        assert config["rope_parameters"]["rope_theta"] == config["rope_theta"] == 100000.0
        assert (config["num_key_value_heads"], config["head_dim"], config["rms_norm_eps"]) == (2, 16, 1e-6)
    if variant == "qkv_bias":
        assert (config["rope_scaling"]["rope_type"], config["rope_scaling"]["factor"]) == ("llama3", 32.0)
    # The multipliers of a tied matrix differ at its two ends.
    assert config["tie_word_embeddings"] == (variant not in ("grouped_untied", "maximal_update"))
    assert config["architectures"] == ["Qwen2ForCausalLM" if variant == "qkv_bias" else "LlamaForCausalLM"]
    assert config["dtype"] == ("bfloat16" if variant == "half_precision" else "float32")


def test_biases_everywhere(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    args = pretrain_args(data, tmp_path / "checkpoints", ["--exit-interval", "2"])
    args.remove("--disable-bias-linear")
    assert trainer.run("pretrain_gpt.py", *args).status == 0
    output = tmp_path / "hf"
    outcome = trainer.run("convert_to_hf.py", "--load", tmp_path / "checkpoints", "--output", output)
    assert outcome.status == 0, outcome.stderr
    config = json.loads((output / "config.json").read_text())
    assert config["attention_bias"] is config["mlp_bias"] is True


def test_a_model_that_no_class_supports_is_refused(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    args = pretrain_args(
        data, tmp_path / "checkpoints", ["--normalization", "LayerNorm", "--exit-interval", "1"]
    )
    assert trainer.run("pretrain_gpt.py", *args).status == 0
    outcome = trainer.run(
        *("convert_to_hf.py", "--load", tmp_path / "checkpoints", "--output", tmp_path / "hf"),
        *("--architecture", "gpt2"),
    )
    assert outcome.status == 2
    assert "GPT2LMHeadModel cannot express this model: swiglu is True, not False; " in outcome.stderr
    assert "position_embedding_type is rope, not learned_absolute" in outcome.stderr
    assert not (tmp_path / "hf").exists()


def test_incomplete_checkpoint_is_refused(
    trainer: Trainer, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    shutil.copytree(reference[1], tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "iter_0000012" / "metadata.json").unlink()
    outcome = trainer.run("convert_to_hf.py", "--load", tmp_path / "checkpoints", "--output", tmp_path / "hf")
    assert outcome.status == 2
    assert "iter_0000012 is incomplete: it has no metadata.json" in outcome.stderr
    missing = trainer.run(
        "convert_to_hf.py", "--load", tmp_path / "checkpoints", "--iteration", 5, "--output", tmp_path / "hf"
    )
    assert missing.status == 2
    assert "there is no checkpoint" in missing.stderr
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("name", [".metadata", "common.pt", "__0_0.distcp"])
def test_damaged_checkpoint_is_refused(
    name: str, trainer: Trainer, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    shutil.copytree(reference[1], tmp_path / "checkpoints")
    file = tmp_path / "checkpoints" / "iter_0000012" / name
    content = file.read_bytes()
    for damaged in (bytes(len(content)), content[: len(content) // 2]):
        file.write_bytes(damaged)
        outcome = trainer.run(
            "convert_to_hf.py", "--load", tmp_path / "checkpoints", "--output", tmp_path / "hf"
        )
        assert outcome.status == 2
        assert re.search(r"error: the checkpoint \S+/iter_0000012 cannot be read: \S", outcome.stderr)
        assert "Traceback" not in outcome.stderr
        assert not (tmp_path / "hf").exists()


def test_a_checkpoint_is_not_replaced_by_its_model(
    trainer: Trainer, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    shutil.copytree(reference[1], tmp_path / "checkpoints")
    for output in (tmp_path / "checkpoints", tmp_path):
        outcome = trainer.run("convert_to_hf.py", "--load", tmp_path / "checkpoints", "--output", output)
        assert outcome.status == 2
        assert f"--output {output} would replace the checkpoint" in outcome.stderr
    assert (tmp_path / "checkpoints" / "iter_0000012" / ".metadata").is_file()


def test_data_that_are_not_readable_are_not_compared(
    trainer: Trainer, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    prefix = tmp_path / "text"
    for suffixes in ([".idx"], [".idx", ".bin"]):
        for suffix in suffixes:
            prefix.with_suffix(suffix).write_bytes(bytes(100))
        outcome = trainer.run(
            *("convert_to_hf.py", "--load", reference[1], "--output", tmp_path / "hf", "--data-path", prefix)
        )
        assert outcome.status == 2
        assert f"--data-path {prefix} has no sequence of 64 tokens" in outcome.stderr


def test_mismatch_fails_and_leaves_no_files(
    trainer: Trainer, reference: tuple[Outcome, Path], tmp_path: Path
) -> None:
    # Float32 rounding differs between the two implementations, so a tolerance of zero is a mismatch.
    outcome = trainer.run(
        *("convert_to_hf.py", "--load", reference[1], "--output", tmp_path / "hf", "--tolerance", 0),
        *("--done-marker", tmp_path / "done"),
    )
    assert outcome.status == 1
    assert "logits differ from Megatron's" in outcome.stderr
    assert list(tmp_path.iterdir()) == []


def test_evaluation(trainer: Trainer, converted: tuple[Outcome, Path], data: Data, tmp_path: Path) -> None:
    run = converted[1]
    more = tmp_path / "tasks"
    more.mkdir()
    task = (data.directory / "evaluation" / "next_line.yaml").read_text()
    (more / "more.yaml").write_text(task.replace("task: next_line", "task: more"))
    lines = (data.directory / "evaluation" / "next_line.jsonl").read_text().splitlines(keepends=True)
    (more / "next_line.jsonl").write_text("".join(lines[:5]))
    results = run / "eval_results" / "iter_12" / "results.json"
    outcome = trainer.run(
        *("evaluate_hf.py", "--model", run / "converted_hf" / "iter_12", "--tasks"),
        *(
            "heldout,next_line,next_line@1,more@0",
            "--tasks-dir",
            more,
            "--tasks-dir",
            data.directory / "evaluation",
        ),
        *("--output", results, "--backend-argument", "dtype=float32"),
    )
    assert outcome.status == 0, outcome.stderr
    found = json.loads(results.read_text())
    assert found["n-shot"] == {"heldout": 0, "next_line@0": 0, "next_line@1": 1, "more": 0}
    assert set(found["results"]) == set(found["n-shot"])
    # Better than guessing bytes, worse than text compression: twelve iterations of a tiny model.
    assert 2 < found["results"]["heldout"]["bits_per_byte,none"] < 8
    assert 0 <= found["results"]["next_line@0"]["acc,none"] <= 1
    assert 0 < found["results"]["next_line@1"]["acc_stderr,none"] < 1
    assert found["n-samples"]["next_line@1"] == {"original": 12, "effective": 12}
    assert found["n-samples"]["more"] == {"original": 5, "effective": 5}
    assert "[pip3] torch==" in found["pretty_env_info"]
    assert outcome.stderr == ""
    assert [path.name for path in results.parent.iterdir()] == ["results.json"]


def test_packages_are_reported_as_pip_lists_them(trainer: Trainer) -> None:
    program = (
        "import subprocess, sys\n"
        "from megatron_core_trainer.evaluation import environment_report\n"
        "pip = [sys.executable, '-m', 'pip', 'list', '--format=freeze']\n"
        "listed = subprocess.run(pip, check=True, capture_output=True, text=True).stdout.splitlines()\n"
        "assert len(listed) > 30\n"
        "assert environment_report.installed() == listed, set(listed) ^ set(environment_report.installed())\n"
    )
    subprocess.run([trainer.python, "-c", program], check=True, cwd=SCRIPTS, timeout=TIMEOUT_S)


def test_templates_of_tasks_are_compiled_once(trainer: Trainer) -> None:
    program = (
        "from lm_eval import utils\n"
        "from megatron_core_trainer.evaluation import task_templates\n"
        "compiled, compile = [], utils.env.compile\n"
        "utils.env.compile = lambda source, *rest: compiled.append(source) or compile(source, *rest)\n"
        "task_templates.compile_once()\n"
        "texts = [utils.apply_template(text, {'n': n}) for text in ('a {{ n }}', 'b {{ n }}') for n in (1, 2)]\n"
        "assert texts == ['a 1', 'a 2', 'b 1', 'b 2'], texts\n"
        "assert compiled == ['a {{ n }}', 'b {{ n }}'], compiled\n"
    )
    subprocess.run([trainer.python, "-c", program], check=True, cwd=SCRIPTS, timeout=TIMEOUT_S)


def test_evaluation_refuses_what_is_missing(
    trainer: Trainer, converted: tuple[Outcome, Path], data: Data, tmp_path: Path
) -> None:
    outcome = trainer.run(
        *(
            "evaluate_hf.py",
            "--model",
            tmp_path,
            "--tasks",
            "heldout",
            "--tasks-dir",
            data.directory / "evaluation",
        ),
        *("--output", tmp_path / "results.json"),
    )
    assert outcome.status == 2
    assert "has no config.json" in outcome.stderr
    known = ("evaluate_hf.py", "--model", converted[1] / "converted_hf" / "iter_12", "--tasks-dir")
    known = (*known, data.directory / "evaluation", "--output", tmp_path / "results.json", "--tasks")
    for words, message in (
        (["helout"], "there is no task helout"),
        (["heldout@x"], "heldout@x: behind @ stands the number of examples, as in heldout@5"),
        (["heldout", "--backend", "vllm"], "--backend vllm needs the package vllm in the environment of"),
        (
            ["heldout", "--backend-argument", "device=cpu"],
            "device=cpu is not NAME=VALUE of the backend; it is given by",
        ),
        (
            ["heldout", "--backend-argument", "dtype=float99"],
            "--backend hf cannot load",
        ),
        (
            ["next_line@5000"],
            "error: next_line has too little data for 5000 examples before each question",
        ),
    ):
        outcome = trainer.run(*known, *words)
        assert outcome.status == 2
        assert message in outcome.stderr
        assert "Traceback" not in outcome.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ['{"model_type": "ll', "[]"])
def test_evaluation_refuses_a_damaged_configuration(
    trainer: Trainer, data: Data, tmp_path: Path, content: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    outcome = trainer.run(
        *("evaluate_hf.py", "--model", tmp_path, "--tasks", "heldout"),
        *("--tasks-dir", data.directory / "evaluation", "--output", tmp_path / "results.json"),
    )
    assert outcome.status == 2
    assert f"error: the model has no usable config.json: {tmp_path / 'config.json'}" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_evaluation_refuses_a_tokenizer_with_more_tokens_than_the_model(
    trainer: Trainer, converted: tuple[Outcome, Path], data: Data, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(converted[1] / "converted_hf" / "iter_12", model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {word: number + 5000 for word, number in vocabulary.items()}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    words = ["--model", model, "--tasks-dir", data.directory / "evaluation", "--tasks", "heldout"]
    outcome = trainer.run("evaluate_hf.py", *words, "--output", tmp_path / "results.json")
    assert outcome.status == 2, outcome.stderr
    assert "the tokenizer has token 5" in outcome.stderr
    assert "rows: it was not trained with this tokenizer" in outcome.stderr


def test_a_wrong_backend_is_reported_before_the_harness_is_loaded(
    trainer: Trainer, converted: tuple[Outcome, Path], tmp_path: Path
) -> None:
    words = ["--model", converted[1] / "converted_hf" / "iter_12", "--output", tmp_path / "r", "--tasks", "a"]
    program = [trainer.python, "-X", "importtime", SCRIPTS / "evaluate_hf.py"]
    done = subprocess.run(
        [*program, *words, "--backend-argument", "dtype"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "evaluate_hf.py: error: --backend-argument dtype is not NAME=VALUE of the backend" in done.stderr
    assert "evaluation_models" in done.stderr
    assert "lm_eval" not in done.stderr
