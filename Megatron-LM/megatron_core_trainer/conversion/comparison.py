"""Choose the tokens on which a converted model is compared with Megatron's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.conversion.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

_ROWS, _LENGTH = 4, 512


def comparison_tokens(
    data_path: str | None, settings: Mapping[str, Any], vocab_size: int
) -> tuple[torch.Tensor, str]:
    """Return up to four sequences of real data, or of random tokens if the training data is not accessible.

    :param data_path: prefix of indexed data; None for the training run's.
    :param settings: of the model.
    :param vocab_size: tokens of the tokenizer.
    :returns: tokens, shape [sequences, length], and a description of their source.
    :raises ConversionError: if ``data_path`` has too few tokens, or tokens that the tokenizer does not have.
    """
    import torch

    length = min(int(settings["seq_length"]), _LENGTH)
    for prefix in [data_path] if data_path else _training_prefixes(settings):
        ids = _first_tokens(prefix, _ROWS * length)
        rows = min(_ROWS, len(ids) // length)
        if rows and max(ids[: rows * length]) < vocab_size:
            return torch.tensor(ids[: rows * length], dtype=torch.int64).view(rows, length), prefix
    if data_path:
        raise ConversionError(
            f"--data-path {data_path} has no sequence of {length} tokens below {vocab_size}"
        )
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocab_size, (_ROWS, length), generator=generator), "random tokens"


def _first_tokens(prefix: str, count: int) -> list[int]:
    """Return at least ``count`` tokens of indexed data: fewer if it is shorter, none if it cannot be read."""
    if not all(Path(f"{prefix}.{end}").is_file() for end in ("idx", "bin")):
        return []
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    ids: list[int] = []
    try:
        dataset = IndexedDataset(prefix)
        for index in range(len(dataset)):
            ids += dataset[index][:count].tolist()
            if len(ids) >= count:
                break
    except (OSError, ValueError, AssertionError):  # megatron-core asserts that the index begins as one
        return []
    return ids


def _training_prefixes(settings: Mapping[str, Any]) -> list[str]:
    names = ("test_data_path", "valid_data_path", "train_data_path", "data_path")
    return [str(item) for name in names for item in settings.get(name) or []]
