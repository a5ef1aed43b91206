"""The ``slurm:`` section of an oellm-autoexp point as resources and sbatch options of this package.

Upstream writes each key of ``slurm.sbatch`` as an option of sbatch (``slurm_gen/generator.py``, c6d0cc0) and starts one
task on each node, which starts the processes; here ``cpus_per_task`` counts the cores of one process.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.dialects.oellm.errors import JobError
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.documents.quantities import counted, parse_duration
from airflow_megatron.spec.model.resources import JobResources
from airflow_megatron.spec.trust.json_records import whole

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from airflow_megatron.spec.foreign.interpolation.configuration import Configuration
    from airflow_megatron.spec.model.schema import SlurmSection, StageKindName

RESOURCES: Final = ("nodes", "gpus_per_node", "cpus_per_task")
MANAGED: Final = {
    **dict.fromkeys(("job_name",), "names"),
    **dict.fromkeys(("output", "error", "chdir"), "directories"),
    **dict.fromkeys(("array",), "arrays"),
    **dict.fromkeys(
        (
            "comment",
            "dependency",
            "open_mode",
            "parsable",
            "requeue",
            "no_requeue",
            "test_only",
            "wait",
            "wrap",
        ),
        "submission",
    ),
}
"""Options of sbatch that this package sets itself → why, a key of :data:`.oellm.keys.REASONS`."""
_TEXT: Final = ("mem", "partition", "account", "qos", "constraint", "reservation", "exclude")
_GRES: Final = re.compile(r"gpu(?::\w*[A-Za-z]\w*)?:([0-9]+)")
_GPUS: Final = re.compile(r"(?:\w*[A-Za-z]\w*:)?([0-9]+)")
_NODE_RANGE: Final = re.compile(r"([0-9]{1,6}):([0-9]{1,6})")
_SIGNAL: Final = re.compile(r"(?:B:)?(?:SIG)?TERM@([0-9]+)\Z")
_OF_TRAININGS: Final = "a training has one process for each GPU"
_OF_PLUGINS: Final = ("container_", "no_container_")  # of pyxis
_VALUE_OPTIONAL: Final = frozenset({"exclusive", "get_user_env", "nice", "no_kill", "propagate"})
"""Options that sbatch takes with a value or without, and with an empty one as without."""
# the long options of sbatch(1), Slurm 20.11 to 24.11
_OPTIONS: Final = frozenset(
    """
    account acctg_freq array batch bb bbf begin chdir cluster_constraint clusters comment constraint container
    container_id contiguous core_spec cores_per_socket cpu_freq cpus_per_gpu cpus_per_task deadline
    debugger_test delay_boot dependency distribution error exclude exclusive export export_file extra
    extra_node_info get_user_env gid gpu_bind gpu_freq gpus gpus_per_node gpus_per_socket gpus_per_task gres
    gres_flags hint hold ignore_pbs input job_name kill_on_invalid_dep licenses mail_type mail_user mcs_label
    mem mem_bind mem_per_cpu mem_per_gpu mincpus network nice no_kill no_requeue nodefile nodelist nodes
    ntasks ntasks_per_core ntasks_per_gpu ntasks_per_node ntasks_per_socket open_mode oom_kill_step output
    overcommit oversubscribe parsable partition power prefer priority profile propagate qos quiet reboot
    requeue reservation segment signal sockets_per_node spread_job spec stepmgr switches test_only thread_spec
    threads_per_core time time_min tmp tres_bind tres_per_task uid use_min_nodes verbose wait wait_all_nodes
    wckey wrap x11
    """.split()  # noqa: SIM905
)


def slurm_section(
    configuration: Configuration, kind: StageKindName, defaults: SlurmSection | None, warnings: list[str]
) -> JobResources:
    """Return the resources and options of one point.

    :param kind: kind of the stage; a training has a process for each GPU
    :param defaults: resources of the cluster profile
    :param warnings: warnings about ignored keys are added to this list
    :raises JobError: for a value or an option that Slurm does not have
    """
    section = configuration.section("slurm.sbatch")
    if not isinstance(section, dict):
        raise JobError("slurm.sbatch takes keys with values", "slurm.sbatch")
    sbatch = {str(key).lstrip("-").replace("-", "_"): value for key, value in section.items()}
    _check_names(sbatch)
    sbatch |= dict.fromkeys((key for key in _VALUE_OPTIONAL if sbatch.get(key) == ""), True)
    _ask_for_gpus_of_nodes(sbatch)
    data: dict[str, Any] = {}
    for key in RESOURCES:
        if sbatch.get(key) is not None:
            data[key] = _whole(sbatch[key], f"slurm.sbatch.{key}", least=0 if key == "gpus_per_node" else 1)
    _count_gpus(data, sbatch, warnings)
    if kind == "train":
        _share_cores(data, sbatch, warnings)
        warnings.extend(_spare_nodes(data.get("nodes") or 1, configuration))
    else:
        for key, usual in (("ntasks_per_node", 1), ("ntasks", data.get("nodes") or 1)):
            _tasks(sbatch, key, (usual,), warnings, "the job has one task on each node")
    if sbatch.get("time") not in (None, ""):
        data["time"] = _seconds(sbatch["time"])
    for key in _TEXT:
        if sbatch.get(key) not in (None, ""):
            data[key] = str(sbatch[key])
    signal = _SIGNAL.match(str(sbatch.get("signal") or ""))
    if signal:
        data["signal_before"] = _whole(signal[1], "slurm.sbatch.signal")
    elif sbatch.get("signal"):
        warnings.append(
            f"slurm.sbatch.signal: {sbatch['signal']}: ignored; jobs are stopped with TERM, written as TERM@120"
        )
    options = _options(sbatch, configuration)
    given = defaults.model_dump(exclude_none=True, exclude_unset=True) if defaults else {}
    options = [*given.pop("options", []), *options]
    if options:
        data["options"] = options
    return JobResources.model_validate({**given, **data})


def _spare_nodes(nodes: int, configuration: Configuration) -> Iterator[str]:
    """Yield a warning about nodes that upstream's launcher keeps in reserve, because all nodes of a job train here.

    ``nnodes`` is the least and the greatest number of nodes that train. torchrun uses as many as there are; ft_launcher
    uses the least, and replaces one that fails.
    """
    key = "backend.torchrun_args.nnodes"
    numbers = _NODE_RANGE.fullmatch(str(configuration.get(key) or ""))
    if numbers is None:
        return
    launcher = str(configuration.raw("backend.dist_cmd") or "").strip()
    active = int(numbers[1] if launcher.startswith("ft_launcher") else numbers[2])
    if 0 < active < nodes:
        yield (
            f"{key}: {numbers[0]}: upstream trains on {counted(active, 'node')} and keeps {nodes - active} in reserve; "
            f"here all {nodes} train. Write slurm.sbatch.nodes: {active}: when a node fails, the job is started again "
            "on others"
        )


def _ask_for_gpus_of_nodes(sbatch: dict[str, Any]) -> None:
    """Replace GPUs by task, and GPUs of a type, by a number of each node, and ``gres`` where a type is named.

    A job of this package has one task on each node, which starts the processes of all its GPUs.

    :raises JobError: for text that is no number of GPUs
    """
    found: dict[str, tuple[str, int]] = {}
    for key, tasks in (("gpus_per_node", 1), ("gpus_per_task", _tasks_of_a_node(sbatch))):
        text = str(sbatch.get(key) or "")
        typed = _GPUS.fullmatch(text)
        if text and typed is None and (key == "gpus_per_task" or ":" in text):
            raise JobError(f"slurm.sbatch.{key} is {_short(text)}", f"slurm.sbatch.{key}", f"write {key}: 4")
        if typed is not None:
            kind = text.rpartition(":")[0]
            found[key] = kind, _whole(typed[1], f"slurm.sbatch.{key}") * tasks
    if len({count for _, count in found.values()}) > 1:
        key = "slurm.sbatch.gpus_per_task"
        raise JobError(f"{key} and gpus_per_node give different numbers of GPUs", key, "keep one of them")
    for key, (kind, count) in found.items():
        del sbatch[key]
        sbatch["gpus_per_node"] = count
        if kind and not sbatch.get("gres"):
            sbatch["gres"] = f"gpu:{kind}:{count}"


def _tasks_of_a_node(sbatch: Mapping[str, Any]) -> int:
    of_node, of_job = whole(sbatch.get("ntasks_per_node")), whole(sbatch.get("ntasks"))
    return of_node or (of_job or 1) // (whole(sbatch.get("nodes")) or 1) or 1


def _count_gpus(data: dict[str, Any], sbatch: dict[str, Any], warnings: list[str]) -> None:
    """Set the GPUs of a node from ``gres`` or ``gpus``, where ``gpus_per_node`` is not given.

    Of ``gres`` and ``gpus_per_node`` sbatch follows ``gres``; ``gpus_per_node`` is the number of processes, which may
    be smaller where a site allocates whole nodes. ``exclusive`` allocates all GPUs of the nodes, whatever ``gres`` asks
    for (sbatch(1)). sbatch refuses ``gpus`` that contradicts them.

    :raises JobError: if these options contradict each other, or the nodes cannot have equally many GPUs
    """
    nodes = data.get("nodes") or 1
    counts = {"gpus_per_node": data["gpus_per_node"]} if "gpus_per_node" in data else {}
    gres = _GRES.search(str(sbatch.get("gres") or ""))
    if gres:
        counts["gres"] = _whole(gres[1], "slurm.sbatch.gres")
    gpus = _GPUS.fullmatch(str(sbatch.get("gpus") or ""))
    if gpus:
        counts["gpus"], left = divmod(_whole(gpus[1], "slurm.sbatch.gpus"), nodes)
        if left:
            key = "slurm.sbatch.gpus"
            raise JobError(
                f"{key}: {counted(int(gpus[1]), 'GPU')} for {counted(nodes, 'node')}",
                key,
                "write gpus_per_node",
            )
    each = ", ".join(f"{key}: {sbatch[key]}" for key in counts)
    if "gpus_per_node" in counts and counts["gpus_per_node"] < counts.get("gres", 0):
        processes, allocated = counts["gpus_per_node"], counts.pop("gres")
        warnings.append(
            f"slurm.sbatch: {each}: a node has {allocated} GPUs, and the job uses {processes} of them"
        )
    if (
        sbatch.get("exclusive") is True
        and _GRES.fullmatch(str(sbatch.get("gres") or ""))
        and counts.get("gres", math.inf) < counts.get("gpus_per_node", 0)
    ):
        warnings.append(
            f"slurm.sbatch.gres: {sbatch['gres']}: exclusive allocates all GPUs of the nodes, and the job uses "
            f"{counts['gpus_per_node']} of each"
        )
        del sbatch["gres"], counts["gres"]
    if len(set(counts.values())) > 1:
        raise JobError(
            f"slurm.sbatch asks for different numbers of GPUs ({each})",
            f"slurm.sbatch.{next(iter(counts))}",
            "keep one of them",
        )
    if counts:
        data["gpus_per_node"] = next(iter(counts.values()))


def _check_names(sbatch: Mapping[str, Any]) -> None:
    for name, value in sbatch.items():
        if isinstance(value, list | dict):
            words = [str(word) for word in value] if isinstance(value, list) else []
            message = f"slurm.sbatch.{name} is {_short(value)}, not a text or a number"
            raise JobError(message, f"slurm.sbatch.{name}", f"write {name}: {','.join(words) or '…'}")
        known = name in _OPTIONS or name.startswith(_OF_PLUGINS)
        near = "" if known else did_you_mean(name, _OPTIONS, limit=1, alike=0.8)
        if near:  # what is like none of them may be a site's own
            raise JobError(f"sbatch has no option --{name.replace('_', '-')}", f"slurm.sbatch.{name}", near)


def _share_cores(data: dict[str, Any], sbatch: Mapping[str, Any], warnings: list[str]) -> None:
    """Divide the cores of the one task of a node among its processes."""
    processes = data.get("gpus_per_node") or 1
    tasks = _tasks(sbatch, "ntasks_per_node", (1, processes), warnings)
    _tasks(sbatch, "ntasks", {(data.get("nodes") or 1) * each for each in (1, processes)}, warnings)
    cores = data.get("cpus_per_task")
    if cores is None or tasks == processes:
        return
    data["cpus_per_task"] = max(1, cores // processes)
    if cores % processes:
        warnings.append(
            f"slurm.sbatch.cpus_per_task: {cores} cores for {processes} processes: each has {data['cpus_per_task']}"
        )


def _tasks(
    sbatch: Mapping[str, Any], key: str, usual: Collection[int], warnings: list[str], why: str = _OF_TRAININGS
) -> int:
    """Return a number of tasks; 1, with a warning, for one that the launcher does not start."""
    given = sbatch.get(key)
    if given in (None, ""):
        return 1
    number = whole(given)
    if number in usual:
        return number or 1
    warnings.append(f"slurm.sbatch.{key}: {_short(given)}: {why}")
    return 1


def _options(sbatch: Mapping[str, Any], configuration: Configuration) -> list[str]:
    own = {*MANAGED, *_TEXT, *RESOURCES, "time", "signal", "ntasks", "ntasks_per_node"}
    options = []
    for key, value in sbatch.items():
        if key in own or (key, value) == ("export", "ALL"):  # which every job has
            continue
        if value is True:
            options.append(f"--{key.replace('_', '-')}")
        elif value not in (None, False, ""):
            options.append(f"--{key.replace('_', '-')}={value}")
    lines = configuration.get("slurm.sbatch_extra_directives") or []
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        key = "slurm.sbatch_extra_directives"
        raise JobError(f"{key} is {lines!r}, not a list of lines", key, 'write ["--licenses=x"]')
    for line in lines:
        option = line.strip().removeprefix("#SBATCH").strip()
        if option.startswith("-"):
            options.append(option)
        elif option and not option.startswith("#"):
            key = "slurm.sbatch_extra_directives"
            raise JobError(f"{key} has {line!r}, which is no option of sbatch", key, 'write "--licenses=x"')
    return options


def _whole(value: Any, key: str, *, least: int = 0) -> int:
    number = whole(value)
    if number is None or number < least:
        raise JobError(
            f"{key} is {_short(value)}, not a whole number{f' from {least} on' if least else ''}", key
        )
    return number


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _seconds(value: Any) -> int:
    """Return the seconds of a Slurm time: minutes, mm:ss, hh:mm:ss, d-hh, d-hh:mm or d-hh:mm:ss (sbatch(1))."""
    seconds = _slurm_seconds(value)
    if not seconds:
        raise JobError(
            f"slurm.sbatch.time is {_short(value)}: to Slurm, 0 is no limit",
            "slurm.sbatch.time",
            "write hh:mm:ss, or drop it for the partition's own",
        )
    return seconds


def _slurm_seconds(value: Any) -> int:
    text = str(value).strip()
    if (minutes := whole(text)) is not None and minutes >= 0:
        return minutes * 60
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    try:
        numbers = [int(part) for part in parts]
        if dash:
            hours, minutes, seconds = (*numbers, 0, 0)[:3]
            return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
        if len(numbers) == 2:
            return numbers[0] * 60 + numbers[1]
        return parse_duration(text)
    except ValueError as error:
        raise JobError(
            f"slurm.sbatch.time is {_short(value)}", "slurm.sbatch.time", "write hh:mm:ss"
        ) from error
