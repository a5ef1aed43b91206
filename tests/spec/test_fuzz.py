"""Random and mutated specs end in points and jobs, or in a clear error; never in a traceback, never in a hang.

The documents come from ``benchmarks/fuzz_specs.py``, which is also run on its own for many more of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.documents.yaml_document import load_yaml_text
from airflow_megatron.spec.expressions.resolution import ExpressionError, evaluate
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import spec_files

if TYPE_CHECKING:
    import random
    from types import ModuleType

pytestmark = pytest.mark.slow


def _fuzzer() -> ModuleType:
    path = project_root() / "benchmarks" / "fuzz_specs.py"
    described = importlib.util.spec_from_file_location("fuzz_specs", path)
    assert described
    assert described.loader
    module = importlib.util.module_from_spec(described)
    sys.modules["fuzz_specs"] = module
    described.loader.exec_module(module)
    return module


fuzzer = _fuzzer()
CLUSTER = load_cluster("example-slurm")
SHIPPED = [path.read_text(encoding="utf-8") for path in spec_files(project_root() / "sweep_specs")]
PROFILES = [
    path.read_text(encoding="utf-8")
    for folder in ("clusters", "sites")
    for path in (project_root() / "sbatch" / folder).glob("*.yaml")
]
COMMAND = """
point: "a"
stages:
  run: {kind: command, command: ["true"], slurm: {nodes: 2, time: 1h}}
"""
LIMITS = settings(
    max_examples=100, deadline=timedelta(seconds=50), suppress_health_check=[HealthCheck.too_slow]
)


@LIMITS
@given(st.randoms(use_true_random=False))
def test_mutated_specs(random_: random.Random) -> None:
    assert fuzzer.run_document(fuzzer.mutated(random_, SHIPPED), CLUSTER) in ("planned", "refused")


@LIMITS
@given(st.randoms(use_true_random=False))
def test_mutated_profiles(random_: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(SpecError):
        text = fuzzer.mutated(random_, PROFILES)
        (Path(folder) / "mutated.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        fuzzer.plan_document(COMMAND, load_cluster("mutated", Path(folder)))


@LIMITS
@given(st.randoms(use_true_random=False))
def test_random_documents(random_: random.Random) -> None:
    assert fuzzer.run_document(fuzzer.random_document(random_), CLUSTER) in ("planned", "refused")


@LIMITS
@given(st.text() | st.text(alphabet="[]{}&*!|>-:?#'\"% \n\tab<1."))
def test_random_text(text: str) -> None:
    with contextlib.suppress(SpecError):
        load_yaml_text(text, "fuzz.yaml")


WORDS = st.sampled_from(
    [
        *("x", "y", "n", "1", "10**9", "'a'", "+", "*", "**", "%", "~", "(", ")", "[", "]", ".", ",", "|"),
        *("{{", "}}", "join", "replace", "format", "list", "map", "{% for i in y %}", "{% endfor %}"),
        *("if", "else", "is", "not", "in"),
    ]
)


@LIMITS
@given(st.lists(WORDS, max_size=15))
def test_random_expressions(words: list[str]) -> None:
    names: dict[str, Any] = {"x": "text", "y": [1, 2], "n": 3}
    for source in ("{{ " + " ".join(words) + " }}", " ".join(words)):
        with contextlib.suppress(ExpressionError):
            evaluate(source, names)
    assert names == {"x": "text", "y": [1, 2], "n": 3}


@pytest.mark.parametrize(
    "payload",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ self.__init__.__globals__.__builtins__.open(path, 'w') }}",
        "{{ cycler.__init__.__globals__.os.mknod(path) }}",
        "{{ lipsum.__globals__['os'].mknod(path) }}",
        "{{ sqrt.__self__.__loader__.load_module('os').mknod(path) }}",
        "{{ iterations.__globals__ }}",
        "{{ int.from_bytes }}",
        "{{ path.format.__self__ }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(iterations) }}",
        "{{ [path] | map(attribute='__class__') | list }}",
        "{{ [path] | map('attr', '__class__') | list }}",
        "{{ (path | attr('__class__')) }}",
        "{{ path['__class__'] }}",
        "{% include path %}",
        "{% import path as p %}",
        "{% set x.y = 1 %}",
        "{{ stages.clear() }}",
        "{{ str.mro() }}",
    ],
)
def test_no_expression_reaches_code(payload: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("payload")
    before = dict(os.environ)
    text = f"""
point: "a"
params: {{path: {directory}/made}}
stages:
  run: {{kind: command, command: ["true", "$"]}}
""".replace('"$"', '"' + payload.replace('"', '\\"') + '"')
    with pytest.raises(SpecError):
        fuzzer.plan_document(text, CLUSTER)
    assert not list(directory.iterdir())
    assert dict(os.environ) == before
