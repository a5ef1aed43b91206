"""The kinds of fits and the ways to count parameters, by name; without numpy."""

from __future__ import annotations

from enum import StrEnum


class FitKind(StrEnum):
    """Kind of fit."""

    OPTIMUM = "optimum"
    OPTIMUM_LAW = "optimum-law"
    LOSS_LAW = "loss-law"
    ALLOCATION = "allocation"
    PREDICTION = "prediction"


class ParameterCount(StrEnum):
    """Ways to count N: without padding of the vocabulary, without embeddings and output layer, all parameters."""

    UNPADDED = "unpadded"
    NON_EMBEDDING = "non-embedding"
    TOTAL = "total"
