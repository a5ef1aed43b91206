#!/usr/bin/env python3
"""Convert a Megatron checkpoint (torch_dist or legacy, any parallel layout) to a Hugging Face model.

All settings are read from the checkpoint. YAML files in conversion/architectures define the available model classes.
The written model is loaded again, and its logits are compared with Megatron's on a batch of the run's training data.
If they differ, no model is kept and the exit status is 1. The exit status is 2 if no checkpoint is
complete, no class can represent the model, or the converter does not exist.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_core_trainer import cpu_device
from megatron_core_trainer.conversion.errors import ConversionError, MismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from megatron_core_trainer.conversion.architecture import Architecture
    from megatron_core_trainer.conversion.external_converter import ExternalConverter


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    add = parser.add_argument
    add("--load", type=Path, required=True, help="checkpoint directory (contains iter_* directories)")
    add("--iteration", type=int, help="default: the latest, from the tracker file")
    add("--output", type=Path, required=True, help="output directory; an existing one is replaced")
    add(
        "--tokenizer",
        type=Path,
        help="directory, or name on the Hub if it is in the cache; default: --tokenizer-model of the training",
    )
    add(
        "--architecture",
        help="architecture of the result: llama, qwen2, qwen3, gpt2, mixtral, qwen2_moe, qwen2_moe_ungated,"
        " qwen3_moe, opensci, or a YAML file; default: the first that can express the model",
    )
    add(
        "--converter",
        help="converter of the weights: megatron_bridge, mbridge, mcore_bridge (on a GPU), or a Python script;"
        " default: this program",
    )
    add(
        "--converter-argument",
        action="append",
        default=[],
        metavar="WORD",
        help="an argument of the script, in which {load}, {checkpoint}, {iteration}, {output} and {tokenizer} are"
        " replaced; may be repeated",
    )
    add(
        "--hf-config",
        type=Path,
        help="directory with config.json and code for the other converter; default: written for --architecture",
    )
    add("--data-path", help="prefix of indexed data for the comparison; default: the training run's")
    add(
        "--tolerance",
        type=float,
        default=1e-4,
        help="allowed difference of the logits, relative to the largest (default: %(default)s)",
    )
    add("--done-marker", type=Path, help="file to write after success")
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
    environment = dict(os.environ)
    # Always convert weights on the CPU: the conversion is exact and can run on a login node.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    cpu_device.install()
    from megatron_core_trainer.arguments import ArgumentError
    from megatron_core_trainer.checkpointing import CheckpointError

    try:
        # Modelling code in the model's directory is imported from a copy.
        with tempfile.TemporaryDirectory(prefix="conversion-") as scratch:
            os.environ["HF_MODULES_CACHE"] = scratch
            convert(args, environment)
    except (CheckpointError, ArgumentError, ConversionError) as error:
        print(f"convert_to_hf.py: error: {error}", file=sys.stderr)
        return 2
    except MismatchError as error:
        print(f"convert_to_hf.py: error: {error}", file=sys.stderr)
        return 1
    return 0


def convert(args: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Convert one checkpoint.

    :param args: parsed arguments.
    :param environment: environment variables of another converter, if one is requested.
    :raises CheckpointError: if there is no checkpoint.
    :raises ConversionError: if it cannot be converted with these options.
    :raises MismatchError: if the converted model computes different logits.
    """
    from megatron_core_trainer import atomic_output, checkpointing
    from megatron_core_trainer.conversion import hugging_face_model, megatron_model
    from megatron_core_trainer.conversion.checkpoint_weights import read_arguments
    from megatron_core_trainer.conversion.model_settings import model_settings
    from megatron_core_trainer.data.tokenizer import read_hugging_face_tokenizer, tokenizer_directory
    from megatron_core_trainer.optimization.parametrization import folded_settings

    iteration = args.iteration if args.iteration is not None else checkpointing.read_tracker(args.load)
    if iteration is None:
        raise checkpointing.CheckpointError(f"{args.load} holds no {checkpointing.TRACKER}; give --iteration")
    checkpoint = checkpointing.iteration_dir(args.load, iteration)
    if checkpoint.resolve().is_relative_to(args.output.resolve()):
        raise ConversionError(f"--output {args.output} would replace the checkpoint {checkpoint}")
    settings = model_settings(read_arguments(checkpoint))
    tokenizer_dir = tokenizer_directory(args.tokenizer or Path(settings.get("tokenizer_model") or ""))
    tokenizer = read_hugging_face_tokenizer(tokenizer_dir)
    if tokenizer.vocab_size > settings["padded_vocab_size"]:
        raise ConversionError(
            f"the tokenizer {tokenizer_dir} has {tokenizer.vocab_size} tokens, the model's embedding only"
            f" {settings['padded_vocab_size']} rows: it was not trained with this tokenizer"
        )
    settings |= {"vocab_size": tokenizer.vocab_size, "eos": tokenizer.eod, "dtype": _dtype(settings)}
    # The converted model has muP's multipliers in its weights; the original model applies them separately.
    plain = folded_settings(settings)
    external, architecture = _converters(args, plain)
    obstacles = megatron_model.unknown_settings(settings)
    if obstacles and external is None:
        raise ConversionError(
            f"no model with {', '.join(obstacles)} can be built here; use another --converter"
        )
    with atomic_output.new_directory(args.output, replace=True) as directory:
        if args.hf_config:
            shutil.copytree(args.hf_config, directory, dirs_exist_ok=True)
        if architecture:
            hugging_face_model.write_description(directory, architecture, plain)
        hugging_face_model.write_tokenizer(directory, tokenizer_dir)
        if external:
            places = {
                "load": args.load,
                "checkpoint": checkpoint,
                "iteration": iteration,
                "output": directory,
            }
            external.run({**places, "tokenizer": tokenizer_dir}, environment)
        difference = None
        if obstacles:
            print(f"logits were not compared: no model with {', '.join(obstacles)} can be built here")
        else:
            difference = _check(args, checkpoint, settings, directory, None if external else architecture)
    print(f"wrote {args.output}")
    if args.done_marker:
        atomic_output.write_json(
            args.done_marker,
            {
                "iteration": iteration,
                "checkpoint": str(checkpoint),
                "output": str(args.output),
                "architecture": architecture.name if architecture else None,
                "converter": args.converter,
                "max_abs_logit_difference": difference,
            },
        )


def _dtype(settings: Mapping[str, Any]) -> str:
    """Return the type of the written weights: that of the training, if it can represent them.

    :param settings: completed settings of the model.
    """
    # The products of muP's multipliers and weights in half precision have more digits.
    if settings["use_mup"]:
        return "float32"
    return "bfloat16" if settings["bf16"] else "float16" if settings["fp16"] else "float32"


def _converters(
    args: argparse.Namespace, settings: Mapping[str, Any]
) -> tuple[ExternalConverter | None, Architecture | None]:
    """Return the converter (None: this program) and the architecture (None: the converter defines it)."""
    from megatron_core_trainer.conversion.architecture import choose_architecture
    from megatron_core_trainer.conversion.external_converter import external_converter, needs_architecture

    if not args.converter and (args.converter_argument or args.hf_config):
        raise ConversionError("--converter-argument and --hf-config are for another --converter")
    if args.hf_config and not args.hf_config.is_dir():
        raise ConversionError(f"--hf-config {args.hf_config} is not a directory")
    external = external_converter(args.converter, args.converter_argument) if args.converter else None
    described = needs_architecture(args.architecture, args.converter, args.hf_config)
    return external, choose_architecture(settings, args.architecture) if described else None


def _check(
    args: argparse.Namespace,
    checkpoint: Path,
    settings: Mapping[str, Any],
    directory: Path,
    architecture: Architecture | None,
) -> float:
    """Compare the logits of the written model with Megatron's, and return the largest difference.

    :param args: parsed arguments.
    :param checkpoint: the checkpoint.
    :param settings: completed settings of the model.
    :param directory: folder of the written model.
    :param architecture: converts the weights before the comparison; None if they are already written.
    :raises MismatchError: if they differ by more than the tolerance.
    """
    from megatron_core_trainer.conversion import comparison, hugging_face_model, megatron_model
    from megatron_core_trainer.optimization.multipliers import folded_weights
    from megatron_core_trainer.optimization.parametrization import folded_settings

    model = megatron_model.load_whole_model(settings, checkpoint)
    print(f"loaded {checkpoint}")
    vocab_size = settings["vocab_size"]
    weights = None
    if architecture:
        folded = folded_weights(model.state_dict(), settings)
        weights = architecture.hugging_face_weights(folded, folded_settings(settings))
    tokens, origin = comparison.comparison_tokens(args.data_path, settings, vocab_size)
    logits = megatron_model.megatron_logits(model, tokens, vocab_size)
    del model
    # From here on transformers computes, with the unmodified torch.
    cpu_device.uninstall()
    if weights is not None:
        hugging_face_model.write_weights(directory, weights, settings["dtype"])
    difference = hugging_face_model.logits_difference(directory, logits, tokens)
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
    return difference


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
