"""Rules of upstream's other training scripts: what they refuse when they build their model or their data sets.

Those of BERT and T5 were observed in core_v0.16.1, and the assertions of the scripts were compared in all releases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.arguments.data_blends import BLENDS
from airflow_megatron.megatron.rules.rule import Rule, RuleBook

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings


def _has_no_sentences(s: Settings) -> bool:
    """Return whether no data set is named; a fork may have other arguments."""
    # the scripts for BERT and T5 read no others, such as --data-args-path
    return all(vars(s)[name] is None for name in BLENDS) and not s.has_other_arguments


def _lacks_layers(s: Settings) -> bool:
    """Return whether neither the command line nor a checkpoint names the layers."""
    return bool(s.spec is None and s.transformer_impl != "inference_optimized" and not s.use_checkpoint_args)


_SENTENCES: Topic = (
    Rule(
        "script.sentences",
        _has_no_sentences,
        "the script needs --data-path (or --train-data-path): it has neither mock data nor --data-args-path",
        "name a data set that preprocess_data.py --split-sentences wrote",
        "megatron/core/datasets/blended_megatron_dataset_builder.py BlendedMegatronDatasetBuilder",
    ),
)
SCRIPTS: Final = {
    "pretrain_bert.py": RuleBook((_SENTENCES,)),
    "pretrain_t5.py": RuleBook(
        (
            (
                Rule(
                    "script.t5-pipeline",
                    lambda s: s.pipeline_model_parallel_size > 1,
                    "T5 has no pipeline parallelism: --pipeline-model-parallel-size is "
                    "{pipeline_model_parallel_size}",
                    "drop it; use --tensor-model-parallel-size",
                    "pretrain_t5.py model_provider",
                    since=(0, 14),
                ),
            ),
            _SENTENCES,
        )
    ),
    "pretrain_mamba.py": RuleBook(
        (
            (
                Rule(
                    "script.mamba-spec",
                    _lacks_layers,
                    "Mamba needs --spec, the specification of its layers",
                    "spec: [megatron.core.models.mamba.mamba_layer_specs, mamba_stack_spec]",
                    "mamba_builders.py mamba_builder",
                    until=(0, 18),
                ),
                Rule(
                    "script.hybrid-spec",
                    _lacks_layers,
                    "Mamba needs --spec, the specification of its layers",
                    "spec: [megatron.core.models.hybrid.hybrid_layer_specs, hybrid_stack_spec]",
                    "hybrid_builders.py hybrid_builder",
                    since=(0, 18),
                ),
            ),
        )
    ),
    "pretrain_vlm.py": RuleBook(
        (
            (
                Rule(
                    "script.vlm-format",
                    lambda s: s.ckpt_format != "torch",
                    "the script needs --ckpt-format torch, not {ckpt_format}",
                    "ckpt_format: torch",
                    "pretrain_vlm.py model_provider",
                ),
                Rule(
                    "script.vlm-pipeline-context",
                    lambda s: s.context_parallel_size > 1 and s.pipeline_model_parallel_size > 1,
                    "the script has no --context-parallel-size ({context_parallel_size}) together with "
                    "--pipeline-model-parallel-size ({pipeline_model_parallel_size})",
                    "use one of them",
                    "pretrain_vlm.py model_provider",
                ),
            ),
        )
    ),
}
"""The rules of each script."""
