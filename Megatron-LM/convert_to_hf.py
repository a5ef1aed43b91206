#!/usr/bin/env python3
"""Convert a Megatron checkpoint (torch_dist, any parallel layout) to a Hugging Face LlamaForCausalLM.

Every setting is read from the checkpoint. The written model is loaded again and its logits compared with Megatron's on
a batch of the training run's own data; if they differ, nothing is left behind and the exit status is 1.
Exit status 2: there is no complete checkpoint, or Llama cannot express the model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_core_trainer import cpu_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch


class MismatchError(Exception):
    """The converted model does not compute what the original does."""


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--load", type=Path, required=True, help="checkpoint directory (holds iter_* directories)")
    add("--iteration", type=int, help="default: the latest, from the tracker file")
    add("--output", type=Path, required=True, help="directory to make; one that exists is replaced")
    add("--tokenizer", type=Path, help="directory; default: --tokenizer-model of the training run")
    add("--data-path", help="prefix of indexed data for the comparison; default: the training run's")
    add(
        "--tolerance",
        type=float,
        default=1e-4,
        help="of logits, relative to the largest (default: %(default)s)",
    )
    add("--done-marker", type=Path, help="file to write when all is done")
    return parser


def main(argv: Sequence[str]) -> int:
    """Convert and return the exit status.

    :param argv: the arguments, without the program's name.
    """
    args = build_parser().parse_args(argv)
    warnings.filterwarnings("ignore", category=UserWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Weights are converted on the CPU in any case: it is exact, and a login node will do.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    cpu_device.install()
    from megatron_core_trainer.arguments import ArgumentError
    from megatron_core_trainer.checkpointing import CheckpointError
    from megatron_core_trainer.llama import NotLlamaError

    try:
        convert(args)
    except (CheckpointError, ArgumentError, NotLlamaError) as error:
        print(f"convert_to_hf.py: error: {error}", file=sys.stderr)
        return 2
    except MismatchError as error:
        print(f"convert_to_hf.py: error: {error}", file=sys.stderr)
        return 1
    return 0


def convert(args: argparse.Namespace) -> None:
    """Convert one checkpoint.

    :param args: parsed arguments.
    :raises CheckpointError: if there is no complete checkpoint.
    :raises NotLlamaError: if Llama cannot express the model.
    :raises MismatchError: if the result computes something else.
    """
    from megatron_core_trainer import atomic_output, checkpointing, llama, multipliers
    from megatron_core_trainer.tokenizer import read_hugging_face_tokenizer

    iteration = args.iteration if args.iteration is not None else checkpointing.read_tracker(args.load)
    if iteration is None:
        raise checkpointing.CheckpointError(f"{args.load} holds no {checkpointing.TRACKER}; give --iteration")
    checkpoint = checkpointing.iteration_dir(args.load, iteration)
    saved = vars(checkpointing.load_common_state(checkpoint)["args"])
    llama.require_llama(saved)
    tokenizer_dir = args.tokenizer or Path(saved.get("tokenizer_model") or "")
    tokenizer = read_hugging_face_tokenizer(tokenizer_dir)
    if tokenizer.vocab_size > saved["padded_vocab_size"]:
        raise llama.NotLlamaError(
            f"the tokenizer {tokenizer_dir} has {tokenizer.vocab_size} tokens, the model's embedding only"
            f" {saved['padded_vocab_size']} rows: it was not trained with this tokenizer"
        )
    model = _load_megatron_model(saved, checkpoint)
    print(f"loaded {checkpoint}")
    dtype = "bfloat16" if saved.get("bf16") else "float32"
    state, saved = multipliers.folded(model.state_dict(), saved)
    settings = llama.llama_config(saved, vocab_size=tokenizer.vocab_size, eos=tokenizer.eod, dtype=dtype)
    weights = llama.llama_weights(state, saved, tokenizer.vocab_size)
    tokens, origin = _comparison_batch(args.data_path, saved, tokenizer.vocab_size)
    logits = _megatron_logits(model, tokens, tokenizer.vocab_size)
    # From here on transformers computes, with torch as it is.
    cpu_device.uninstall()
    with atomic_output.new_directory(args.output, replace=True) as directory:
        _write_model(directory, settings, weights, dtype)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (directory / name).write_bytes((tokenizer_dir / name).read_bytes())
        difference = _difference(logits, directory, tokens)
        largest = float(logits.abs().max())
        print(
            f"max abs logit difference: {difference:.3E} (largest logit {largest:.3E}) on {tokens.numel()} tokens of"
            f" {origin}"
        )
        if not difference <= args.tolerance * max(1.0, largest):
            raise MismatchError(
                f"the converted model's logits differ from Megatron's by {difference:.3E}, more than"
                f" {args.tolerance:g} of the largest ({largest:.3E}); nothing was written"
            )
    print(f"wrote {args.output}")
    if args.done_marker:
        atomic_output.write_json(
            args.done_marker,
            {
                "iteration": iteration,
                "checkpoint": str(checkpoint),
                "output": str(args.output),
                "max_abs_logit_difference": difference,
            },
        )


def _load_megatron_model(saved: Mapping[str, Any], checkpoint: Path) -> Any:
    """Build the whole model in one process, in float32, whatever layout and precision it was trained in."""
    from megatron_core_trainer import arguments, checkpointing, distributed, model
    from megatron_core_trainer.llama import norm_epsilon

    args = arguments.build_parser().parse_args([])
    for name, value in saved.items():
        if name in arguments.MODEL_SETTINGS:
            setattr(args, name, value)
    args.layernorm_epsilon = norm_epsilon(saved)
    args.attention_dropout = args.hidden_dropout = 0.0
    args.attention_softmax_in_fp32 = True
    args.micro_batch_size = args.train_iters = 1
    args.lr, args.mock_data, args.world_size = 1.0, True, 1
    args.tokenizer_type, args.vocab_size = "NullTokenizer", 1
    arguments.run_on_cpu(args)
    arguments.complete_args(args)
    cpu_device.install_rng_tracker()
    distributed.initialize_process_groups(
        distributed.ProcessPlace(0, 1, 0, "127.0.0.1", 0),
        backend="gloo",
        timeout_minutes=10,
        tensor_model_parallel_size=1,
        pipeline_model_parallel_size=1,
    )
    distributed.set_random_seeds(1)
    built = model.build_model(args)
    checkpointing.load_model_weights(built, checkpoint)
    return built.eval()


def _comparison_batch(
    data_path: str | None, saved: Mapping[str, Any], vocab_size: int
) -> tuple[torch.Tensor, str]:
    """Return up to four sequences of real data, or of random tokens where the training data is out of reach."""
    import torch

    length = min(int(saved["seq_length"]), 512)
    candidates = [data_path] if data_path else _training_prefixes(saved)
    for prefix in candidates:
        if Path(prefix + ".idx").is_file():
            from megatron.core.datasets.indexed_dataset import IndexedDataset

            dataset = IndexedDataset(prefix)
            ids: list[int] = []
            for index in range(len(dataset)):
                ids += dataset[index][: 4 * length].tolist()
                if len(ids) >= 4 * length:
                    break
            rows = min(4, len(ids) // length)
            if rows and max(ids[: rows * length]) < vocab_size:
                return torch.tensor(ids[: rows * length], dtype=torch.int64).view(rows, length), prefix
    if data_path:
        from megatron_core_trainer.arguments import ArgumentError

        raise ArgumentError(f"--data-path {data_path} has no sequence of {length} tokens below {vocab_size}")
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocab_size, (4, length), generator=generator), "random tokens"


def _training_prefixes(saved: Mapping[str, Any]) -> list[str]:
    names = ("test_data_path", "valid_data_path", "train_data_path", "data_path")
    return [str(item) for name in names for item in saved.get(name) or []]


def _write_model(directory: Path, settings: dict[str, Any], weights: dict[str, Any], dtype: str) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import GenerationConfig, LlamaConfig

    config = LlamaConfig(**settings)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(directory)
    # Readers older than transformers 5 know the rotary base by its former name, and would take 10000 without it.
    path = directory / "config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    written["rope_theta"] = settings["rope_parameters"]["rope_theta"]
    path.write_text(json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    eos = settings["eos_token_id"]
    GenerationConfig(bos_token_id=eos, eos_token_id=eos, pad_token_id=eos).save_pretrained(directory)
    typed = {name: tensor.to(getattr(torch, dtype)) for name, tensor in weights.items()}
    save_file(typed, directory / "model.safetensors", metadata={"format": "pt"})
    # safetensors makes its file private; the model shall be as readable as the files beside it.
    (directory / "model.safetensors").chmod(path.stat().st_mode)


def _megatron_logits(model: Any, tokens: torch.Tensor, vocab_size: int) -> torch.Tensor:
    import torch

    with torch.no_grad():
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        logits: torch.Tensor = model(tokens, positions, None)
    return logits[..., :vocab_size].float()


def _difference(logits: torch.Tensor, directory: Path, tokens: torch.Tensor) -> float:
    """Load what was written and return the largest difference of its logits."""
    import torch
    from transformers import LlamaForCausalLM

    converted, report = LlamaForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    wrong = {name: names for name, names in report.items() if names and name.endswith("_keys")}
    if wrong:
        raise MismatchError(f"the converted model does not load cleanly: {wrong}")
    with torch.no_grad():
        return float((logits - converted.eval()(tokens).logits).abs().max())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
