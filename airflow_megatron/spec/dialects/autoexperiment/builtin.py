"""AutoExperiment files run with this project's own scripts (``template: builtin``).

The keys of the open-sci scaling files (``NUM_LAYERS``, ``LR``, ``LR_WSD_DECAY_ITERS``, …) become Megatron arguments,
together with what their container script sets for every run (SLAMPAI/megatron-autoexp,
``train_container_simple.sbatch``, revision 86502d0). A branch that has ``ITER`` starts when exactly that checkpoint is
complete. Conversion and evaluation work on each checkpoint of their branch as it comes, as that repository's
``convert_eval_checkpoint.sbatch`` does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.documents.yaml_document import value_at
from airflow_megatron.spec.expressions.resolution import ExpressionError
from airflow_megatron.spec.foreign.foreign_sweep import RELEASE, TRAINER
from airflow_megatron.spec.layout.run_layout import SweepLayout
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.spec.model.jobs import Dependency, Job
from airflow_megatron.spec.model.resources import JobResources
from airflow_megatron.spec.model.schema import EachCheckpointSection
from airflow_megatron.spec.model.stage_tree import StageInstance
from airflow_megatron.spec.native.conditions import ConditionScope, each_checkpoint_conditions
from airflow_megatron.spec.native.jobs import each_checkpoint_paths
from airflow_megatron.spec.trust.plain_text import shown_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.spec.dialects.autoexperiment.points import Outline, StageOutline
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.schema import StageKindName
    from airflow_megatron.spec.model.sweep import Point

_ARGUMENTS: Mapping[str, str] = {
    "NUM_LAYERS": "num_layers",
    "HIDDEN_SIZE": "hidden_size",
    "NUM_ATTN_HEADS": "num_attention_heads",
    "FFN_HIDDEN_SIZE": "ffn_hidden_size",
    "SEQ_LENGTH": "seq_length",
    "MAX_POSITION_EMBEDDINGS": "max_position_embeddings",
    "MICRO_BATCH_SIZE": "micro_batch_size",
    "GLOBAL_BATCH_SIZE": "global_batch_size",
    "LR": "lr",
    "MIN_LR": "min_lr",
    "WD": "weight_decay",
    "BETA1": "adam_beta1",
    "BETA2": "adam_beta2",
    "CLIP_GRAD": "clip_grad",
    "TRAIN_ITERS": "train_iters",
    "LR_WARMUP_ITERS": "lr_warmup_iters",
    "LR_DECAY_ITERS": "lr_decay_iters",
    "LR_DECAY_STYLE": "lr_decay_style",
    "LR_WSD_DECAY_STYLE": "lr_wsd_decay_style",
    "LR_WSD_DECAY_ITERS": "lr_wsd_decay_iters",
    "TP": "tensor_model_parallel_size",
    "PP": "pipeline_model_parallel_size",
    "SAVE_INTERVAL": "save_interval",
    "LOG_INTERVAL": "log_interval",
    "EVAL_ITERS": "eval_iters",
    "TOKENIZER_TYPE": "tokenizer_type",
    "TOKENIZER_MODEL": "tokenizer_model",
    "DATA_NUM_WORKERS": "num_workers",
}
ARGUMENT_KEYS = (
    *_ARGUMENTS,
    "DATA_PATH",
    "TOKENIZER_NAME",
    "TASKS_PATH",
    "NODES",
    "NUM_GPUS",
    "TIME",
    "ITER",
    "PARTITION",
    "ACCOUNT",
    "DISABLE_BIAS_LINEAR",
    "CD_SCALE",
    "MODEL_TYPE",
    "ARCHITECTURE",
)
"""The keys of a file whose values reach a job."""
KEYS_OF: Mapping[str, str] = {
    **{argument: key for key, argument in _ARGUMENTS.items()},
    **{"data_path": "DATA_PATH", "disable_bias_linear": "DISABLE_BIAS_LINEAR", "nodes": "NODES"},
    **{"gpus_per_node": "NUM_GPUS", "time": "TIME", "partition": "PARTITION", "account": "ACCOUNT"},
    **{"checkpoint": "ITER", "tokenizer": "TOKENIZER_NAME", "tasks": "TASKS_PATH"},
}
"""Argument, resource or setting of a stage → the key that gives it."""
_NO_BIAS = "--disable-bias-linear"
_CLASS_NAME = re.compile(r"(\w+?)(?:ForCausalLM|LMHeadModel)\Z")
_CONVERT_HELPER = re.compile(r"\bconvert_helper\.sh\s+\S+\s+\S+\s+([0-9]+)\b")
_WHOLE = re.compile(r"[-+]?[0-9]{1,4000}(?:\.0+)?\Z")  # Python reads and prints at most 4,300 digits
_LARGEST_COUNT = 10**8
_CONVERTS = re.compile(r"convert|eval", re.IGNORECASE)
_EVALUATES = re.compile(r"eval", re.IGNORECASE)
_EVALUATE = "evaluate"


def _script_arguments() -> dict[str, Any]:
    return {
        "bf16": True,
        "qk_layernorm": True,
        "position_embedding_type": "rope",
        "rotary_base": 100_000,
        "normalization": "RMSNorm",
        "swiglu": True,
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "override_opt_param_scheduler": True,
        "split": "989,10,1",
    }


def builtin_tree(outline: Outline) -> tuple[StageInstance, ...]:
    """Return the stages: training branches, their conversions, and the evaluations of the converted models."""
    tree: list[StageInstance] = []
    for stage in outline.stages:
        kind = _kind(stage)
        waits = kind == "train" and stage.waits and stage.parent
        tree.append(
            StageInstance(
                stage.name,
                stage.name,
                kind,
                "point",
                stage.parent or (stage.head if kind != "train" and stage.head != stage.name else None),
                stage.head,
                waits="checkpoint" if waits else "parent",
            )
        )
        if kind == "convert" and _EVALUATES.search(stage.key[-1][1]):
            name = f"{stage.name}.{_EVALUATE}"
            tree.append(StageInstance(name, stage.name, "evaluate", "point", stage.name, stage.head))
    return tuple(tree)


def _kind(stage: StageOutline) -> StageKindName:
    return (
        "convert"
        if stage.key and stage.head != stage.name and _CONVERTS.search(stage.key[-1][1])
        else "train"
    )


def builtin_jobs(
    params: Mapping[str, Mapping[str, Any]],
    outline: Outline,
    tree: Sequence[StageInstance],
    *,
    sweep: str,
    point: Point,
    cluster: ClusterProfile,
    document: YamlDocument,
) -> list[Job]:
    """Return the Megatron jobs of one point, parents first.

    :param params: the file's values by stage
    :raises SpecError: if a branch starts from an iteration that does not exist
    """
    point_dir = SweepLayout.of(cluster.run_root, sweep).point(point.name).run_dir
    heads = {stage.name: stage.head for stage in outline.stages}
    main = outline.stages[0].head
    made: dict[str, Job] = {}
    for instance in tree:
        own = params.get(instance.stage)
        if own is None:
            continue
        parent = made.get(instance.parent or "")
        head = heads[instance.stage]
        run_dir = point_dir if head == main else f"{point_dir}/{_branch_folder(params.get(head, own), head)}"
        name = str(own["name"]) + (f".{_EVALUATE}" if instance.kind == "evaluate" else "")
        iteration = (
            _start_iteration(own, instance, document) if instance.kind == "train" else _last_iteration(own)
        )
        arguments = _arguments(own, instance, document) if instance.kind == "train" else _tool_params(own)
        checkpoint = instance.waits == "checkpoint" and parent is not None
        job = Job(
            name=name,
            sweep=sweep,
            point=point.name,
            stage=instance.name,
            kind=instance.kind,
            cluster=cluster.name,
            trainer=TRAINER,
            release=RELEASE,
            branch=instance.branch,
            params={**own, **arguments},
            explicit_arguments=tuple(arguments) if instance.kind == "train" else (),
            variables=tuple(own),
            swept=tuple(key for key in point.swept if key in own),
            depends_on=_dependencies(parent, iteration if checkpoint else None),
            run_dir=run_dir,
            parent_dir=parent.run_dir if parent else None,
            iteration=iteration,
            slurm=_slurm(own, instance.kind, document),
            start=Condition(
                "checkpoint", path=parent.checkpoint_dir, iteration=iteration, producer=parent.stage_dir
            )
            if checkpoint and parent
            else None,
        )
        if instance.kind != "train" and parent is not None:
            try:
                job = _at_each_checkpoint(job, parent, own)
            except ExpressionError as error:
                raise SpecError(_placed(error, parent, document)) from error
        made[instance.name] = job
    return list(made.values())


def _at_each_checkpoint(job: Job, parent: Job, params: Mapping[str, Any]) -> Job:
    """Return a conversion or evaluation of each checkpoint, which runs during its training.

    The third argument of upstream's ``convert_helper.sh`` is the first iteration that it converts.
    """
    first = _CONVERT_HELPER.search(str(params.get("start_condition_cmd") or ""))
    section = EachCheckpointSection(from_iteration=int(first[1]) if first else 0)
    scope = ConditionScope({}, job.run_dir, job, lambda _: [])
    start, finish = each_checkpoint_conditions(section, *each_checkpoint_paths(job), parent, scope)
    return msgspec.structs.replace(job, start=start, finish=finish, start_every_attempt=True)


def _placed(error: ExpressionError, job: Job, document: YamlDocument) -> Problem:
    """Return a wrong argument of a job as a problem at the key that gives it."""
    key = KEYS_OF.get(error.parameter, error.parameter)
    message = str(error).replace(error.parameter, key, 1) if key else str(error)
    return document.problem(_place(key, job.params, document), f"{job.name}: {message}")


def _place(key: str, params: Mapping[str, Any], document: YamlDocument) -> KeyPath:
    """Return the place of a job's value: the last one of this key with that value, or else of this key."""
    value = params.get(key)
    places = [
        path
        for path in document.positions
        if path and path[-1] == key and _is_given(value_at(document.data, path), value)
    ]
    return places[-1] if places else document.last_place(key)


def _is_given(node: Any, value: Any) -> bool:
    return bool(node == value) or (isinstance(node, list) and value in node)


def _branch_folder(params: Mapping[str, Any], head: str) -> str:
    scale = params.get("CD_SCALE")
    return f"cooldown_s{scale}" if scale and re.fullmatch(r"[A-Za-z0-9._-]+", str(scale)) else head


def _dependencies(parent: Job | None, iteration: int | None) -> tuple[Dependency, ...]:
    if parent is None:
        return ()
    if iteration is None:
        return (Dependency(parent.name, parent.stage),)
    return (Dependency(parent.name, parent.stage, "checkpoint", iteration),)


def _start_iteration(
    params: Mapping[str, Any], instance: StageInstance, document: YamlDocument
) -> int | None:
    """Return the checkpoint that a branch starts from; None for a branch without one.

    :raises SpecError: if it is not an iteration from 1
    """
    if instance.waits != "checkpoint":
        return None
    value = _typed(params.get("ITER"))
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise SpecError(
        document.problem(
            _place("ITER", params, document),
            f"{params['name']} starts from checkpoint {value!r}, which does not exist",
            "choose a smaller SAVE_INTERVAL or leave this budget out",
        )
    )


def _last_iteration(params: Mapping[str, Any]) -> int | None:
    value = _typed(params.get("TRAIN_ITERS"))
    return value if isinstance(value, int) else None


def _typed(value: Any) -> Any:
    """Return an integer; the file's substitution may have made it text or a float."""
    if isinstance(value, str) and _WHOLE.match(value):
        return int(value.partition(".")[0])
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _arguments(params: Mapping[str, Any], instance: StageInstance, document: YamlDocument) -> dict[str, Any]:
    arguments = _script_arguments()
    for key, argument in _ARGUMENTS.items():
        if key in params and params[key] != "":
            value = params[key]
            floats = ("lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "clip_grad")
            arguments[argument] = value if argument in floats else _typed(value)
    if "train_iters" in arguments:
        arguments["eval_interval"] = arguments["train_iters"]
    if _without_bias(params, document):
        arguments["disable_bias_linear"] = True
    if "DATA_PATH" in params:
        arguments["data_path"] = str(params["DATA_PATH"]).split()
    if arguments.get("tensor_model_parallel_size", 1) != 1:
        arguments["sequence_parallel"] = True
    if instance.waits == "checkpoint":
        arguments["lr_warmup_iters"] = 0
    return arguments


def _without_bias(params: Mapping[str, Any], document: YamlDocument) -> bool:
    """Return whether DISABLE_BIAS_LINEAR gives the flag, which upstream's script puts into the command as it is.

    :raises SpecError: for another text
    """
    given = params.get("DISABLE_BIAS_LINEAR", "")
    if str(given).strip() not in ("", _NO_BIAS):
        raise SpecError(
            document.problem(
                _place("DISABLE_BIAS_LINEAR", params, document),
                f"DISABLE_BIAS_LINEAR is {given!r}",
                f'write "{_NO_BIAS}", or "" for biases',
            )
        )
    return str(given).strip() == _NO_BIAS


def _tool_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input of conversion and evaluation."""
    given: dict[str, Any] = {
        "tokenizer": params.get("TOKENIZER_NAME") or params.get("TOKENIZER_MODEL"),
        "hf_architecture": _architecture(params),
    }
    tasks = str(params.get("TASKS_PATH") or "").rstrip("/")
    if tasks:
        given |= {"tasks_dir": tasks, "tasks": tasks.rsplit("/", 1)[-1]}
    return {key: value for key, value in given.items() if value}


def _architecture(params: Mapping[str, Any]) -> str | None:
    """Return the converter's name of MODEL_TYPE, or of the class ARCHITECTURE (``LlamaForCausalLM``: ``llama``)."""
    name = str(params.get("MODEL_TYPE") or "")
    if not name:
        found = _CLASS_NAME.match(str(params.get("ARCHITECTURE") or ""))
        name = re.sub(r"(?<=\w)Moe\Z", "_moe", found[1]) if found else ""
    return name.lower() or None


def _slurm(params: Mapping[str, Any], kind: StageKindName, document: YamlDocument) -> JobResources:
    """Return the resources: NODES and NUM_GPUS for training, one GPU for the rest; TIME is minutes, as for sbatch."""
    nodes, gpus, minutes = (
        _number(params, key, default, document)
        for key, default in (("NODES", 1), ("NUM_GPUS", 0), ("TIME", 0))
    )
    train = kind == "train"
    if train and gpus and gpus % nodes:
        raise SpecError(
            document.problem(
                _place("NUM_GPUS", params, document),
                f"NUM_GPUS is {gpus}, which {nodes} NODES do not divide",
                "NUM_GPUS counts the GPUs of all nodes",
            )
        )
    return JobResources(
        nodes=nodes if train else 1,
        gpus_per_node=max(1, gpus // nodes) if train else 1,
        time=minutes * 60 or None,
        partition=_word(params, "PARTITION", document),
        account=_word(params, "ACCOUNT", document),
    )


def _number(params: Mapping[str, Any], key: str, default: int, document: YamlDocument) -> int:
    """Return a number of nodes, GPUs or minutes; a given one is from 1 on.

    :raises SpecError: if it is no such number
    """
    value = _typed(params.get(key, default))
    least = 1 if key in params else 0
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST_COUNT:
        hint = "TIME is minutes" if key == "TIME" else ""
        message = f"{key} is {shown_value(params[key])}, not a whole number from 1 to {_LARGEST_COUNT}"
        raise SpecError(document.problem(_place(key, params, document), message, hint))
    return value


def _word(params: Mapping[str, Any], key: str, document: YamlDocument) -> str | None:
    """Return the name of a partition or account; None for an empty one.

    :raises SpecError: if it can be none
    """
    value = str(params.get(key, ""))
    if value and not re.fullmatch(r"[A-Za-z0-9_.,-]+", value):
        message = f"{key} is {value!r}, which cannot be its name"
        raise SpecError(
            document.problem(_place(key, params, document), message, "use letters, digits, '_', '.' and '-'")
        )
    return value or None
