"""Rules of the layers of pipeline stages: even, uneven, virtual, or by a written layout."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.rules.nearest import divisors, multiples
from airflow_megatron.megatron.rules.rule import CONFIG, Derive, Rule

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

LAYOUT: Final = "megatron/core/transformer/pipeline_parallel_layer_layout.py PipelineParallelLayerLayout"
HYBRID: Final = "megatron/core/models/hybrid/hybrid_layer_allocation.py"
_LAYER_SYMBOLS: Final = frozenset("MG*D+-E")
_REPEATED_GROUP = re.compile(r"\(([^)]+)\)\*(\d+)")
_REPEATED_LAYER = re.compile(r"(.)\*(\d+)")
_LONGEST_LAYOUT: Final = 1_000_000


def layout_stages(text: str) -> list[str] | None:
    """Unroll a pipeline layout such as ``Ettt|(tt|)*29,m|L`` into one text per (virtual) stage.

    :returns: the stages' layers (E embedding, t decoder layer, m multi-token prediction, L loss), or None if the text
        is not a layout.
    """
    text = text.replace(",", "")
    for pattern in (_REPEATED_GROUP, _REPEATED_LAYER):
        if sum(len(found[0]) * int(found[1]) for found in pattern.findall(text)) > _LONGEST_LAYOUT:
            return None
        text = pattern.sub(lambda found: found.group(1) * int(found.group(2)), text)
    stages = text.split("|")
    return stages if all(set(stage) <= set("EtmL") for stage in stages) else None


def _layout_is_wrong(s: Settings) -> bool:
    """Upstream's ``validate_layer_layout``."""
    stages = s.pipeline_layout
    flat = "".join(stages)
    predictions = s.mtp_num_layers
    if not flat or flat[0] != "E" or flat[-1] != "L" or flat.count("E") != 1 or flat.count("L") != 1:
        return True
    if flat.count("t") != s.num_layers or flat.count("m") != (predictions or 0):
        return True
    if "m" not in flat:
        return False
    if "t" in flat[flat.index("m") :]:
        return True
    width = s.pipeline_model_parallel_size
    last_round = stages[-width:]
    early = "".join(stages[:-width])
    return "m" in early or any(stage.count("m") not in (0, predictions) for stage in last_round)


def _stated_layers(s: Settings) -> int:
    layers = s.num_layers if s.num_layers is not None else s.decoder_num_layers
    counted: int = layers or 0
    return (
        counted + bool(s.account_for_embedding_in_pipeline_split) + bool(s.account_for_loss_in_pipeline_split)
    )


def _read_layout(s: Settings) -> None:
    s.layers_to_split = _stated_layers(s)
    if s.pipeline_model_parallel_layout is not None:
        s.pipeline_layout = layout_stages(s.pipeline_model_parallel_layout)


def _virtual_stages(s: Settings) -> None:
    size = s.virtual_pipeline_model_parallel_size if s.hybrid_layer_pattern is not None else None
    if s.pipeline_model_parallel_layout is not None:
        size = len(s.pipeline_layout) // s.pipeline_model_parallel_size
    elif s.num_virtual_stages_per_pipeline_rank is not None:
        size = s.num_virtual_stages_per_pipeline_rank
    elif s.num_layers_per_virtual_pipeline_stage is not None:
        size = _layers_per_stage(s) // s.num_layers_per_virtual_pipeline_stage
    s.virtual_pipeline_model_parallel_size = None if size == 1 else size


def _layers_per_stage(s: Settings) -> int:
    per_stage: int = s.layers_to_split // s.pipeline_model_parallel_size
    return per_stage


def _by_layers_per_virtual_stage(s: Settings) -> bool:
    return (
        s.num_layers_per_virtual_pipeline_stage is not None
        and s.num_virtual_stages_per_pipeline_rank is None
        and s.pipeline_model_parallel_layout is None
    )


def _split_evenly(s: Settings) -> bool:
    """Return whether the number of layers must be a multiple of the pipeline stages."""
    return (
        s.pipeline_model_parallel_layout is None
        and s.num_virtual_stages_per_pipeline_rank is None
        and s.num_layers_per_virtual_pipeline_stage is None
        and s.decoder_first_pipeline_num_layers is None
        and s.decoder_last_pipeline_num_layers is None
        and s.num_layers is not None
        and s.hybrid_layer_pattern is None
    )


def _no_overlap_without_interleaving(s: Settings) -> None:
    if s.virtual_pipeline_model_parallel_size is None:
        s.overlap_p2p_comm = False
        s.align_param_gather = False


def _layers_hint(s: Settings) -> str:
    extra = s.layers_to_split - _bare_layers(s)
    layers = [
        int(number) - extra
        for number in multiples(s.layers_to_split, s.pipeline_model_parallel_size).split(" or ")
    ]
    stages = divisors(s.layers_to_split, s.pipeline_model_parallel_size)
    wanted = " or ".join(str(number) for number in layers if number > 0)
    return f"--num-layers {wanted}, or --pipeline-model-parallel-size {stages}"


def _bare_layers(s: Settings) -> int:
    layers: int = s.num_layers if s.num_layers is not None else s.decoder_num_layers or 0
    return layers


def _uneven(s: Settings) -> bool:
    return s.decoder_first_pipeline_num_layers is not None or s.decoder_last_pipeline_num_layers is not None


def _uneven_problem(s: Settings) -> bool:
    """Upstream's checks of the layers left between an uneven first and last stage."""
    stages, layers = s.pipeline_model_parallel_size, s.num_layers
    virtual = s.virtual_pipeline_model_parallel_size
    for at_end in (s.decoder_first_pipeline_num_layers, s.decoder_last_pipeline_num_layers):
        if at_end is None:
            continue
        if at_end <= 0 or _splits_unevenly(at_end, virtual):
            return True
        layers -= at_end
        stages -= 1
    if s.release >= (0, 16) and bool(layers) != bool(stages):
        return True
    if not stages:
        return False
    return layers % stages != 0 or _splits_unevenly(layers // stages, virtual)


def _splits_unevenly(layers: int, virtual_stages: int | None) -> bool:
    """Return whether a stage's layers are not a multiple of its virtual stages; upstream fails at a division by
    zero.
    """
    return virtual_stages is not None and (virtual_stages == 0 or layers % virtual_stages != 0)


def _hybrid_pattern_problem(pattern: str) -> bool:
    main, *predictions = pattern.split("/")
    if any(predictions) and (
        len(set(predictions)) > 1
        or not set(predictions[0]) <= _LAYER_SYMBOLS
        or _mixes_attention(predictions[0])
    ):
        return True
    return not set(main) <= _LAYER_SYMBOLS | {"|"} or _mixes_attention(main)


def _mixes_attention(pattern: str) -> bool:
    return "*" in pattern and ("D" in pattern or "+" in pattern)


def _unify_hybrid_patterns(s: Settings) -> None:
    if s.hybrid_layer_pattern is None:
        s.hybrid_layer_pattern = s.hybrid_override_pattern
    if s.mtp_hybrid_override_pattern is not None and (s.mtp_num_layers or 0) > 0:
        main = s.hybrid_layer_pattern or ""
        if "/" not in main:
            s.hybrid_layer_pattern = "/".join([main, *[s.mtp_hybrid_override_pattern] * s.mtp_num_layers])


def _apply_hybrid_pattern(s: Settings) -> None:
    pattern = s.hybrid_layer_pattern
    if pattern is None:
        return
    main, *predictions = pattern.split("/")
    s.num_layers = len(main.replace("|", ""))
    segments, stages = main.count("|") + 1, s.pipeline_model_parallel_size
    s.virtual_pipeline_model_parallel_size = segments // stages if segments > stages else None
    if any(predictions):
        s.mtp_num_layers = len(predictions)
    if "+" in pattern or "D" in pattern:
        s.multi_latent_attention = True
    if "D" in pattern:
        s.experimental_attention_variant = "dsa"


def _segments_do_not_fit(s: Settings) -> bool:
    segments = s.hybrid_layer_pattern.split("/")[0].count("|") + 1
    stages: int = s.pipeline_model_parallel_size
    return not (segments == 1 and stages > 1) and segments % stages != 0


HYBRID_PATTERN: Topic = (
    Rule(
        "hybrid.two-patterns",
        lambda s: s.hybrid_override_pattern is not None and s.hybrid_layer_pattern is not None,
        "--hybrid-override-pattern and --hybrid-layer-pattern are the same setting",
        "keep --hybrid-layer-pattern",
        since=(0, 17),
        final=True,
    ),
    Derive(_unify_hybrid_patterns, since=(0, 17)),
    Rule(
        "hybrid.pattern",
        lambda s: s.hybrid_layer_pattern is not None and _hybrid_pattern_problem(s.hybrid_layer_pattern),
        "--hybrid-layer-pattern {hybrid_layer_pattern!r} is not a layer pattern",
        "layers are M G * D + - E (no * beside D or +), '|' between pipeline segments, '/' before equal "
        "multi-token prediction patterns",
        HYBRID,
        since=(0, 17),
        final=True,
    ),
    Rule(
        "hybrid.first-and-last-stage",
        lambda s: (
            s.hybrid_layer_pattern is not None and "|" in s.hybrid_layer_pattern.split("/")[0] and _uneven(s)
        ),
        "a --hybrid-layer-pattern with '|' says itself how many layers the first and last stage have",
        "drop --decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers",
        since=(0, 17),
    ),
    Rule(
        "hybrid.other-layouts",
        lambda s: (
            s.hybrid_layer_pattern is not None
            and (
                s.num_layers_per_virtual_pipeline_stage is not None
                or s.num_virtual_stages_per_pipeline_rank is not None
                or s.pipeline_model_parallel_layout is not None
                or s.account_for_embedding_in_pipeline_split
                or s.account_for_loss_in_pipeline_split
            )
        ),
        "--hybrid-layer-pattern excludes the other flags that lay out the pipeline",
        "describe the stages with '|' in the pattern",
        since=(0, 17),
        final=True,
    ),
    Rule(
        "hybrid.segments",
        lambda s: s.hybrid_layer_pattern is not None and _segments_do_not_fit(s),
        "the pipeline segments of --hybrid-layer-pattern {hybrid_layer_pattern!r} are not a multiple of "
        "--pipeline-model-parallel-size {pipeline_model_parallel_size}",
        "as many segments as stages, or a multiple of them",
        since=(0, 17),
        final=True,
    ),
    Derive(_apply_hybrid_pattern, since=(0, 17)),
    Rule(
        "hybrid.mtp-positions",
        lambda s: s.mtp_num_layers and s.position_embedding_type not in ("rope", "none"),
        "multi-token prediction does not work with --position-embedding-type {position_embedding_type}",
        "--position-embedding-type rope or none",
        since=(0, 17),
    ),
)

STAGES: Topic = (
    Derive(_read_layout),
    Rule(
        "pipeline.one-layout",
        lambda s: (
            (s.num_layers_per_virtual_pipeline_stage is not None)
            + (s.num_virtual_stages_per_pipeline_rank is not None)
            + (s.pipeline_model_parallel_layout is not None)
            > 1
        ),
        "--num-layers-per-virtual-pipeline-stage, --num-virtual-stages-per-pipeline-rank and "
        "--pipeline-model-parallel-layout exclude each other",
        "keep one of them",
        final=True,
    ),
    Rule(
        "pipeline.layout-text",
        lambda s: s.pipeline_model_parallel_layout is not None and s.pipeline_layout is None,
        "--pipeline-model-parallel-layout {pipeline_model_parallel_layout!r} is not a layout",
        "layers are E t m L, '|' between stages, (…)*n repeats",
        LAYOUT,
        final=True,
    ),
    Rule(
        "pipeline.layout-stages",
        lambda s: (
            s.pipeline_layout is not None and len(s.pipeline_layout) % s.pipeline_model_parallel_size != 0
        ),
        "--pipeline-model-parallel-layout has a number of stages that is not a multiple of "
        "--pipeline-model-parallel-size {pipeline_model_parallel_size}",
        lambda s: f"{multiples(len(s.pipeline_layout), s.pipeline_model_parallel_size)} stages",
        final=True,
    ),
    Rule(
        "pipeline.uneven-virtual",
        lambda s: _by_layers_per_virtual_stage(s) and _uneven(s),
        "uneven stages need --num-virtual-stages-per-pipeline-rank instead of "
        "--num-layers-per-virtual-pipeline-stage",
        "--num-virtual-stages-per-pipeline-rank",
        final=True,
    ),
    Rule(
        "pipeline.layers-unknown",
        lambda s: _by_layers_per_virtual_stage(s) and s.num_layers is None and s.decoder_num_layers is None,
        "--num-layers must be given with --num-layers-per-virtual-pipeline-stage",
        "give --num-layers",
        final=True,
    ),
    Rule(
        "pipeline.layers",
        lambda s: (
            (_by_layers_per_virtual_stage(s) or _split_evenly(s))
            and s.layers_to_split % s.pipeline_model_parallel_size != 0
        ),
        "{layers_to_split} layers cannot be split over --pipeline-model-parallel-size "
        "{pipeline_model_parallel_size}",
        _layers_hint,
        final=True,
    ),
    Rule(
        "pipeline.layers-per-virtual-stage",
        lambda s: (
            _by_layers_per_virtual_stage(s)
            and (
                s.num_layers_per_virtual_pipeline_stage == 0
                or _layers_per_stage(s) % s.num_layers_per_virtual_pipeline_stage != 0
            )
        ),
        "the layers of a pipeline stage cannot be split into virtual stages of "
        "--num-layers-per-virtual-pipeline-stage {num_layers_per_virtual_pipeline_stage}",
        lambda s: (
            "--num-layers-per-virtual-pipeline-stage "
            + divisors(_layers_per_stage(s), s.num_layers_per_virtual_pipeline_stage)
        ),
        final=True,
    ),
    Derive(_virtual_stages),
    Rule(
        "pipeline.interleaved",
        lambda s: (
            s.virtual_pipeline_model_parallel_size is not None
            and s.overlap_p2p_comm
            and s.pipeline_model_parallel_size <= 1
        ),
        "virtual pipeline stages need pipeline parallelism",
        "--pipeline-model-parallel-size 2 or more, or no virtual stages",
    ),
    Rule(
        "pipeline.interleaved-without-overlap",
        lambda s: (
            s.virtual_pipeline_model_parallel_size is not None
            and not s.overlap_p2p_comm
            and s.pipeline_model_parallel_size <= 2
        ),
        "virtual pipeline stages without overlapping communication need more than 2 pipeline stages",
        "--pipeline-model-parallel-size 3 or more, or drop --no-overlap-p2p-communication",
    ),
    Derive(_no_overlap_without_interleaving),
)

CONFIGURATION: Topic = (
    Rule(
        "pipeline.uneven-and-accounted",
        lambda s: (
            _uneven(s) and (s.account_for_embedding_in_pipeline_split or s.account_for_loss_in_pipeline_split)
        ),
        "uneven first or last stages exclude accounting for embedding and loss in the split",
        "drop one of them",
        CONFIG,
    ),
    Rule(
        "pipeline.layout-and-others",
        lambda s: (
            s.pipeline_layout is not None
            and (
                _uneven(s)
                or s.account_for_embedding_in_pipeline_split
                or s.account_for_loss_in_pipeline_split
            )
        ),
        "--pipeline-model-parallel-layout excludes the other flags that lay out the pipeline",
        "drop the other flags",
        CONFIG,
    ),
    Rule(
        "pipeline.layout-layers",
        lambda s: s.pipeline_layout is not None and _layout_is_wrong(s),
        "--pipeline-model-parallel-layout {pipeline_model_parallel_layout!r} does not hold E first, {num_layers} "
        "t, the multi-token prediction layers together, L last",
        "E once at the start, L once at the end, one t per layer, m in one late stage",
        f"{LAYOUT}.validate_layer_layout",
    ),
    Rule(
        "pipeline.uneven-stages",
        lambda s: s.pipeline_layout is None and _uneven(s) and _uneven_problem(s),
        "the layers of the first ({decoder_first_pipeline_num_layers}) and last "
        "({decoder_last_pipeline_num_layers}) stage leave {num_layers} layers unevenly split over "
        "{pipeline_model_parallel_size} stages",
        "first and last stage so that the layers between them divide by the stages (and virtual stages) between",
        CONFIG,
    ),
    Rule(
        "pipeline.accounted-layers",
        lambda s: (
            s.pipeline_layout is None
            and not _uneven(s)
            and (s.account_for_embedding_in_pipeline_split or s.account_for_loss_in_pipeline_split)
            and (
                _stated_layers(s) % s.pipeline_model_parallel_size != 0
                or _splits_unevenly(_layers_per_stage(s), s.virtual_pipeline_model_parallel_size)
            )
        ),
        "{layers_to_split} layers, embedding and loss counted, cannot be split over the (virtual) stages",
        _layers_hint,
        CONFIG,
    ),
)
