"""Check that a training which loads a checkpoint has the model and the optimizer of the checkpoint.

Upstream compares the first sizes (``check_checkpoint_args`` in ``megatron/training/checkpointing.py``); for the others
``megatron/core/dist_checkpointing`` finds weights of another shape, or none, and ends the job.

In the format ``torch`` each model-parallel rank reads the file of its own rank, and the files of a distributed
optimizer are those of the iteration in the tracker file, even with ``--ckpt-step`` (``load_checkpoint`` of core_v0.12.0
to core_v0.19.0; tried with core_v0.16.1 on a CPU).

Upstream cannot load the state of SGD in the format ``torch_dist`` (tried with core_v0.16.1): ``sharded_state_dict`` in
``megatron/core/optimizer/optimizer.py`` calls a function that creates the state, and SGD has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.megatron.estimates.estimate import VOCABULARIES
from airflow_megatron.megatron.trainers.trainer import RESHARDABLE, trainer_called
from airflow_megatron.spec.expressions.functions import ffn_size, padded_vocab

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_megatron.megatron.arguments.values import ArgumentValues
    from airflow_megatron.requirements.training_arguments import TrainingArguments
    from airflow_megatron.spec.model.jobs import Job

_SHAPES: Final = (
    *("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels"),
    *("group_query_attention", "num_query_groups", "multi_latent_attention"),
    *("swiglu", "num_experts", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size"),
)
"""Arguments of which each value has weights of its own shapes."""
_ADDED: Final = ("untie_embeddings_and_output_weights", "add_bias_linear", "qk_layernorm")
"""Arguments that add weights."""
_PASSES_OVER: Final = ("log_all", "ignore_all", "return_all")
"""Values of ``dist_ckpt_strictness`` with which weights that the checkpoint lacks keep their first values."""
_SAME_STATE: Final = {"adamw": "adam"}
"""Optimizers with the state of another one."""
_DISTRIBUTED: Final = "use_distributed_optimizer"
"""The two kinds of optimizers name their states differently.

Tried with core_v0.16.1 on a CPU: ``KeyError`` in the format ``torch`` in both directions, and in ``torch_dist`` from a
distributed optimizer to another one. On a CPU, ``torch_dist`` cannot load a distributed optimizer at all.
"""
_PARALLEL: Final = "tensor_model_parallel_size"
_LAYOUT: Final = (_PARALLEL, "pipeline_model_parallel_size")
_IN_FILE_NAMES: Final = (*_LAYOUT, "expert_model_parallel_size")
"""Sizes that the names of the files in the format ``torch`` depend on."""
_TORCH: Final = "torch"
_TORCH_DIST: Final = "torch_dist"
_SINGLE: Final = "fp32"
"""In this format there are no copies of the weights in single precision, which the other formats load.

Tried with core_v0.16.1 in the formats ``torch`` and ``torch_dist``, and with the trainer megatron_core: ``KeyError`` in
both directions.
"""
_LEARNED: Final = "learned_absolute"
_OF_EXPERTS: Final = "num_experts"


def loaded_state_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield the branches whose model or optimizer is not that of the training whose checkpoint they load.

    :param trainings: the arguments of the training jobs, by run directory
    """
    for training in trainings.values():
        parent = trainings.get(training.job.parent_dir or "")
        if parent is not None:
            yield from changed_state(training.job, None, training, parent, parent.job.stage)
            yield from _newest_optimizer(training, parent)
        elif training.job.source is not None and training.job.source.iteration is not None:
            yield from _newest_optimizer(training, None)
        yield from _unsaved_state(training, parent)
        if not loses_optimizer(training) or not training.value("save"):
            continue
        continues = parent is not None and loses_optimizer(parent) and not training.value("finetune")
        failing = "the job" if continues else "every attempt after the first"
        yield Finding(
            "optimizer-lost",
            training.job,
            ("optimizer",),
            f"{training.job.release} cannot load the state of {training.value('optimizer')} from checkpoints in the"
            f" format {training.value('ckpt_format')}: {failing} would end at its start",
            "add ckpt_format: torch; or trainer: megatron_core",
            warning=not continues,
        )


def _newest_optimizer(training: TrainingArguments, parent: TrainingArguments | None) -> Iterator[Finding]:
    """Yield a finding if a training loads the weights of one checkpoint, and the optimizer's state of a newer one.

    Tried with core_v0.16.1: a branch from iteration 4 of 8 continues with iteration 9, with the loss of iteration 5.

    :param parent: the training that writes the checkpoint; None if it is outside the sweep
    """
    job, given = training.job, parent or training
    iteration = job.source.iteration if job.source else job.iteration
    if (
        job.script
        or (job.source is not None and job.source.mode == "finetune")
        or given.value("ckpt_format") != _TORCH
        or not all(values.value(_DISTRIBUTED) for values in (training, given))
        or any(values.value(name) for values, name in _without_state(training, given))
        or iteration is None
    ):
        return
    last = None if parent is None else parent.count("train_iters") or parent.job.last_iteration
    if parent is not None and last in (None, iteration):
        return
    source = str(job.source.path) if job.source else given.job.stage
    loads = (
        f"loads the weights of checkpoint {iteration} of {source}, and the optimizer's state and iteration of"
    )
    told = "the newest one there" if parent else "the newest one there, which may be another one"
    remedy = (
        f"ckpt_format: {_TORCH_DIST} in {source}" if parent else f"a checkpoint in the format {_TORCH_DIST}"
    )
    yield Finding(
        "newest-optimizer",
        job,
        ("start", "checkpoint") if parent else ("start", "iteration"),
        f"with use_distributed_optimizer and the format {_TORCH}, {job.release} {loads} {told}",
        f"{remedy}; or no_load_optim: true for an optimizer without a state",
        warning=parent is None,
    )


def _unsaved_state(training: TrainingArguments, parent: TrainingArguments | None) -> Iterator[Finding]:
    """Yield a finding for each state that upstream loads although the checkpoint was saved without it.

    Tried with core_v0.16.1 in the format ``torch_dist``: ``KeyError: 'optimizer'``. That format loads no state of the
    random number generators if the checkpoint has none.

    :param parent: the training that writes the checkpoint of the first attempt
    """
    job = training.job
    if job.script or trainer_called(job.trainer).checked_by != "upstream_rules" or training.value("finetune"):
        return
    for unsaved, unloaded in (("no_save_optim", "no_load_optim"), ("no_save_rng", "no_load_rng")):
        writers = [each for each in (parent, training) if each and each.value(unsaved) and each.value("save")]
        if unsaved == "no_save_rng":
            writers = [each for each in writers if each.value("ckpt_format") == _TORCH]
        if not writers or training.value(unloaded):
            continue
        at_once = writers[0] is parent
        failing = "the job" if at_once else "every attempt after the first"
        of = f" of {writers[0].job.stage}" if at_once else ""
        yield Finding(
            "unsaved-state",
            job,
            (unsaved,),
            f"the checkpoints{of} are saved with {unsaved}, and {job.release} loads none of them without {unloaded}:"
            f" {failing} would end at its start",
            f"add {unloaded}: true; or drop {unsaved}",
            warning=not at_once,
        )


def _without_state(now: ArgumentValues, before: ArgumentValues) -> Iterator[tuple[ArgumentValues, str]]:
    """Yield the arguments of which each lets a training load no state of the optimizer."""
    yield from ((now, "finetune"), (now, "no_load_optim"), (before, "no_save_optim"))


def loses_optimizer(training: TrainingArguments) -> bool:
    """Return whether a training cannot load the optimizer's state from its own checkpoints."""
    return (
        training.value("optimizer") == "sgd"
        and not trainer_called(training.job.trainer).loads_sgd
        and training.value("ckpt_format") == _TORCH_DIST
        and not training.value("no_load_optim")
    )


def changed_state(
    job: Job, place: tuple[str, ...] | None, now: ArgumentValues, before: ArgumentValues, source: str
) -> Iterator[Finding]:
    """Yield a finding if a training's weights, and one if its optimizer, cannot be loaded from a checkpoint.

    :param job: the training
    :param place: the keys of the spec for the findings; None for the arguments themselves
    :param now: its arguments
    :param before: the arguments of the training that wrote the checkpoint
    :param source: the name of that training, for messages
    """
    yield from _changed_shapes(job, place, now, before, source)
    yield from _changed_padding(job, place, now, before, source)
    unreadable = list(_unreadable_files(job, place, now, before, source))
    yield from unreadable
    if unreadable or job.script or any(values.value(name) for values, name in _without_state(now, before)):
        return
    ours, theirs = (str(values.value("optimizer")) for values in (now, before))
    if _SAME_STATE.get(ours, ours) != _SAME_STATE.get(theirs, theirs):
        yield Finding(
            "other-optimizer",
            job,
            place or ("optimizer",),
            f"its optimizer is {ours}, and the checkpoint of {source} that it loads has the state of {theirs}: the job"
            " would end as it loads it",
            f"optimizer: {theirs}; or no_load_optim: true for an optimizer without a state",
        )
        return
    ours_divided, theirs_divided = (bool(values.value(_DISTRIBUTED)) for values in (now, before))
    if ours_divided != theirs_divided:
        does = "divides" if theirs_divided else "does not divide"
        yield Finding(
            "other-optimizer",
            job,
            place or (_DISTRIBUTED,),
            f"{source}, whose checkpoint it loads, {does} the optimizer's state among processes, and the job would end"
            " as it loads it",
            f"{_DISTRIBUTED}: {str(theirs_divided).lower()}; or no_load_optim: true for an optimizer without a state",
        )
        return
    sizes = _changed_sizes(_LAYOUT, now, before)
    if sizes and trainer_called(job.trainer).state_needs_layout(before):
        hint = f"{sizes[0]}: {before.value(sizes[0])}"
        if before.table.get(RESHARDABLE):
            hint += f"; or {RESHARDABLE}: true in {source}, before it saves"
        yield Finding(
            "other-layout",
            job,
            place or (sizes[0],),
            f"the optimizer's state in the checkpoint of {source} that it loads has other model-parallel sizes"
            f" ({_differences(sizes, now, before)}): the job would end as it loads it",
            f"{hint}; or no_load_optim: true for an optimizer without a state",
        )
        return
    ours, theirs = _number_format(now), _number_format(before)
    if not ours_divided and (ours == _SINGLE) != (theirs == _SINGLE):
        yield Finding(
            "other-optimizer",
            job,
            place or (theirs if ours == _SINGLE else ours,),
            f"it trains in {ours}, and {source}, whose checkpoint it loads, in {theirs}: the states of their optimizers"
            " differ, and the job would end as it loads it",
            (f"{theirs}: true" if ours == _SINGLE else f"{ours}: false")
            + "; or no_load_optim: true for an optimizer without a state",
        )


def _changed_sizes(names: Iterable[str], now: ArgumentValues, before: ArgumentValues) -> list[str]:
    """Return the model-parallel sizes that differ; none if the training takes them from the checkpoint.

    ``use_checkpoint_args`` alone does not take them.
    """
    if all(now.value(name) for name in ("use_checkpoint_args", "use_mp_args_from_checkpoint_args")):
        return []
    return [name for name in names if now.value(name) != before.value(name)]


def _differences(names: Iterable[str], now: ArgumentValues, before: ArgumentValues) -> str:
    return ", ".join(f"{name} {_value(now, name)} instead of {_value(before, name)}" for name in names)


def _unreadable_files(
    job: Job, place: tuple[str, ...] | None, now: ArgumentValues, before: ArgumentValues, source: str
) -> Iterator[Finding]:
    """Yield a finding if a training cannot read the files of a checkpoint in their format.

    Tried with core_v0.16.1: with other pipeline-parallel sizes it ends with exit code 0, and with
    ``--auto-detect-ckpt-format`` a ``KeyError`` follows.
    """
    if job.script:
        return
    ours, theirs = (values.value("ckpt_format") for values in (now, before))
    if (ours, theirs) == (_TORCH, _TORCH_DIST):
        yield Finding(
            "other-format",
            job,
            place or ("ckpt_format",),
            f"its ckpt_format is {_TORCH}, and the checkpoint of {source} that it loads has the format"
            f" {_TORCH_DIST}: the job would end as it loads it",
            f"ckpt_format: {_TORCH_DIST}, which loads both",
        )
    sizes = _changed_sizes(_IN_FILE_NAMES, now, before)
    if theirs == _TORCH and sizes:
        yield Finding(
            "other-parts",
            job,
            place or (sizes[0],),
            f"the checkpoint of {source} that it loads has the format {_TORCH}, and other model-parallel sizes"
            f" ({_differences(sizes, now, before)}): the job would end as it loads it",
            f"{sizes[0]}: {before.value(sizes[0])}; or ckpt_format: {_TORCH_DIST} in {source}",
        )


def _number_format(arguments: ArgumentValues) -> str:
    return next((name for name in ("bf16", "fp16") if arguments.value(name)), _SINGLE)


def _changed_shapes(
    job: Job, place: tuple[str, ...] | None, now: ArgumentValues, before: ArgumentValues, source: str
) -> Iterator[Finding]:
    """Yield a finding if weights of a training have other shapes than those in the checkpoint that it loads."""
    if job.script or now.value("use_checkpoint_args"):
        return
    names = [name for name in _compared(now, before) if _differs(name, now, before)]
    if "num_query_groups" in names and "group_query_attention" in names:
        names.remove("group_query_attention")
    if names:
        yield Finding(
            "other-model",
            job,
            place or (names[0],),
            f"its model is not that of the checkpoint of {source} that it loads"
            f" ({_differences(names, now, before)}): the job would end as it loads it",
            f"the {' and '.join(names)} of {source}",
            names=() if place else tuple(names),
        )


def _changed_padding(
    job: Job, place: tuple[str, ...] | None, now: ArgumentValues, before: ArgumentValues, source: str
) -> Iterator[Finding]:
    """Yield a warning if the vocabulary is padded to another size than in the checkpoint.

    The format ``torch_dist`` loads another shape, and embeddings that the checkpoint lacks are not trained. Tried
    with the trainer megatron_core: without dropout, a loss of 4.60 becomes 5.29 with 256 instead of 128 tokens, and
    one of 3.10 becomes 3.02 with 384 instead of 1,024; with another tensor-parallel size and the same padding, the
    loss is the same.
    """
    if job.script or now.value("use_checkpoint_args") or before.value("ckpt_format") != _TORCH_DIST:
        return
    ours, theirs = _padded(now), _padded(before)
    if not ours or not theirs or ours == theirs:
        return
    effect = (
        "the further ones are not trained, and the loss jumps"
        if ours > theirs
        else "the last ones are left out, and the loss changes"
    )
    divisible, parallel = before.count("make_vocab_size_divisible_by") or 128, _PARALLEL
    total = divisible * (before.count(parallel) or 1)
    size = now.count(parallel) or 1
    hint = f"the {parallel} of {source}" if total % size else f"make_vocab_size_divisible_by: {total // size}"
    yield Finding(
        "other-padding",
        job,
        place
        or (parallel if now.value(parallel) != before.value(parallel) else "make_vocab_size_divisible_by",),
        f"its vocabulary is padded to {ours} tokens, and that of the checkpoint of {source} that it loads to {theirs}:"
        f" {effect}",
        hint,
        warning=True,
    )


def _padded(arguments: ArgumentValues) -> int | None:
    """Return the size to which Megatron pads the vocabulary, None if the size of the vocabulary is not known here."""
    vocabulary = arguments.count("vocab_size") or VOCABULARIES.get(str(arguments.value("tokenizer_type")))
    if not vocabulary:
        return None
    parallel = arguments.count(_PARALLEL) or 1
    return padded_vocab(vocabulary, parallel, arguments.count("make_vocab_size_divisible_by") or 128)


def _compared(now: ArgumentValues, before: ArgumentValues) -> Iterator[str]:
    for name in _SHAPES:
        if not (name.startswith("moe_") or name == _OF_EXPERTS) or not now.value("moe_use_upcycling"):
            yield name
    kinds = {now.value("position_embedding_type"), before.value("position_embedding_type")}
    if len(kinds) == 2 and _LEARNED in kinds:
        yield "position_embedding_type"
    elif kinds == {_LEARNED}:
        yield "max_position_embeddings"
    if now.value("dist_ckpt_strictness") in _PASSES_OVER:
        return
    if now.value("normalization") == "LayerNorm":  # has a bias, which no other has
        yield "normalization"
    for name in _ADDED:
        if now.value(name):  # weights that only the checkpoint has are not compared
            yield name


def _differs(name: str, now: ArgumentValues, before: ArgumentValues) -> bool:
    if name not in now and name not in before:
        return False  # both are derived from others, which are compared
    return bool(_value(now, name) != _value(before, name))


def _value(arguments: ArgumentValues, name: str) -> Any:
    """Return the value of an argument, or what Megatron derives for one that is not given."""
    grouped = bool(arguments.value("group_query_attention"))
    heads, hidden = arguments.count("num_attention_heads"), arguments.count("hidden_size")
    if name in ("group_query_attention", "num_query_groups"):
        return arguments.number("num_query_groups") if grouped else heads
    number = arguments.number(name)
    if number is None and hidden and heads:
        if name == "kv_channels":
            return hidden // heads
        if name == "ffn_hidden_size":
            return ffn_size(hidden, bool(arguments.value("swiglu")))
        if name == "moe_ffn_hidden_size":
            return _value(arguments, "ffn_hidden_size")
    return arguments.value(name) if number is None else number
