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
        if Path(prefix + ".idx").is_file():
            from megatron.core.datasets.indexed_dataset import IndexedDataset

            dataset = IndexedDataset(prefix)
            ids: list[int] = []
            for index in range(len(dataset)):
                ids += dataset[index][: _ROWS * length].tolist()
                if len(ids) >= _ROWS * length:
                    break
            rows = min(_ROWS, len(ids) // length)
            if rows and max(ids[: rows * length]) < vocab_size:
                return torch.tensor(ids[: rows * length], dtype=torch.int64).view(rows, length), prefix
    if data_path:
        raise ConversionError(
            f"--data-path {data_path} has no sequence of {length} tokens below {vocab_size}"
        )
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocab_size, (_ROWS, length), generator=generator), "random tokens"


def _training_prefixes(settings: Mapping[str, Any]) -> list[str]:
    names = ("test_data_path", "valid_data_path", "train_data_path", "data_path")
    return [str(item) for name in names for item in settings.get(name) or []]
