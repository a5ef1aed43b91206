"""Fuzz the spec loader and expander with random and mutated documents.

Every document has to end in points and jobs or in a ``SpecError``, within a time bound; anything else is a finding, and
is printed with the document that made it. Usage::

    python benchmarks/fuzz_specs.py 100000 [--seed 0] [--limit 5.0] [--minutes 10] [--keep DIRECTORY] [--specs FILE …]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from airflow_megatron.dag_factory.building import build_dags
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_document, plan_point
from airflow_megatron.slurm.submission.job_script import JobScriptError
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep_text, spec_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

MAX_POINTS = 2000
"""Sweeps with more points are loaded and expanded, but only the first points' jobs are made."""

FRAGMENTS: tuple[str, ...] = (
    *(
        "{{ lr }}",
        "{{ 10**10**10 }}",
        "{{ 'x' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        "{{ nodes }}",
        "{{",
        "}}",
        "{% if %}",
    ),
    *(
        "{% for i in x %}{% for j in x %}a{% endfor %}{% endfor %}",
        "{{ self }}",
        "{{ ''.__class__.__mro__ }}",
    ),
    *(
        "{{ '%0999999999d' % 1 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ round(5, -10**9) }}",
        "{{ stages }}",
    ),
    *(
        "{{ x ~ x ~ x }}",
        "{{ stages.pretrain.run_dir }}",
        "{{ parent.iteration }}",
        "{{ run_dir }}",
        "{{ sqrt }}",
    ),
    *(
        "{{ 1/0 }}",
        "{{ 1e999 }}",
        "{{ sqrt(-1) }}",
        "{{ (-8)**0.5 }}",
        "{{ range(9) }}",
        "{{ [1,2]|map('string') }}",
    ),
    *(
        "null",
        "~",
        "true",
        ".nan",
        ".inf",
        "-1",
        "0",
        "1e400",
        "9" * 60,
        "0x_",
        "06:00:00",
        "1h",
        "2B",
        "''",
        "[]",
        "{}",
    ),
    *(
        "&a [*a, *a]",
        "*a",
        "<<: *a",
        "!!python/object/apply:os.system [true]",
        "? [a]",
        "--- a",
        "...",
        "\t",
        "\x00",
    ),
    *(
        "[[[[[[[[",
        "{a: {a: {a: ",
        "- - - - -",
        "|",
        ">-",
        "'",
        '"',
        "%",
        "@",
        "`",
        ": ",
        "#",
        "\u2028",
        "\ud7ff",
        "é",
    ),
    *(
        "../..",
        "/",
        "a.b",
        "a b",
        "$(id)",
        "; rm -rf x",
        "-x",
        "extends: nowhere.yaml",
        "name: .",
        "point: x",
    ),
)
KEYS: tuple[str, ...] = (
    *(
        "name",
        "point",
        "params",
        "megatron",
        "slurm",
        "sweep",
        "stages",
        "env",
        "restart",
        "cluster",
        "trainer",
        "tags",
    ),
    *(
        "kind",
        "scope",
        "parent",
        "for_each",
        "start",
        "cancel",
        "finish",
        "events",
        "run_dir",
        "command",
        "outputs",
    ),
    *(
        "groups",
        "configs",
        "grids",
        "type",
        "base_values",
        "defaults",
        "filter",
        "list_composition",
        "each_checkpoint",
    ),
    *(
        "checkpoint",
        "log",
        "file",
        "all",
        "any",
        "not",
        "of",
        "finished",
        "every",
        "nodes",
        "time",
        "mem",
        "options",
    ),
    *(
        "release",
        "poll_interval",
        "max_active_points",
        "train_iters",
        "lr",
        "<<",
        "extends",
        "",
        "__class__",
        "template",
    ),
)


class Hang(BaseException):
    """A document took longer than the limit; no ``except Exception`` of the code under test may catch it."""


def run_document(text: str, cluster: ClusterProfile) -> str:
    """Take a document as far as it goes; return how far.

    :raises Exception: whatever is not a ``SpecError``
    """
    try:
        plan_document(text, cluster)
    except SpecError as error:
        if not str(error):
            raise ValueError("an error without a message") from error
        return "refused"
    return "planned"


def plan_document(text: str, cluster: ClusterProfile) -> None:
    """Load a document, build its DAGs, expand its points, make the jobs of the first ones and render their scripts."""
    sweep = load_sweep_text(text, str(sweep_specs_dir() / "fuzz.yaml"))  # beside the presets
    check_document(sweep)
    build_dags(SweepOutline.of(sweep))
    points = sweep.points
    sweep.shared_jobs(cluster)
    for point in points[: 3 if len(points) > MAX_POINTS else 20]:
        for job in plan_point(sweep, point, cluster):
            job.to_json()
            with contextlib.suppress(JobScriptError):  # a refusal, which lint shows with its line
                job_script(job, cluster, 1)


def mutated(random_: random.Random, texts: Sequence[str]) -> str:
    """Return one of the texts with one to four mutations: of a byte, a token, a line, a key or a value."""
    text = random_.choice(texts)
    for _ in range(random_.choice((1, 1, 1, 2, 3, 4))):
        text = random_.choice(_MUTATIONS)(random_, text)
    return text


def _byte(random_: random.Random, text: str) -> str:
    place = random_.randrange(len(text) + 1)
    new = chr(random_.choice((random_.randrange(128), random_.randrange(0x3000))))
    return text[:place] + random_.choice(("", new)) + text[place + random_.randrange(2) :]


def _token(random_: random.Random, text: str) -> str:
    words = text.split(" ")
    place = random_.randrange(len(words))
    words[place] = random_.choice((random_.choice(FRAGMENTS), random_.choice(KEYS), random_.choice(words)))
    return " ".join(words)


def _line(random_: random.Random, text: str) -> str:
    lines = text.split("\n")
    place, other = random_.randrange(len(lines)), random_.randrange(len(lines))
    match random_.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines[place], lines[other] = lines[other], lines[place]
        case 2:
            lines.insert(place, lines[other])
        case _:
            lines[place] = " " * random_.randrange(5) + lines[place]
    return "\n".join(lines)


def _tree(random_: random.Random, text: str) -> str:
    """Change a key or a value of the parsed document."""
    try:
        data = yaml.load(
            text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )  # a safe loader either way
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    places: list[tuple[Any, Any]] = []
    pending = [data]
    while pending and len(places) < 10_000:
        node = pending.pop()
        children = (
            node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        )
        for key, value in children:
            places.append((node, key))
            pending.append(value)
    if not places:
        return text
    node, key = random_.choice(places)
    match random_.randrange(5):
        case 0:
            node[key] = value_of(random_, 3)
        case 1:
            node[key] = random_.choice(FRAGMENTS)
        case 2:
            other, name = random_.choice(places)
            node[key] = other[name]
        case 3 if isinstance(node, dict):
            node[random_.choice(KEYS)] = node.pop(key)
        case _ if isinstance(node, dict):
            node[random_.choice(KEYS)] = value_of(random_, 2)
        case _:
            node.pop(key)
    try:
        return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    except (yaml.YAMLError, RecursionError):
        return text


_MUTATIONS: tuple[Callable[[random.Random, str], str], ...] = (_byte, _token, _token, _line, _tree, _tree)


def value_of(random_: random.Random, depth: int) -> Any:
    """Return a random value, lists and mappings nested up to ``depth``."""
    kind = random_.randrange(9 if depth else 6)
    if kind == 0:
        return random_.choice((None, True, False, 0, -1, 3, 2**70, 1e-4, float("inf"), float("nan"), 10**6))
    if kind <= 3:
        return random_.choice(FRAGMENTS)
    if kind <= 5:
        return random_.choice(KEYS)
    if kind == 6:
        return [value_of(random_, depth - 1) for _ in range(random_.randrange(4))]
    return {random_.choice(KEYS): value_of(random_, depth - 1) for _ in range(random_.randrange(5))}


def random_document(random_: random.Random) -> str:
    """Return a document of random text, of random words, or of random values with the keys of a spec."""
    match random_.randrange(4):
        case 0:
            return "".join(chr(random_.randrange(32, 127)) for _ in range(random_.randrange(80)))
        case 1:
            words = [
                random_.choice((*FRAGMENTS, *KEYS, ":", "-", "\n", "\n  "))
                for _ in range(random_.randrange(30))
            ]
            return random_.choice((" ", "")).join(words)
        case 2:
            return yaml.safe_dump(value_of(random_, 6), allow_unicode=True)
    axes = {
        random_.choice("abcd"): [random_.randrange(9) for _ in range(random_.choice((1, 3, 200)))]
        for _ in range(random_.randrange(1, 5))
    }
    data = {
        "point": "x" + "".join(f"_{{{{ {axis} }}}}" for axis in axes),
        "megatron": {"train_iters": 10, **value_of_mapping(random_)},
        "params": value_of_mapping(random_),
        "sweep": {"params": axes, **value_of_mapping(random_)},
        "stages": {"pretrain": {"kind": random_.choice(("train", "command")), **value_of_mapping(random_)}},
    }
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def value_of_mapping(random_: random.Random) -> dict[str, Any]:
    return {random_.choice(KEYS): value_of(random_, 3) for _ in range(random_.randrange(3))}


def fuzz(
    count: int, seed: int, limit: float, minutes: float, texts: Sequence[str]
) -> tuple[int, list[str], Any]:
    """Run documents until ``count`` or ``minutes`` are reached.

    :return: how many ran, the documents with findings, how many ended in which way
    """
    cluster = load_cluster("example-slurm")  # it has all that a spec can ask for
    outcomes: collections.Counter[str] = collections.Counter()
    findings: list[str] = []
    slowest = 0.0
    deadline = time.monotonic() + minutes * 60

    def expired(signum: int, frame: FrameType | None) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, expired)
    done = 0
    for done in range(1, count + 1):
        random_ = random.Random(f"{seed}.{done}")  # so that one document can be made again
        text = random_document(random_) if random_.random() < 0.3 else mutated(random_, texts)
        started = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            outcome = run_document(text, cluster)
        except Hang:
            outcome = "hang"
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        slowest = max(slowest, time.monotonic() - started)
        outcomes[outcome] += 1
        if outcome not in ("planned", "refused") and outcomes[outcome] <= 3:
            findings.append(text)
            print(f"document {seed}.{done}: {outcome}", flush=True)
        if time.monotonic() > deadline:
            break
    outcomes["slowest (ms)"] = round(slowest * 1000)
    return done, findings, outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds for one document")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--keep", type=Path, help="write the documents with findings here")
    parser.add_argument("--specs", nargs="+", type=Path, help="specs to mutate; default: the shipped ones")
    options = parser.parse_args()
    texts = [path.read_text(encoding="utf-8") for path in options.specs or spec_files(sweep_specs_dir())]
    started = time.monotonic()
    done, findings, outcomes = fuzz(options.count, options.seed, options.limit, options.minutes, texts)
    print(f"{done} documents in {time.monotonic() - started:.0f} s: {dict(outcomes.most_common())}")
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        for index, text in enumerate(findings):
            (options.keep / f"{index}.yaml").write_text(text, encoding="utf-8", errors="surrogatepass")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
