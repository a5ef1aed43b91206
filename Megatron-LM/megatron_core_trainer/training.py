"""Training from the first iteration to the last, with validation, checkpoints and early exits."""

from __future__ import annotations

import contextlib
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func

from megatron_core_trainer import checkpointing, console, flops
from megatron_core_trainer.console import print_marker, print_rank_0, print_rank_last
from megatron_core_trainer.data import batch_sizes
from megatron_core_trainer.data.datasets import SplitData, eval_iterations
from megatron_core_trainer.distributed import max_over_ranks
from megatron_core_trainer.model import (
    build_model,
    count_parameters,
    forward_step,
    transformer_config,
    wrap_data_parallel,
)
from megatron_core_trainer.optimization.lr_curve import LossCurve, write_search
from megatron_core_trainer.optimization.optimizer import build_optimizer, build_scheduler, learning_rate
from megatron_core_trainer.optimization.optimizer_choices import LIBRARY
from megatron_core_trainer.scalars import open_scalars

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from megatron_core_trainer.arguments import Tokenizer
    from megatron_core_trainer.exit_conditions import ExitConditions


class Trainer:
    """One run: model, optimizer, data and the training loop.

    :param args: complete arguments.
    :param tokenizer: the tokenizer.
    :param exits: conditions that end the run early.
    """

    def __init__(self, args: argparse.Namespace, tokenizer: Tokenizer, exits: ExitConditions) -> None:
        self._args, self._exits = args, exits
        batch_sizes.start(args)
        self._batch = args.global_batch_size
        print_rank_0("building GPT model ...")
        self._config = transformer_config(args)
        model = build_model(args, self._config, fused_on_cpu=True)
        if parallel_state.get_data_parallel_rank() == 0:
            print(
                " > number of parameters on (tensor, pipeline) model parallel rank"
                f" ({parallel_state.get_tensor_model_parallel_rank()},"
                f" {parallel_state.get_pipeline_model_parallel_rank()}): {count_parameters(model)}",
                flush=True,
            )
        self._model = wrap_data_parallel(args, model)
        self._optimizer = build_optimizer(args, self._model)
        self._scheduler = build_scheduler(args, self._optimizer)
        self._config.grad_scale_func = self._optimizer.scale_loss
        self._config.finalize_model_grads_func = finalize_model_grads
        if args.overlap_grad_reduce:
            self._config.no_sync_func = self._model.no_sync
        self._checkpointer = checkpointing.Checkpointer(args, model, self._optimizer, self._scheduler)
        self._operations = 0.0
        self._saved_iteration: int | None = None
        self._resume()
        print_marker("after model, optimizer, and learning rate scheduler are built")
        self._data = SplitData(args, tokenizer)
        print_marker("after dataloaders are built")
        self._losses = _LossSum()
        self._writer = open_scalars(args)
        self._step = partial(
            get_forward_backward_func(),
            forward_step_func=partial(forward_step, args),
            model=self._model,
            num_microbatches=args.num_microbatches,
            seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size,
            decoder_seq_length=args.seq_length,
        )

    def run(self) -> None:
        """Train, save and validate; the log lines and their order are those of upstream."""
        args = self._args
        print_rank_0("done with setup ...")
        if args.log_progress and torch.distributed.get_rank() == 0:
            checkpointing.append_progress(args, "Starting job")
        if args.lr_finder:
            self._find_learning_rate()
            return
        if args.skip_train:
            print_rank_0("skipping training (--skip-train is on) ...")
        else:
            print_rank_0("training ...")
            if self._train():
                return
            print_marker("after training is done")
            if args.save and args.iteration != self._saved_iteration:
                self._save()
        self._evaluate_at_end()
        if self._writer:
            self._writer.close()

    def _resume(self) -> None:
        checkpoint = checkpointing.checkpoint_to_load(self._args)
        if checkpoint is None:
            return
        self._args.iteration, self._operations = self._checkpointer.load(checkpoint)
        if self._args.save and checkpoint.parent.resolve() == Path(self._args.save).resolve():
            self._saved_iteration = self._args.iteration

    def _train(self) -> bool:
        """Return whether the run ended early."""
        args = self._args
        self._model.train()
        batches = self._data.train_batches()
        print_marker("before the start of training step")
        first, started, since = True, time.perf_counter(), 0
        while args.iteration < args.train_iters:
            grad_norm, zeros = self._train_step(batches)
            args.iteration += 1
            since += 1
            args.consumed_train_samples += self._batch
            self._operations += flops.floating_point_operations(args, self._batch)
            due = args.iteration % args.log_interval == 0
            if due or first:
                seconds = (time.perf_counter() - started) / since
                self._log_iteration(seconds, grad_norm, zeros)
                if first:
                    self._report_memory()
                # The first line after a start is an additional one: the next regular line covers its iterations too.
                if due:
                    self._losses.reset()
                    started, since = time.perf_counter(), 0
                first = False
            self._log_to_tensorboard(grad_norm)
            # The time of an iteration does not include validation and saving.
            paused = time.perf_counter()
            if args.eval_interval and args.iteration % args.eval_interval == 0:
                self._validate(f"iteration {args.iteration}")
            if self._save_and_decide():
                return True
            started += time.perf_counter() - paused
        return False

    def _find_learning_rate(self) -> None:
        """Train while the learning rate rises; write the losses and the suggested rates."""
        args = self._args
        self._model.train()
        batches = self._data.train_batches()
        print_marker("before the start of training step")
        curve = LossCurve(args.lr_finder_smoothing, args.lr_finder_stop_factor)
        started, since, stop = time.perf_counter(), 0, False
        while args.iteration < args.train_iters and not stop:
            rate = learning_rate(self._optimizer)
            grad_norm, zeros = self._train_step(batches)
            args.iteration += 1
            since += 1
            args.consumed_train_samples += self._batch
            if parallel_state.is_pipeline_last_stage():
                stop = curve.add(rate, self._losses.last)
            stop = bool(max_over_ranks(float(stop))[0])
            if args.iteration % args.log_interval == 0:
                self._log_iteration((time.perf_counter() - started) / since, grad_norm, zeros)
                self._losses.reset()
                started, since = time.perf_counter(), 0
        print_marker("after training is done")
        if torch.distributed.get_rank() != args.world_size - 1:
            return
        about = {"optimizer": args.optimizer, "iterations": args.iteration, "stopped_early": stop}
        write_search(Path(args.save), curve, about)

    def _train_step(self, batches: Iterator[Any] | None) -> tuple[float | None, float | None]:
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()
        self._batch, microbatches = batch_sizes.at(self._args.consumed_train_samples)
        reports = self._step(data_iterator=batches, forward_only=False, num_microbatches=microbatches)
        updated, grad_norm, zeros = self._optimizer.step()
        if updated:
            self._scheduler.step(increment=self._batch)
        if parallel_state.is_pipeline_last_stage():
            loss = _mean_loss(reports)
            self._losses.add(loss, skipped=not updated)
        return grad_norm, zeros

    def _save_and_decide(self) -> bool:
        """Save a checkpoint if it is due, and return whether to stop."""
        args = self._args
        reason = self._exits.after_iteration(args.iteration)
        if args.save and (reason or args.iteration % args.save_interval == 0):
            self._save()
        if reason is None:
            return False
        print_marker(reason)
        if self._writer:
            self._writer.close()
        return True

    @contextlib.contextmanager
    def _settled_weights(self) -> Iterator[None]:
        """Put the weights that are saved or validated into the model during the block."""
        if self._args.optimizer in LIBRARY:
            from megatron_core_trainer.optimization.library_optimizers import averaged_weights

            with averaged_weights(self._optimizer):
                yield
            return
        # With --overlap-param-gather the parameters of a rank are outdated until the next forward pass gathers them.
        if not self._args.overlap_param_gather:
            yield
            return
        self._model.disable_forward_pre_hook()
        yield
        self._model.enable_forward_pre_hook()

    def _save(self) -> None:
        with self._settled_weights():
            self._checkpointer.save(self._args.iteration, self._operations)
        self._saved_iteration = self._args.iteration

    def _log_iteration(self, seconds: float, grad_norm: float | None, zeros: float | None) -> None:
        args = self._args
        work = flops.floating_point_operations(args, self._batch)
        line = console.iteration_line(
            iteration=args.iteration,
            train_iters=args.train_iters,
            consumed_samples=args.consumed_train_samples,
            seconds=seconds,
            throughput=work / (seconds * 1e12 * args.world_size) if args.log_throughput else None,
            learning_rate=learning_rate(self._optimizer),
            global_batch_size=self._batch,
            losses=self._losses.means(),
            loss_scale=float(self._optimizer.get_loss_scale().item()),
            grad_norm=grad_norm,
            num_zeros=zeros,
            params_norm=self._params_norm() if args.log_params_norm else None,
            skipped=self._losses.skipped,
            nan=self._losses.nan,
        )
        print_rank_last(line)

    def _report_memory(self) -> None:
        args = self._args
        if torch.distributed.get_rank() == 0:
            for line in flops.memory_report(args):
                print_rank_0(line)
        if parallel_state.get_data_parallel_rank() == 0:
            megabyte = 2.0**20
            print(
                f"[Rank {torch.distributed.get_rank()}] (after {args.iteration} iterations) memory (MB)"
                f" | allocated: {torch.cuda.memory_allocated() / megabyte:.2f}"
                f" | max allocated: {torch.cuda.max_memory_allocated() / megabyte:.2f}"
                f" | reserved: {torch.cuda.memory_reserved() / megabyte:.2f}"
                f" | max reserved: {torch.cuda.max_memory_reserved() / megabyte:.2f}",
                flush=True,
            )

    def _params_norm(self) -> float:
        """Return the norm of the parameters that the optimizer updates: with bfloat16 their float32 copies."""
        whole, divided = torch.zeros(2, dtype=torch.float64)
        first = parallel_state.get_tensor_model_parallel_rank() == 0
        for parameter in self._model.parameters():
            if getattr(parameter, "shared", False) or not (first or parameter.tensor_model_parallel):
                continue
            main = getattr(parameter, "main_param", parameter) if self._args.bf16 else parameter
            if main is None:  # another rank of the distributed optimizer has it
                continue
            square = main.detach().double().pow(2).sum().cpu()
            if self._args.bf16 and getattr(parameter, "main_param_sharded", False):
                divided += square
            else:
                whole += square
        device = torch.cuda.current_device()
        whole, divided = whole.to(device), divided.to(device)
        replicas = parallel_state.get_data_parallel_group(with_context_parallel=True)
        torch.distributed.all_reduce(divided, group=replicas)
        total = whole + divided
        torch.distributed.all_reduce(total, group=parallel_state.get_model_parallel_group())
        return float(total.item() ** 0.5)

    def _validate(self, prefix: str) -> None:
        args = self._args
        iterations = eval_iterations(args, self._data.valid_length)
        if not iterations or not self._data.valid_length:
            return
        losses = self._evaluate(self._data.valid_batches(), iterations)
        args.consumed_valid_samples += iterations * args.global_batch_size
        print_rank_last(console.validation_lines(prefix, losses))
        if self._writer:
            for name, value in losses.items():
                self._writer.add_scalar(f"{name} validation", value, args.iteration)
                self._writer.add_scalar(f"{name} validation vs samples", value, args.consumed_train_samples)

    def _evaluate_at_end(self) -> None:
        args = self._args
        self._validate(f"iteration {args.iteration} on validation set")
        if args.eval_iters and self._data.test_length:
            losses = self._evaluate(self._data.test_batches(), args.eval_iters)
            print_rank_last(console.validation_lines(f"iteration {args.iteration} on test set", losses))

    def _evaluate(self, batches: Iterator[Any] | None, iterations: int) -> dict[str, float]:
        self._model.eval()
        total = torch.zeros(2, dtype=torch.float64, device=torch.cuda.current_device())
        with torch.no_grad(), self._settled_weights():
            for _ in range(iterations):
                reports = self._step(data_iterator=batches, forward_only=True)
                if parallel_state.is_pipeline_last_stage():
                    total += torch.stack([report["lm loss"] for report in reports]).sum(dim=0)
        self._model.train()
        if not parallel_state.is_pipeline_last_stage():
            return {}
        torch.distributed.all_reduce(
            total, group=parallel_state.get_data_parallel_group(with_context_parallel=True)
        )
        return {"lm loss": float(total[0] / total[1])}

    def _log_to_tensorboard(self, grad_norm: float | None) -> None:
        args = self._args
        if not self._writer or args.iteration % args.tensorboard_log_interval:
            return
        values = {
            "learning-rate": learning_rate(self._optimizer),
            "batch-size": self._batch,
            "lm loss": self._losses.last,
        }
        if grad_norm is not None:
            values["grad-norm"] = grad_norm
        for name, value in values.items():
            self._writer.add_scalar(name, value, args.iteration)
            self._writer.add_scalar(f"{name} vs samples", value, args.consumed_train_samples)


class _LossSum:
    """Sums of the losses since the last log line."""

    def __init__(self) -> None:
        self.last = 0.0
        self.reset()

    def reset(self) -> None:
        self._sum, self._advanced, self.skipped, self.nan = 0.0, 0, 0, 0

    def add(self, loss: float, *, skipped: bool) -> None:
        self.last = loss
        self.skipped += int(skipped)
        self.nan += int(loss != loss or loss in (float("inf"), float("-inf")))
        if not skipped:
            self._sum += loss
            self._advanced += 1

    def means(self) -> dict[str, float]:
        return {"lm loss": self._sum / max(1, self._advanced)}


def _mean_loss(reports: list[dict[str, torch.Tensor]]) -> float:
    total = torch.stack([report["lm loss"] for report in reports]).sum(dim=0)
    torch.distributed.all_reduce(
        total, group=parallel_state.get_data_parallel_group(with_context_parallel=True)
    )
    return float(total[0] / total[1])
