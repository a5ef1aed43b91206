"""Rules of failures after argument parsing: the tokenizer, building the model, the first iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.arguments.data_blends import (
    BLENDS,
    HINT,
    SHARES_HINT,
    blend_problem,
    share_problem,
)
from airflow_megatron.megatron.rules.nearest import divisors, multiples
from airflow_megatron.megatron.rules.rule import Derive, Rule
from airflow_megatron.megatron.validation.optimizer_schedule import OPTIMIZER_SCHEDULE
from airflow_megatron.megatron.validation.upstream_rules import local_layers
from airflow_megatron.megatron.validation.upstream_rules.batches import is_constant, samples_at_once
from airflow_megatron.megatron.validation.upstream_rules.data import has_test_data, lacks_validation_data
from airflow_megatron.megatron.validation.upstream_rules.experts import has_dense_layers, has_expert_layers
from airflow_megatron.megatron.validation.upstream_rules.local_layers import is_gpt, is_local
from airflow_megatron.megatron.validation.upstream_rules.schedule import trains

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

TOKENIZERS: Final = (
    "megatron/training/tokenizer/tokenizer.py, megatron/core/tokenizers/utils/build_tokenizer.py"
)
LINEAR: Final = "megatron/core/tensor_parallel/layers.py ColumnParallelLinear, RowParallelLinear"
ATTENTION: Final = "megatron/core/transformer/dot_product_attention.py DotProductAttention"
MLP: Final = "megatron/core/transformer/mlp.py MLP.forward"
MOE: Final = "megatron/core/transformer/moe/moe_layer.py MoELayer.forward"
SCATTER: Final = "megatron/core/tensor_parallel/mappings.py _reduce_scatter_along_first_dim"
INTERLEAVED: Final = (
    "megatron/core/pipeline_parallel/schedules.py forward_backward_pipelining_with_interleaving"
)

WANDB: Final = "megatron/training/global_vars.py _set_wandb_writer"

_MOCK_TOKENS: Final = 4096
_RARE: Final = 1e-9
_SIZES: Final = ("hidden_size", "num_attention_heads", "kv_channels", "seq_length")
_OF_A_MODEL_FILE: Final = (
    *("HuggingFaceTokenizer", "Llama2Tokenizer", "TikTokenizer", "SFTTokenizer"),
    *("SentencePieceTokenizer", "GPTSentencePieceTokenizer"),
)
_OF_NOTHING: Final = ("NullTokenizer", "NullMultimodalTokenizer")
#: Tokenizers of core_v0.16 that only its old implementation supports; its data sets use the new one.
_OLD_ONLY: Final = ("NullMultimodalTokenizer", "MultimodalTokenizer", "SFTTokenizer")
_OF_PICTURES: Final = ("NullMultimodalTokenizer", "MultimodalTokenizer")
_DATA_SETS: Final = (
    *("data_path", "data_args_path", "per_split_data_args_path"),
    *("train_data_path", "valid_data_path", "test_data_path"),
)


def _of_the_command_line(s: Settings) -> bool:
    """Return whether the tokenizer is that of the command line, not a checkpoint's."""
    return not s.use_checkpoint_args


def _lacks_vocabulary_size(s: Settings) -> bool:
    """Return whether the vocabulary size is missing or invalid; the new tokenizers of core_v0.16 accept 0 for none."""
    size: int | None = s.vocab_size
    return size is None or (s.release >= (0, 16) and size <= (-1 if s.legacy_tokenizer else 0))


def _has_no_data(s: Settings) -> bool:
    """Return whether none of upstream's arguments names a data set; a fork may have other arguments."""
    return (
        not s.mock_data
        and all(vars(s)[name] is None for name in _DATA_SETS)
        and not s.perform_rl_step
        and not s.has_other_arguments
    )


def _lacks_layers_of_pattern(s: Settings) -> bool:
    """Return whether the pattern of layers with experts is not one for these layers."""
    pattern = s.moe_layer_freq
    if not is_gpt(s) or s.num_experts is None:
        return False
    if isinstance(pattern, list):
        return len(pattern) != s.num_layers or not set(pattern) <= {0, 1}
    return bool(pattern == 0)


def _fuses_activation(s: Settings, activation: str) -> bool:
    """Return whether layers without experts fuse their bias with a gated activation."""
    return bool(
        is_gpt(s)
        and has_dense_layers(s)
        and s.gated_linear_unit
        and s.activation == activation
        and s.bias_activation_fusion
        and not s.use_te_activation_func
        and not s.use_transformer_engine_op_fuser
    )


def _sequence_of_a_gpu(s: Settings) -> int:
    length: int = s.seq_length // s.context_parallel_size
    return length


def _sequence_unit(s: Settings) -> int:
    context: int = s.context_parallel_size
    unit: int = s.tensor_model_parallel_size * context * (2 if context > 1 else 1)
    return unit


def _group(s: Settings) -> int:
    """Return the number of microbatches that a virtual stage processes consecutively."""
    given: int | None = s.microbatch_group_size_per_vp_stage
    return s.pipeline_model_parallel_size if given is None else given


def _microbatches(s: Settings) -> int:
    count: int = s.global_batch_size // samples_at_once(s)
    return count


def _does_not_interleave(s: Settings) -> bool:
    stages, group, count = s.pipeline_model_parallel_size, _group(s), _microbatches(s)
    return not stages <= group <= count or 0 < count % group < stages


def _count_microbatches(s: Settings) -> None:
    s.num_microbatches = _microbatches(s)


def _saves_asynchronously(s: Settings) -> bool:
    """Return whether the first complete checkpoint is saved asynchronously in a format that has no such save."""
    formats = ("torch_dist",) if s.release < (0, 17) else ("torch_dist", "torch_dcp", "fsdp_dtensor")
    return bool(
        s.async_save
        and s.save
        and trains(s)
        and s.non_persistent_ckpt_type != "local"
        and s.ckpt_format not in formats
    )


def _embeds_unknown_token(s: Settings) -> bool:
    """Return whether mock data have a token beyond --padded-vocab-size, as good as certainly.

    Documents of 1 to 4,095 tokens count from 1 on, modulo the size of the tokenizer, and end with its last token. A
    sample lacks such a token only as a part of one document that begins low enough.
    """
    size: int = s.padded_vocab_size or 0
    last: int = s.vocab_size or 0  # the id of the last token
    if not 0 < size <= last:
        return False
    samples: int = s.train_samples or s.train_iters * s.global_batch_size
    inside = (1 - min(s.seq_length / _MOCK_TOKENS, 1)) ** 2
    starts = max(size - s.seq_length + 1, 0)
    lacking = min(inside, starts * (inside / (last + 1) + 2 / _MOCK_TOKENS))
    return bool(lacking**samples < _RARE)


TOKENIZER: Topic = (
    Rule(
        "tokenizer.type",
        lambda s: _of_the_command_line(s) and s.tokenizer_type is None,
        "--tokenizer-type must be given",
        "--tokenizer-type HuggingFaceTokenizer --tokenizer-model <folder>",
        TOKENIZERS,
    ),
    Rule(
        "tokenizer.model",
        lambda s: (
            _of_the_command_line(s)
            and s.tokenizer_type in _OF_A_MODEL_FILE
            and s.tokenizer_model is None
            and s.tokenizer_metadata is None
        ),
        "--tokenizer-type {tokenizer_type} needs --tokenizer-model",
        "give --tokenizer-model",
        TOKENIZERS,
    ),
    Rule(
        "tokenizer.pattern",
        lambda s: (
            _of_the_command_line(s)
            and s.tokenizer_type == "TikTokenizer"
            and s.tiktoken_pattern not in ("v1", "v2")
        ),
        "--tokenizer-type TikTokenizer needs --tiktoken-pattern v1 or v2",
        "--tiktoken-pattern v2",
        TOKENIZERS,
        until=(0, 17),
    ),
    Rule(
        "tokenizer.vocabulary-files",
        lambda s: (
            _of_the_command_line(s)
            and (
                (s.tokenizer_type == "GPT2BPETokenizer" and None in (s.vocab_file, s.merge_file))
                or (str(s.tokenizer_type).startswith("BertWordPiece") and s.vocab_file is None)
            )
        ),
        "--tokenizer-type {tokenizer_type} (pretrain_gpt.py: GPT2BPETokenizer where none is given) needs --vocab-file "
        "(and --merge-file, for GPT2BPETokenizer)",
        "give them, or another --tokenizer-type",
        TOKENIZERS,
        until=(0, 17),
    ),
    Rule(
        "tokenizer.vocabulary-size",
        lambda s: _of_the_command_line(s) and s.tokenizer_type in _OF_NOTHING and _lacks_vocabulary_size(s),
        "--tokenizer-type {tokenizer_type} needs --vocab-size, of 1 or more",
        "give --vocab-size",
        TOKENIZERS,
    ),
    Rule(
        "tokenizer.old-only",
        lambda s: (
            _of_the_command_line(s)
            and s.tokenizer_type in _OLD_ONLY
            and not s.legacy_tokenizer
            and s.tokenizer_metadata is None
        ),
        "the data sets of {tokenizer_type} need --legacy-tokenizer: Tokenizer path must be specified",
        "add --legacy-tokenizer, or another --tokenizer-type",
        "pretrain_gpt.py core_gpt_dataset_config_from_args",
        since=(0, 16),
        until=(0, 17),
    ),
    Rule(
        "tokenizer.of-pictures",
        # it has no unique_identifiers, by which a data set describes itself
        lambda s: _of_the_command_line(s) and s.tokenizer_type in _OF_PICTURES,
        "the data sets of pretrain_gpt.py do not take {tokenizer_type}",
        "--tokenizer-type NullTokenizer, or another one of text",
        "megatron/core/datasets/megatron_dataset.py MegatronDataset",
        since=(0, 17),
    ),
)

LOGGING: Topic = (
    Rule(
        "wandb.name",
        lambda s: s.wandb_project and s.wandb_exp_name == "",
        "--wandb-project needs --wandb-exp-name to be more than an empty text",
        "give --wandb-exp-name",
        WANDB,
    ),
    Rule(
        "wandb.directory",
        lambda s: s.wandb_project and not s.wandb_save_dir and s.save is None,
        "--wandb-project without --save needs --wandb-save-dir",
        "give --wandb-save-dir",
        WANDB,
    ),
)

DATA: Topic = (
    Rule(
        "data.missing",
        _has_no_data,
        "no data set is given, neither --data-path nor --mock-data",
        "--data-path PREFIX, or --mock-data for numbers that mean nothing",
        "pretrain_gpt.py train_valid_test_datasets_provider",
        since=(0, 16),
    ),
    *(
        Rule(
            f"data.{name.replace('_', '-')}-blend",
            lambda s, name=name: blend_problem(vars(s)[name]) is not None,  # type: ignore[misc]
            f"--{name.replace('_', '-')}: weights and data sets do not alternate in {{{name}}}",
            HINT,
            "megatron/core/datasets/utils.py get_blend_from_list",
        )
        for name in BLENDS
    ),
    *(
        Rule(
            f"data.{name.replace('_', '-')}-shares",
            lambda s, name=name: share_problem(vars(s)[name]) is not None,  # type: ignore[misc]
            f"--{name.replace('_', '-')} {{{name}}} names no data set, or one without a share above zero",
            SHARES_HINT,
            "megatron/core/datasets/utils.py get_blend_from_list, megatron/core/datasets/blended_dataset.py",
        )
        for name in BLENDS
    ),
)

MODEL: Topic = (
    Rule(
        "model.positive-sizes",
        # layers without an MLP, --ffn-hidden-size 0, are built
        lambda s: any(vars(s)[name] <= 0 for name in _SIZES) or s.ffn_hidden_size < 0,
        "--hidden-size {hidden_size}, --num-attention-heads {num_attention_heads}, --kv-channels {kv_channels} and "
        "--seq-length {seq_length} must be positive, and --ffn-hidden-size {ffn_hidden_size} 0 or more",
        "1 or more",
        LINEAR,
        final=True,
    ),
    Rule(
        "model.layer-pattern",
        _lacks_layers_of_pattern,
        "--moe-layer-freq {moe_layer_freq} must be a number other than 0, or a list of 0 and 1 with an item for each of"
        " --num-layers {num_layers}",
        lambda s: f"--moe-layer-freq [0]*1+[1]*{s.num_layers - 1}, or a number",
        "megatron/core/models/gpt/gpt_layer_specs.py get_gpt_decoder_layer_specs",
        since=(0, 16),
        final=True,
    ),
    Rule(
        "model.mlp-and-tensors",
        lambda s: is_gpt(s) and has_dense_layers(s) and s.ffn_hidden_size % s.tensor_model_parallel_size != 0,
        "--ffn-hidden-size {ffn_hidden_size} is not a multiple of --tensor-model-parallel-size "
        "{tensor_model_parallel_size}",
        lambda s: f"--ffn-hidden-size {multiples(s.ffn_hidden_size, s.tensor_model_parallel_size)}",
        LINEAR,
    ),
    Rule(
        "model.experts-and-tensors",
        lambda s: (
            is_gpt(s)
            and has_expert_layers(s)
            and s.expert_tensor_parallel_size  # 0 has ended the job before
            and s.moe_ffn_hidden_size % s.expert_tensor_parallel_size != 0
        ),
        "--moe-ffn-hidden-size {moe_ffn_hidden_size} is not a multiple of --expert-tensor-parallel-size "
        "{expert_tensor_parallel_size}",
        lambda s: (
            f"--moe-ffn-hidden-size {multiples(s.moe_ffn_hidden_size, s.expert_tensor_parallel_size)}, or "
            f"--expert-tensor-parallel-size {divisors(s.moe_ffn_hidden_size, s.expert_tensor_parallel_size)}"
        ),
        LINEAR,
    ),
    Rule(
        "model.probabilities-on-input",
        lambda s: (
            is_gpt(s) and has_expert_layers(s) and s.moe_apply_probs_on_input and s.moe_router_topk != 1
        ),
        "--moe-apply-probs-on-input works with --moe-router-topk 1 only, not {moe_router_topk}",
        "--moe-router-topk 1, or drop --moe-apply-probs-on-input",
        "megatron/core/transformer/moe/experts.py",
        since=(0, 16),
    ),
    Rule(
        "model.shared-experts-and-tensors",
        lambda s: (
            is_gpt(s)
            and has_expert_layers(s)
            and (s.moe_shared_expert_intermediate_size or 0) % s.tensor_model_parallel_size != 0
        ),
        "--moe-shared-expert-intermediate-size {moe_shared_expert_intermediate_size} is not a multiple of "
        "--tensor-model-parallel-size {tensor_model_parallel_size}",
        lambda s: (
            "--moe-shared-expert-intermediate-size "
            + multiples(s.moe_shared_expert_intermediate_size, s.tensor_model_parallel_size)
        ),
        LINEAR,
    ),
    Rule(
        "model.shared-experts-and-bias",
        lambda s: (
            is_gpt(s)
            and has_expert_layers(s)
            and s.moe_shared_expert_intermediate_size is not None
            and s.add_bias_linear
        ),
        "--moe-shared-expert-intermediate-size {moe_shared_expert_intermediate_size} needs --disable-bias-linear: "
        "shared experts have no bias",
        "add --disable-bias-linear",
        "megatron/core/transformer/moe/shared_experts.py SharedExpertMLP",
    ),
    Rule(
        "model.local-context",
        lambda s: is_local(s) and s.context_parallel_size > 1,
        "--transformer-impl local has no context parallelism",
        "--transformer-impl transformer_engine, or --context-parallel-size 1",
        ATTENTION,
    ),
    *local_layers.MODEL,
)

FIRST_ITERATION: Topic = (
    Rule(
        "iteration.evaluation-interval",
        # from 0.16 on it has no default, and the number of validation samples is computed with it
        lambda s: not s.eval_interval and not s.skip_train and not s.full_validation,
        "--eval-interval must be given and positive, not {eval_interval}: the number of validation samples is "
        "computed with it, even with --eval-iters 0",
        "--eval-interval 1000; with --eval-iters 0 for no validation",
        "megatron/training/training.py get_train_valid_test_num_samples",
    ),
    Rule(
        "iteration.full-validation",
        # a number is read as a list: "'int' object is not subscriptable" at the first validation
        lambda s: s.full_validation and not s.multiple_validation_sets and not s.skip_train,
        "--full-validation ends at the first validation without --multiple-validation-sets",
        "--eval-iters N instead of --full-validation",
        "megatron/training/training.py evaluate_and_print_results",
        since=(0, 14),
    ),
    Rule(
        "iteration.several-validation-sets",
        lambda s: s.multiple_validation_sets and not s.full_validation and not s.skip_train,
        "--multiple-validation-sets needs --full-validation: NotImplementedError where the data is loaded",
        "drop --multiple-validation-sets",
        "megatron/training/training.py build_train_valid_test_data_loaders",
        since=(0, 16),
        until=(0, 17),
    ),
    Rule(
        "iteration.test-of-several-validation-sets",
        # one iterator is read as a list of them: "object of type 'RerunDataIterator' has no len()"
        lambda s: s.full_validation and s.multiple_validation_sets and has_test_data(s),
        "--multiple-validation-sets with --full-validation ends before the evaluation of the test set, of "
        "--test-data-path or the third share of --split",
        "drop --test-data-path, or write --split 99,1,0 with --data-path; or --eval-iters N instead of both flags",
        "megatron/training/training.py evaluate_and_print_results",
        since=(0, 14),
    ),
    Rule(
        "iteration.validation-data",
        # the missing set counts as one, at the latest after the last iteration
        lambda s: (
            bool(s.eval_iters)
            and not s.full_validation
            and not s.perform_rl_step
            and not s.has_other_arguments
            and lacks_validation_data(s)
        ),
        "--eval-iters {eval_iters} validates without a validation set, which needs --valid-data-path, or a second share"
        " of --split",
        "--eval-iters 0, or give a validation set: --valid-data-path PREFIX, or --split 99,1,0",
        "megatron/training/training.py build_train_valid_test_data_loaders",
        since=(0, 14),
    ),
    Rule(
        "iteration.asynchronous-save",
        # every job with --save saves after its last iteration, at the latest
        _saves_asynchronously,
        "--async-save ends the job when it saves its first checkpoint, in --ckpt-format {ckpt_format}",
        "--ckpt-format torch_dist with --use-persistent-ckpt-worker, or drop --async-save",
        "megatron/training/checkpointing.py save_checkpoint",
    ),
    Rule(
        "iteration.padded-vocabulary",
        # with tensor parallelism the embedding masks such tokens
        lambda s: (
            s.mock_data
            and s.tokenizer_type == "NullTokenizer"
            and _of_the_command_line(s)
            and trains(s)
            and is_gpt(s)
            and not s.sft
            and not s.perform_rl_step
            and s.tensor_model_parallel_size == 1
            and _embeds_unknown_token(s)
        ),
        "--padded-vocab-size {padded_vocab_size} is not more than --vocab-size {vocab_size}, the number of the "
        "tokenizer's last token: the embedding lacks tokens of the data",
        lambda s: f"--padded-vocab-size {s.vocab_size + 1} or more, or drop it",
        "megatron/core/tensor_parallel/layers.py VocabParallelEmbedding.forward",
        since=(0, 16),
        until=(0, 18),
    ),
    Rule(
        "iteration.sequence-and-tensors",
        lambda s: (
            is_gpt(s) and s.sequence_parallel and _sequence_of_a_gpu(s) % s.tensor_model_parallel_size != 0
        ),
        "--sequence-parallel splits --seq-length {seq_length} / --context-parallel-size {context_parallel_size} over "
        "--tensor-model-parallel-size {tensor_model_parallel_size}, which does not divide it",
        lambda s: f"--seq-length {multiples(s.seq_length, _sequence_unit(s))}",
        SCATTER,
    ),
    Rule(
        "iteration.experts-without-sequence-parallel",
        lambda s: (
            is_gpt(s)
            and has_expert_layers(s)
            and s.tensor_model_parallel_size > 1
            and not s.sequence_parallel
        ),
        "experts with tensor parallelism train with --sequence-parallel only",
        "add --sequence-parallel",
        MOE,
    ),
    Rule(
        "iteration.experts-chosen",
        lambda s: (
            s.num_experts is not None
            and (has_expert_layers(s) or not is_gpt(s))
            and s.moe_router_topk > s.num_experts
        ),
        "--moe-router-topk {moe_router_topk} chooses more experts than --num-experts {num_experts}",
        "--moe-router-topk {num_experts} or less",
        "megatron/core/transformer/moe/moe_utils.py topk_routing_with_score_function",
    ),
    Rule(
        "iteration.fused-swiglu-without-an-mlp",
        lambda s: s.ffn_hidden_size == 0 and _fuses_activation(s, "silu"),
        "--swiglu does not fuse its bias with --ffn-hidden-size 0",
        "add --no-bias-swiglu-fusion, or drop --swiglu",
        "megatron/core/fusions/fused_bias_swiglu.py bias_swiglu_impl",
        since=(0, 16),
    ),
    Rule(
        "iteration.fused-quick-geglu",
        lambda s: _fuses_activation(s, "quick_gelu"),
        "--quick-geglu fuses its bias in layers of experts only",
        "add --no-bias-gelu-fusion",
        MLP,
        since=(0, 16),
    ),
    Derive(_count_microbatches),
    Rule(
        "iteration.interleaving",
        lambda s: (
            s.virtual_pipeline_model_parallel_size is not None and is_constant(s) and _does_not_interleave(s)
        ),
        "virtual pipeline stages take groups of --microbatch-group-size-per-virtual-pipeline-stage (default: the "
        "pipeline stages, {pipeline_model_parallel_size}) microbatches, and {num_microbatches} cannot be so divided",
        lambda s: (
            "--global-batch-size "
            + multiples(s.global_batch_size, samples_at_once(s) * s.pipeline_model_parallel_size)
        ),
        INTERLEAVED,
    ),
    *local_layers.FIRST_ITERATION,
    *OPTIMIZER_SCHEDULE,
)
