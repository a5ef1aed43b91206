"""Count the parameters of padding tokens: Megatron rounds the vocabulary up, by more with more tensor parallelism.

The converted Hugging Face model has no padding parameters, and papers and model cards do not count them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.megatron.estimates.estimate import VOCABULARIES
from airflow_megatron.spec.expressions.functions import padded_vocab
from airflow_megatron.spec.trust.json_records import whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from airflow_megatron.results.tables.trainings import ResultRow


def padding_parameters(params: Mapping[str, Any]) -> int | None:
    """Return the number of padding parameters of a training; None if the size of its vocabulary is unknown.

    :param params: all resolved parameters of the training.
    """
    vocabulary = whole(params.get("vocab_size")) or VOCABULARIES.get(str(params.get("tokenizer_type")))
    hidden = whole(params.get("hidden_size"))
    if not vocabulary or not hidden:
        return None
    tensor = whole(params.get("tensor_model_parallel_size")) or 1
    divisible = whole(params.get("make_vocab_size_divisible_by")) or 128
    tables = 2 if params.get("untie_embeddings_and_output_weights") else 1
    return (padded_vocab(vocabulary, tensor, divisible) - vocabulary) * hidden * tables


def padding_note(rows: Iterable[ResultRow]) -> str:
    """Return a warning if parameter counts are not comparable because the padding of the vocabulary differs."""
    paddings = {
        row.parameters - row.parameters_without_padding
        for row in rows
        if row.parameters is not None and row.parameters_without_padding is not None
    }
    if len(paddings) < 2:
        return ""
    return (
        "The vocabulary is padded to a multiple that grows with tensor parallelism, so that equal models have "
        "different numbers of parameters: compare those without padding."
    )
