#!/usr/bin/env python3
"""Find a learning rate: increase it exponentially during a training, and analyse the losses.

lr_finder.py sweep ARGUMENT...   trains as pretrain_gpt.py ARGUMENT... --lr-finder does (also under srun or torchrun)
                                 and writes SAVE/lr_finder/{lr_finder_data.csv, lr_finder_data.npz, lr_finder.json}
lr_finder.py suggest DIRECTORY   writes lr_finder.json for a search of Megatron-DeepSpeed, which writes only the data
lr_finder.py report SWEEP...     compares searches, and writes OUTPUT.json and, with --plot, OUTPUT.png

lr_finder.json contains every minimum, the steepest descent, the divergence and the suggested learning rates.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_core_trainer import atomic_output
from megatron_core_trainer.optimization.lr_curve import (
    DIRECTORY,
    CurveError,
    analyse,
    read_curve,
    write_report,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """Build the parser; the trainer's parser reads the arguments after ``sweep``."""
    parser = argparse.ArgumentParser(
        prog="lr_finder.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "sweep", help="train with a rising learning rate; has the arguments of pretrain_gpt.py"
    )
    suggest = commands.add_parser("suggest", help="write lr_finder.json for the data of a search")
    suggest.add_argument("directory", type=Path, help="SAVE of the search")
    report = commands.add_parser("report", help="compare searches")
    add = report.add_argument
    add("sweeps", nargs="+", metavar="SWEEP", help="LABEL=DIRECTORY or DIRECTORY of a search")
    add("--output", type=Path, help="path of the output files, without their extension")
    add("--plot", action="store_true", help="write OUTPUT.png")
    add("--smooth-share", type=float, default=0.03, help="window of the smoothing (default: %(default)s)")
    add(
        "--min-separation",
        type=float,
        default=0.0,
        help="minimum distance of two minima, in log10 of the rate",
    )
    add("--current-lr", type=float, help="a learning rate to mark in the plot")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run a search, or analyse finished ones; return the exit status.

    :param argv: the arguments, without the program's name.
    """
    if list(argv[:1]) == ["sweep"]:
        from megatron_core_trainer.main import main as train

        return train([*argv[1:], "--lr-finder"], started=time.time())
    args = build_parser().parse_args(argv)
    try:
        if args.command == "suggest":
            write_report(args.directory / DIRECTORY, analyse(*read_curve(args.directory)))
        else:
            report(args)
    except (CurveError, OSError) as error:
        print(f"lr_finder.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def report(args: argparse.Namespace) -> None:
    """Analyse searches; print and write the learning rates that they suggest.

    :param args: parsed arguments.
    :raises CurveError: if a sweep cannot be read.
    """
    if args.plot and args.output is None:
        raise CurveError("--plot needs --output")
    curves = {}
    for text in args.sweeps:
        label, separator, directory = text.partition("=")
        path = Path(directory if separator else text)
        curves[label if separator else path.name] = (path, *read_curve(path))
    if len(curves) < len(args.sweeps):
        raise CurveError("two sweeps have the same label; give LABEL=DIRECTORY")
    found = {
        label: {
            "source": str(path),
            **analyse(rates, losses, share=args.smooth_share, separation=args.min_separation),
        }
        for label, (path, rates, losses) in curves.items()
    }
    for label, result in found.items():
        minima = ", ".join(f"{rate:.3e}" for rate in result["minima"]) or "none"
        steepest = result["steepest_descent"]
        print(
            f"{label}: suggested {result['suggested']:.3e}; minima {minima}; steepest descent"
            f" {'none' if steepest is None else f'{steepest:.3e}'}; lowest loss {result['lowest']['loss']:.4f}"
        )
    if args.output:
        best = min(found, key=lambda label: float(found[label]["lowest"]["loss"]))
        atomic_output.write_json(
            args.output.with_name(args.output.name + ".json"),
            {"format": 1, "lowest_loss": best, "sweeps": found},
        )
    if args.plot:
        curve_arrays = {label: (rates, losses) for label, (_, rates, losses) in curves.items()}
        _plot(curve_arrays, found, args)


def _plot(curves: dict[str, Any], found: dict[str, dict[str, Any]], args: argparse.Namespace) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(10, 6), layout="constrained")
    for number, (label, (rates, losses)) in enumerate(curves.items()):
        result, color = found[label], f"C{number}"
        order = np.argsort(rates)
        rates, losses = rates[order], losses[order]
        axes.plot(rates, losses, color=color, label=label)
        lowest = result["lowest"]
        axes.scatter(lowest["learning_rate"], lowest["loss"], marker="D", color=color, zorder=5)
        heights = np.interp(np.log10(result["minima"]), np.log10(rates), losses)
        axes.scatter(result["minima"], heights, color=color, zorder=5)
        axes.axvline(
            result["suggested"], color=color, linestyle=":", label=f"{label}: {result['suggested']:.2e}"
        )
    if args.current_lr:
        axes.axvline(args.current_lr, color="0.4", label=f"current: {args.current_lr:.2e}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
    axes.legend()
    figure.savefig(args.output.with_name(args.output.name + ".png"), dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
