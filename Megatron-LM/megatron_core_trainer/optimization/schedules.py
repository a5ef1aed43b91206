"""Learning-rate schedules that megatron-core does not have, each as a function of the step.

The names, flags and formulas are those of Megatron-DeepSpeed (argonne-lcf, ``megatron/optimizer_param_scheduler.py``);
megatron-core has constant, linear, cosine, inverse-square-root and WSD. Steps count sequences. These functions are
called only after warm-up, which all schedules share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

INFINITE_STYLES = ("infinite-cosine", "infinite-inv-square-root")


@dataclass(frozen=True)
class ConstantWithCooldown:
    """``--lr-decay-style constant --lr_constant_plus_cooldown``.

    ``max`` until the last ``cooldown`` of ``decay`` steps, then ``min + (max - min)(1 - sqrt(r))``, where r is the
    completed share of the cooldown (the 1-sqrt shape of Hägele et al. 2024, arXiv:2405.18392); ``min`` after that.

    :param decay: last step of the schedule.
    :param cooldown: steps of the cooldown.
    """

    decay: float
    cooldown: float

    def rate(self, step: float, *, high: float, low: float) -> float:
        """Return the learning rate of a step after warm-up.

        :param step: the step.
        :param high: ``--lr``.
        :param low: ``--min-lr``.
        """
        done = (step - (self.decay - self.cooldown)) / self.cooldown
        return low + (high - low) * (1.0 - math.sqrt(min(1.0, max(0.0, done))))


@dataclass(frozen=True)
class Infinite:
    """``--lr-decay-style infinite-cosine`` and ``infinite-inv-square-root``.

    Let n be the number of steps since warm-up and t = n / K. The schedule has three phases:

    1. for n <= K a decay from ``max`` to ``constant``: ``constant + (max - constant)(1 + cos(pi t)) / 2``, or
       ``max - (max - constant) f(t) / f(1)`` with ``f(t) = 1 / sqrt(1 + timescale t) - 1``;
    2. ``constant`` for C steps; a training can be extended in this phase;
    3. an exponential decay ``constant exp(-ln(constant / min) m / M)`` over the remaining M steps, of which m are done;
       ``min`` after that.

    (Zhai et al. 2022, arXiv:2106.04560, for the inverse square root; Ibrahim et al. 2024, arXiv:2403.08763, for the
    infinite schedules.)

    :param style: one of :data:`INFINITE_STYLES`.
    :param warmup: steps of warm-up.
    :param fall: steps of the first phase, K.
    :param constant: steps of the second phase, C.
    :param decay: last step of the schedule.
    :param constant_rate: learning rate of the second phase.
    :param timescale: steepness of the inverse square root.
    """

    style: str
    warmup: float
    fall: float
    constant: float
    decay: float
    constant_rate: float
    timescale: float

    def rate(self, step: float, *, high: float, low: float) -> float:
        """Return the learning rate of a step after warm-up.

        :param step: the step.
        :param high: ``--lr``.
        :param low: ``--min-lr``.
        """
        if step > self.decay:
            return low
        after_warmup = step - self.warmup
        if after_warmup <= self.fall:
            share = after_warmup / self.fall
            if self.style == "infinite-cosine":
                return self.constant_rate + (high - self.constant_rate) * 0.5 * (
                    1.0 + math.cos(math.pi * share)
                )
            return high - (high - self.constant_rate) * self._inverse_root(share) / self._inverse_root(1.0)
        last = after_warmup - self.fall - self.constant
        if last <= 0:
            return self.constant_rate
        length = self.decay - self.warmup - self.fall - self.constant
        return max(low, self.constant_rate * math.exp(-math.log(self.constant_rate / low) * last / length))

    def _inverse_root(self, share: float) -> float:
        return 1.0 / math.sqrt(1.0 + self.timescale * share) - 1.0


@dataclass(frozen=True)
class ExponentialSweep:
    """The schedule of a learning-rate search: ``start (end / start)^(step / steps)``, ``end`` after that.

    (Smith 2015, arXiv:1506.01186, with the exponential steps of https://sgugger.github.io/how-do-you-find-a-good-learning-rate.html.)

    :param start: first learning rate.
    :param end: last learning rate.
    :param steps: steps from the first to the last.
    """

    start: float
    end: float
    steps: float

    def rate(self, step: float, *, high: float, low: float) -> float:
        """Return the learning rate of a step.

        :param step: the step.
        :param high: unused: the search has its own limits.
        :param low: unused.
        """
        return float(self.start * (self.end / self.start) ** min(1.0, step / self.steps))


Schedule = ConstantWithCooldown | Infinite | ExponentialSweep
