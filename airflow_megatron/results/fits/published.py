"""Published laws for comparison, each with its source and its way of counting parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class PublishedLaw:
    """The laws of one paper; missing ones are None.

    N is in parameters, D in tokens; C = 6 N D stands for floating point operations.

    :param name: short name
    :param source: source of the coefficients
    :param counts: parameters included in its N: ``unpadded`` (all) or ``non-embedding``
    :param lr: peak learning rate of N and D
    :param batch: batch in tokens of N and D
    :param loss: loss of N and D, nats per token, on the paper's own data
    :param model_exponent: exponent of the best N for a compute budget
    """

    name: str
    source: str
    counts: str
    lr: Callable[[float, float], float] | None = None
    batch: Callable[[float, float], float] | None = None
    loss: Callable[[float, float], float] | None = None
    model_exponent: float | None = None


PUBLISHED: Final = (
    PublishedLaw(
        "Kaplan 2020",
        "arXiv:2001.08361: equation 1.5 with the coefficients of table 2; exponent of table 6",
        "non-embedding",
        loss=lambda n, d: ((6.4e13 / n) ** (0.076 / 0.103) + 1.8e13 / d) ** 0.103,
        model_exponent=0.73,
    ),
    PublishedLaw(
        "Chinchilla",
        "Hoffmann et al. 2022, arXiv:2203.15556: equation 10, table 2 (approach 2)",
        "unpadded",
        loss=lambda n, d: 1.69 + 406.4 / n**0.34 + 410.7 / d**0.28,
        model_exponent=0.49,
    ),
    PublishedLaw(
        "Chinchilla, fitted again",
        "Besiroglu et al. 2024, arXiv:2404.10102: table 1",
        "unpadded",
        loss=lambda n, d: 1.8172 + 482.01 / n**0.3478 + 2085.43 / d**0.3658,
        model_exponent=0.3658 / (0.3478 + 0.3658),
    ),
    PublishedLaw(
        "DeepSeek",
        "Bi et al. 2024, arXiv:2401.02954: equations 1 and 4; C = 6 N D stands for its C = M D",
        "non-embedding",
        lr=lambda n, d: 0.3118 * (6 * n * d) ** -0.1250,
        batch=lambda n, d: 0.2920 * (6 * n * d) ** 0.3271,
        model_exponent=0.5243,
    ),
    PublishedLaw(
        "Porian 2024",
        "arXiv:2406.19146: figures 1 and 3; batches of sequences of 2,048 tokens, 20 tokens per parameter; its N holds"
        " the output layer",
        "non-embedding",
        lr=lambda n, _: 3.7 * n**-0.36,
        batch=lambda n, _: 0.00037 * n**0.703 * 2048,
        model_exponent=0.497,
    ),
    PublishedLaw(
        "StepLaw",
        "Li et al. 2025, arXiv:2503.04715: equation 1",
        "non-embedding",
        lr=lambda n, d: 1.79 * n**-0.713 * d**0.307,
        batch=lambda _, d: 0.58 * d**0.571,
    ),
)
