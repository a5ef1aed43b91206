"""Training, validation and test data: megatron-core's indexed GPT data sets, in a resumable order."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.datasets.utils import get_blend_from_list

from megatron_core_trainer.console import print_rank_0
from megatron_core_trainer.data import index_cache

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from megatron_core_trainer.arguments import Tokenizer

    Batch = dict[str, torch.Tensor]


class ConsecutiveSampler:
    """Yields the sample numbers of each micro batch of one data-parallel rank, from the first unconsumed sample.

    The order is that of upstream's ``MegatronPretrainingSampler``: each micro batch of the whole group is a range of
    consecutive samples, of which each rank takes its slice; an incomplete last batch is dropped.

    :param total: samples in the data set.
    :param consumed: samples that earlier iterations consumed.
    :param micro_batch_size: sequences per micro batch and rank.
    :param rank: data-parallel rank.
    :param size: data-parallel size.
    """

    def __init__(self, total: int, consumed: int, micro_batch_size: int, rank: int, size: int) -> None:
        self.total, self.consumed = total, consumed
        self.micro_batch_size, self.rank, self.size = micro_batch_size, rank, size

    def __len__(self) -> int:
        return max(0, self.total - self.consumed) // (self.micro_batch_size * self.size)

    def __iter__(self) -> Iterator[list[int]]:
        start = self.consumed + self.rank * self.micro_batch_size
        step = self.micro_batch_size * self.size
        for _ in range(len(self)):
            yield list(range(start, start + self.micro_batch_size))
            start += step


class SplitData:
    """The three data sets and iterators over them.

    :param args: complete arguments; ``consumed_train_samples`` and ``consumed_valid_samples`` are the start positions.
    :param tokenizer: the tokenizer.
    """

    def __init__(self, args: argparse.Namespace, tokenizer: Tokenizer) -> None:
        self._args = args
        self._reads = parallel_state.get_tensor_model_parallel_rank() == 0 and (
            parallel_state.is_pipeline_first_stage() or parallel_state.is_pipeline_last_stage()
        )
        sizes = _sample_counts(args)
        print_rank_0("> building train, validation, and test datasets ...")
        print_rank_0(" > datasets target sizes (minimum size):")
        for name, size in zip(("train:     ", "validation:", "test:      "), sizes, strict=True):
            print_rank_0(f"    {name} {size}")
        config = _dataset_config(args, tokenizer)
        kind = MockGPTDataset if args.mock_data else GPTDataset
        if args.data_cache_path:
            index_cache.share(args.data_cache_path)
        built = BlendedMegatronDatasetBuilder(kind, list(sizes), lambda: self._reads, config).build()
        lengths = _agree([0 if dataset is None else len(dataset) for dataset in built])
        self._train, self._valid, self._test = built
        self.train_length, self.valid_length, self.test_length = lengths

    def train_batches(self) -> Iterator[Batch] | None:
        """Return the training batches from the first unconsumed one; None if another rank reads them."""
        return self._batches(self._train, self._args.consumed_train_samples)

    def valid_batches(self) -> Iterator[Batch] | None:
        """Return validation batches: the next ones; from the beginning if all are read, or if nothing is trained."""
        from_start = self._args.full_validation or self._args.skip_train
        consumed = 0 if from_start else self._args.consumed_valid_samples
        return self._batches(self._valid, consumed)

    def test_batches(self) -> Iterator[Batch] | None:
        """Return the test batches from the beginning."""
        return self._batches(self._test, 0)

    def _batches(self, dataset: Any, consumed: int) -> Iterator[Batch] | None:
        if not self._reads or dataset is None:
            return None
        args = self._args
        sampler = ConsecutiveSampler(
            len(dataset),
            consumed,
            args.micro_batch_size,
            parallel_state.get_data_parallel_rank(),
            parallel_state.get_data_parallel_world_size(),
        )
        batches: Iterator[Batch] = iter(
            torch.utils.data.DataLoader(
                dataset,
                batch_sampler=sampler,
                num_workers=args.num_workers,
                pin_memory=args.distributed_backend == "nccl",
                # Without a generator of its own, each new loader would draw from the generator that dropout uses.
                generator=torch.Generator().manual_seed(args.seed),
                worker_init_fn=_IgnoreSignal(args.exit_signal) if args.exit_signal_handler else None,
            )
        )
        return batches


class _IgnoreSignal:
    """Ignore the exit signal in a data-loading process: the trainer needs it until it has saved its state."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, worker: int) -> None:
        signal.signal(self._number, signal.SIG_IGN)


def eval_iterations(args: argparse.Namespace, valid_length: int) -> int:
    """Return the number of iterations of one validation.

    :param args: complete arguments.
    :param valid_length: samples in the validation set.
    """
    return valid_length // args.global_batch_size if args.full_validation else int(args.eval_iters)


def _sample_counts(args: argparse.Namespace) -> tuple[int, int | None, int]:
    batch = args.global_batch_size
    train = args.train_samples
    if train is None:
        # Upstream's number, or more if the run had larger batches before it was continued.
        rest = max(0, args.train_iters - args.iteration) * batch
        train = max(args.train_iters * batch, args.consumed_train_samples + rest)
    validations = (
        1 if args.skip_train or not args.eval_interval else args.train_iters // args.eval_interval + 1
    )
    valid = None if args.full_validation else validations * args.eval_iters * batch
    return train, valid, args.eval_iters * batch


def _dataset_config(args: argparse.Namespace, tokenizer: Tokenizer) -> GPTDatasetConfig:
    per_split = [args.train_data_path, args.valid_data_path, args.test_data_path]
    blend_per_split = None
    if any(path is not None for path in per_split):
        blend_per_split = [get_blend_from_list(path) if path else None for path in per_split]
    return GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=get_blend_from_list(args.data_path) if args.data_path else None,
        blend_per_split=blend_per_split,
        split=("1,1,1" if args.mock_data else args.split) if blend_per_split is None else None,
        full_validation=args.full_validation,
        num_dataset_builder_threads=args.num_dataset_builder_threads,
        # An empty path keeps the sample order in memory. Jobs that share data then cannot read incomplete index files
        # of each other, and no job writes to the folder of the data.
        path_to_cache=args.data_cache_path or "",
        mmap_bin_files=args.mmap_bin_files,
        tokenizer=tokenizer,
        reset_position_ids=args.reset_position_ids,
        reset_attention_mask=args.reset_attention_mask,
        eod_mask_loss=args.eod_mask_loss,
        create_attention_mask=has_attention_mask(args),
    )


def has_attention_mask(args: argparse.Namespace) -> bool:
    """Return whether batches contain an attention mask; without one, each layer masks later positions itself.

    :param args: complete arguments.
    """
    return bool(args.reset_attention_mask and args.create_attention_mask_in_dataloader)


def _agree(lengths: list[int]) -> list[int]:
    tensor = torch.tensor(lengths, dtype=torch.int64, device=torch.cuda.current_device())
    torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
    return [int(value) for value in tensor.tolist()]
