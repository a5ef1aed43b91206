"""The learning-rate finder's loss curve: recording, files, and the suggested learning rates.

The method is Smith's range test (2015, arXiv:1506.01186) with the smoothing and the stopping rule of
https://sgugger.github.io/how-do-you-find-a-good-learning-rate.html. The files and the search for minima are those of
Megatron-DeepSpeed's ``--lr-finder``.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from megatron_core_trainer import atomic_output
from megatron_core_trainer.optimization.lr_finder_options import LEAST_POINTS

if TYPE_CHECKING:
    from pathlib import Path

DATA, REPORT, SUGGESTED = "lr_finder_data", "lr_finder.json", "suggested_lr"
DIRECTORY = "lr_finder"
Array = np.ndarray[Any, np.dtype[np.float64]]


class CurveError(Exception):
    """A curve that cannot be read or is too short; the message has the file."""


@dataclass
class LossCurve:
    """Losses as a function of the learning rate.

    :param smoothing: beta of the moving average, with Adam's bias correction.
    :param stop_factor: stop when the smoothed loss exceeds its minimum by this factor; 0: never.
    """

    smoothing: float
    stop_factor: float
    learning_rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    raw_losses: list[float] = field(default_factory=list)
    _average: float = 0.0

    def add(self, learning_rate: float, loss: float) -> bool:
        """Add a loss, measured before the step with its learning rate; return whether the search should stop.

        A loss that is not finite is not recorded and stops the search.

        :param learning_rate: the learning rate.
        :param loss: the loss.
        """
        if not math.isfinite(loss):
            return True
        self._average = self.smoothing * self._average + (1.0 - self.smoothing) * loss
        self.learning_rates.append(learning_rate)
        self.raw_losses.append(loss)
        self.losses.append(self._average / (1.0 - self.smoothing ** len(self.raw_losses)))
        return bool(self.stop_factor and self.losses[-1] > self.stop_factor * min(self.losses))

    def write(self, directory: Path) -> None:
        """Write ``lr_finder_data.csv`` (``learning_rate,loss,raw_loss``) and ``.npz`` (the same names in plural).

        :param directory: output folder; created if it does not exist.
        """
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f"{DATA}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["learning_rate", "loss", "raw_loss"])
            writer.writerows(zip(self.learning_rates, self.losses, self.raw_losses, strict=True))
        np.savez(
            directory / f"{DATA}.npz",
            learning_rates=np.array(self.learning_rates),
            losses=np.array(self.losses),
            raw_losses=np.array(self.raw_losses),
        )


def read_curve(directory: Path) -> tuple[Array, Array]:
    """Read the learning rates and smoothed losses of a search, of this trainer or of Megatron-DeepSpeed.

    The curve ends before the first loss that is not finite, after which Megatron-DeepSpeed may have gone on.

    :param directory: ``SAVE``, ``SAVE/lr_finder`` or the file itself.
    :raises CurveError: if there is no curve.
    """
    candidates = [directory, directory / f"{DATA}.npz", directory / DIRECTORY / f"{DATA}.npz"]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise CurveError(f"{directory} holds no {DATA}.npz; give the directory that a sweep was saved in")
    try:
        with np.load(path, allow_pickle=False) as data:
            rates = np.asarray(data["learning_rates"], dtype=np.float64)
            losses = np.asarray(data["losses"], dtype=np.float64)
    except (OSError, ValueError, KeyError) as error:
        raise CurveError(f"{path} is not a sweep's data: {error}") from error
    if rates.shape != losses.shape or rates.ndim != 1:
        raise CurveError(f"{path}: learning_rates and losses must be lists of one length")
    beyond = np.flatnonzero(~np.isfinite(losses))
    end = int(beyond[0]) if len(beyond) else len(losses)
    return rates[:end], losses[:end]


def smoothed(losses: Array, share: float) -> tuple[Array, int]:
    """Return the moving average over an odd window of at least five points, and the window.

    The curve is padded with zeros, as in the routine of Megatron-DeepSpeed's notes, so half a window at both ends is
    unreliable.

    :param losses: the losses.
    :param share: window as a share of the curve's length.
    """
    window = max(5, int(len(losses) * share) | 1)
    if window >= len(losses):
        window = (len(losses) - 1) | 1
    return np.convolve(losses, np.ones(window) / window, mode="same"), window


def local_minima(rates: Array, losses: Array, *, share: float = 0.03, separation: float = 0.0) -> list[float]:
    """Return every learning rate at which the smoothed loss stops falling and starts to rise, in ascending order.

    The slope over log10 of the rate must change from below -e to above e, where e is a fiftieth of the median slope;
    the zero between them is interpolated. This is ``find_all_minima_lrs`` of Megatron-DeepSpeed's notes, except that
    points between -e and e may lie between them; otherwise a finely sampled minimum is missed.

    :param rates: learning rates.
    :param losses: losses.
    :param share: window of the smoothing as a share of the curve's length.
    :param separation: minimum distance of two minima in log10 of the rate; of closer ones the lower is kept.
    """
    order = np.argsort(rates)
    position = np.log10(rates[order])
    slope = np.gradient(smoothed(losses[order], share)[0], position)
    least = 1e-12 + 0.02 * float(np.median(np.abs(slope)))
    found: list[float] = []
    steep = np.flatnonzero(np.abs(slope) > least)
    for before, after in itertools.pairwise(steep):
        if not slope[before] < 0 < slope[after]:
            continue
        index = before + int(np.flatnonzero(slope[before + 1 : after + 1] >= 0)[0])
        rise = slope[index + 1] - slope[index]
        turn = float(position[index] - slope[index] * (position[index + 1] - position[index]) / rise)
        if separation <= 0 or all(abs(turn - other) >= separation for other in found):
            found.append(turn)
    return [10.0**turn for turn in found]


def analyse(rates: Array, losses: Array, *, share: float = 0.03, separation: float = 0.0) -> dict[str, Any]:
    """Return the characteristic points of the curve and the suggested learning rates.

    ``minima``: every local minimum. ``lowest``: the point of the lowest loss. ``steepest_descent``: the rate before the
    lowest point at which the smoothed loss falls fastest over log10 of the rate. ``blow_up``: the first rate after the
    lowest point whose loss is above the first loss; null if the search ended before. ``suggested``: a tenth of the rate
    of the lowest minimum. If the curve has no minimum in the lower half of its fall, a tenth of the rate of the lowest
    point, because noise before the fall also causes minima. ``suggestions``: one for each minimum and for the steepest
    descent.

    :param rates: learning rates.
    :param losses: losses.
    :param share: window of the smoothing as a share of the curve's length.
    :param separation: minimum distance of two minima in log10 of the rate.
    :raises CurveError: if there are fewer than ten points.
    """
    if len(rates) < LEAST_POINTS:
        raise CurveError(
            f"a sweep of {len(rates)} points is too short to read a learning rate from; {LEAST_POINTS} are needed"
        )
    order = np.argsort(rates)
    rates, losses = rates[order], losses[order]
    lowest = int(np.argmin(losses))
    minima = local_minima(rates, losses, share=share, separation=separation)
    heights = np.interp(np.log10(minima), np.log10(rates), losses)
    low = [pair for pair in zip(heights, minima, strict=True) if pair[0] <= (losses[0] + losses[lowest]) / 2]
    tenth = (min(low)[1] if low else float(rates[lowest])) / 10.0
    steepest = _steepest_descent(rates, losses, lowest, share)
    above = np.flatnonzero(losses[lowest:] > losses[0])
    suggestions = [{"rule": "a tenth of a minimum", "learning_rate": rate / 10.0} for rate in minima]
    if steepest is not None:
        suggestions.append({"rule": "steepest descent", "learning_rate": steepest})
    return {
        "points": len(rates),
        "first_learning_rate": float(rates[0]),
        "last_learning_rate": float(rates[-1]),
        "lowest": {"learning_rate": float(rates[lowest]), "loss": float(losses[lowest])},
        "minima": minima,
        "steepest_descent": steepest,
        "blow_up": float(rates[lowest + above[0]]) if len(above) else None,
        "suggestions": suggestions,
        "suggested": tenth,
    }


def write_report(directory: Path, report: dict[str, Any]) -> None:
    """Write ``lr_finder.json``, and ``suggested_lr``, which has only the suggested rate for later stages.

    :param directory: output folder.
    :param report: result of :func:`analyse`, and the description of the search.
    """
    atomic_output.write_json(directory / REPORT, {"format": 1, **report})
    atomic_output.write_text(directory / SUGGESTED, f"{report['suggested']!r}\n")


def write_search(save: Path, curve: LossCurve, about: dict[str, Any]) -> None:
    """Write the files of a finished search to ``SAVE/lr_finder`` and print the suggested rate.

    A curve that is too short for a suggestion is written without a report; that of an earlier search is deleted.

    :param save: folder of the search.
    :param curve: its losses.
    :param about: description of the search for its report.
    """
    directory = save / DIRECTORY
    for name in (REPORT, SUGGESTED):
        (directory / name).unlink(missing_ok=True)
    curve.write(directory)
    try:
        found = analyse(np.array(curve.learning_rates), np.array(curve.losses))
    except CurveError as error:
        print(f"learning-rate finder: {error}", flush=True)
        return
    write_report(directory, {**about, **found})
    print(
        f"learning-rate finder: suggested learning rate {found['suggested']:.6E}, see {directory}", flush=True
    )


def read_report(directory: Path) -> dict[str, Any]:
    """Read a report.

    :param directory: output folder of :func:`write_report`.
    """
    report: dict[str, Any] = json.loads((directory / REPORT).read_text(encoding="utf-8"))
    return report


def _steepest_descent(rates: Array, losses: Array, lowest: int, share: float) -> float | None:
    average, window = smoothed(losses, share)
    half = window // 2
    slope = np.gradient(average, np.log10(rates))[half : min(lowest + 1, len(rates) - half)]
    if not len(slope) or slope.min() >= 0:
        return None
    return float(rates[half + int(np.argmin(slope))])
