"""AutoExperiment's grammar: the same jobs, keys, values and order as in the tool."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import pytest
from autoexperiment_harness import CONFORMANCE, as_job, expand, params_of
from processor_limits import is_usual, processor_limit

from airflow_megatron.spec.documents.errors import SpecError


def _recorded(name: str) -> list[dict[str, Any]]:
    return json.loads((CONFORMANCE / name).read_text(encoding="utf-8"))


def check(case: dict[str, Any]) -> None:
    if case.get("jobs"):
        # as text: 1, 1.0 and true differ, and so does the order of keys
        assert json.dumps(params_of(case["yaml"])) == json.dumps(case["jobs"]), case["title"]
    else:
        with pytest.raises(SpecError) as refused:
            params_of(case["yaml"])
        assert all(problem.file == "spec.yaml" for problem in refused.value.problems), case["title"]


@pytest.mark.parametrize("case", _recorded("autoexperiment_cases.json"), ids=lambda case: case["title"])
def test_same_jobs_as_the_tool(case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.slow
def test_same_jobs_of_random_documents() -> None:
    """280 of them, and what SLAMPAI/autoexperiment 3093b6b with OmegaConf 2.4.0 makes of each."""
    for case in _recorded("autoexperiment_random.json"):
        check(case)


class TestScalingStudy:
    """The open-sci scaling file, values from the tool's own expansion."""

    @pytest.fixture(scope="class")
    def jobs(self) -> list[dict[str, Any]]:
        text = (CONFORMANCE / "scaling_exps.yaml").read_text(encoding="utf-8")
        return [dict(job.params) for job in expand(text).jobs]

    def test_counts(self, jobs: list[dict[str, Any]]) -> None:
        assert Counter((job["PHASE"], job["MODE"]) for job in jobs) == {
            ("PRETRAIN", "TRAIN"): 90,
            ("PRETRAIN", "CONVERT_EVAL"): 90,
            ("COOLDOWN", "TRAIN"): 450,
            ("COOLDOWN", "CONVERT_EVAL"): 450,
        }
        for key in ("name", "sbatch_script", "output_file"):
            assert len({job[key] for job in jobs}) == 1080

    def test_first_and_last_name(self, jobs: list[dict[str, Any]]) -> None:
        assert jobs[0]["name"] == "c4_10M_lr0.01_b1_0.9_b2_0.95_wd0.01_w585_n1_bs4__withBias_PRETRAIN_TRAIN"
        assert (
            jobs[-1]["name"]
            == "c4_50M_lr0.0001_b1_0.9_b2_0.95_wd1.0_w309_n1_bs32__withoutBias_COOLDOWN2B_CONVERT_EVAL"
        )

    @pytest.mark.parametrize(
        ("model", "warmup"), [("10M", (585, 146, 73)), ("25M", (1431, 357, 178)), ("50M", (2475, 618, 309))]
    )
    def test_pretraining(self, jobs: list[dict[str, Any]], model: str, warmup: tuple[int, ...]) -> None:
        for batch, size, iterations, expected in zip(
            (4, 16, 32), (16, 64, 128), (61036, 15259, 7630), warmup, strict=True
        ):
            chosen = [
                job
                for job in jobs
                if (job["PHASE"], job["MODEL"], job["MICRO_BATCH_SIZE"]) == ("PRETRAIN", model, batch)
            ]
            assert len(chosen) == 20
            for job in chosen:
                assert job["GLOBAL_BATCH_SIZE"] == size
                assert job["TRAIN_ITERS"] == iterations
                assert job["LR_WARMUP_ITERS"] == expected
                assert job["LR_DECAY_ITERS"] == iterations - expected
                assert job["WD"] == 1e-4 / job["LR"]

    @pytest.mark.parametrize(
        ("batch", "expected"),
        [
            (
                4,
                [
                    (3052, 305, 2000),
                    (6104, 610, 4000),
                    (12208, 1220, 10000),
                    (30518, 3051, 26000),
                    (61036, 6103, 54000),
                ],
            ),
            (16, [(763, 76, 0), (1526, 152, 0), (3052, 305, 2000), (7630, 763, 6000), (15259, 1525, 12000)]),
            (32, [(382, 38, 0), (763, 76, 0), (1526, 152, 0), (3815, 381, 2000), (7630, 763, 6000)]),
        ],
    )
    def test_cooldowns(
        self, jobs: list[dict[str, Any]], batch: int, expected: list[tuple[int, int, int]]
    ) -> None:
        found = {
            job["CD_SCALE"]: (job["TRAIN_ITERS"], job["LR_WSD_DECAY_ITERS"], job["ITER"])
            for job in jobs
            if job["PHASE"] == "COOLDOWN" and job["MICRO_BATCH_SIZE"] == batch
        }
        assert list(found.values()) == expected
        # a text of one field is a text, not a number
        assert all(
            job["LR_DECAY_ITERS"] == str(job["TRAIN_ITERS"]) for job in jobs if job["PHASE"] == "COOLDOWN"
        )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('m: [{s: {w: 1, d: [3,4]}}, {l: {w: 2, d: 5}}]\nname: "{m}_{w}_{d}"', ["s_1_3", "s_1_4", "l_2_5"]),
        ('m: {s: {w: [1,2]}, l: {v: 9}}\nname: "{w}{v}"', ["19", "29"]),
        (
            'LR: [1e-2,5e-3,1e-4,1e-5]\nWD: "expr(1e-4 / {LR})"\nname: "{LR}_{WD}"',
            ["0.01_0.01", "0.005_0.02", "0.0001_1.0", "1e-05_10.0"],
        ),
        ('x: [1, 1.0, true]\nname: "n{x}"', ["n1", "n1.0", "nTrue"]),
        ('a: {b: [yes, off, "no"]}\nname: "{b}"', ["True", "False", "no"]),
        (
            'x: [1_000, 0x10, 010, 1:30, 06:00:00, 2024-01-02]\nname: "{x}"',
            ["1000", "16", "8", "90", "06:00:00", "2024-01-02"],
        ),
        ('a: {k: 3}\nb: ${a.k}\nc: ${oc.env:AE_TEST}\nd: ${oc.env:NOT_SET,e}\nname: "{b}{c}{d}"', ["3vale"]),
        ('axis: [1, 2]\nother: ${axis}\nname: "{axis}{other}"', ["11", "12", "21", "22"]),
        ('p: "/d/{x}/{0000..0010}.tar"\nx: 1\nname: n', ["n"]),
        ('H: 3\nN: "a expr({H}+1)"\nname: "{N}"', ["a expr(3+1)"]),
        ('a: "{b}"\nb: "{a}"\nname: n', ["n"]),
        ('d: abc\nname: "{d[0]}{d!r}{d:>5}"', ["a'abc'  abc"]),
        ('M: 10M\nL: "expr(\'{M}\'.lower())"\nname: "{L}"', ["10m"]),
    ],
)
def test_examples(text: str, names: list[str]) -> None:
    assert [job["name"] for job in params_of(text)] == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a: "{a}x"\nname: n', "spec.yaml:1:1: the value of a refers to itself and never settles"),
        ('a: "{b}"\nb: "{c}"\nc: "{a}"\nname: n', "never settles"),
        ('a: "{b}{b}"\nb: "{a}{a}"\nname: n', "the value of a refers to itself"),
        (
            "name: n\nx: \"expr(__import__('os').getpid())\"",
            "spec.yaml:2:1: x: '__import__' in an expression would run code",
        ),
        ("name: n\nx: \"expr(open('/etc/passwd').read())\"", "would run code"),
        ('name: n\nx: "expr(().__class__.__bases__)"', "in an expression"),
        ('name: n\nx: "expr([a for a in (1,2)])"', "in an expression"),
        ('name: n\nx: "expr(2**10**9)"', "number of more than"),
        ("name: n\nx: \"expr('a'*10**9)\"", "more than 65,536 characters"),
        ('name: "{y.__class__.__mro__}"\ny: 1', "reads '__mro__' of a Python object"),
        ('name: "{y:1000000}"\ny: 1', "a width of more than"),
        ("m: []\nname: n", "m is empty, so there is no job at all"),
        ("m:\nname: n", "spec.yaml:1:1: a key without a value"),
        ("m: ???\nname: n", "stands for a value that has to be given"),
        ("m: ${nope}\nname: n", "'nope' is not defined"),
        ("m: ${oc.env:AE_NOT_SET}\nname: n", "environment variable AE_NOT_SET is not set"),
        ("m: ${k}\nk: ${m}\nname: n", "reference cycle: m → k → m"),
        ("m: [[1], 2]\nname: n", "neither plain values nor named items only"),
        ("m: [{a: 1, b: 2}]\nname: n", "neither plain values nor named items only"),
        ("m:\n  - 100: {q: 1}\nname: n", "the key 100 is not a text"),
        ("a: 1\na: 2\nname: n", "given twice"),
        ("a: [1, 2]\nname: same", "job names must be unique; given more than once: 'same'"),
        (
            "a: [1, 2, 1]\nname: 'n{a}'",
            "more than once: 'n1' (items 1 and 3 of a give all keys the same values; remove one)",
        ),
        ("a: ['1', 1]\nname: 'n{a}'", "more than once: 'n1' (add {a}, which varies, to name)"),
        (
            'alpha: [1, 2]\nname: "{alpa}"',
            "name stays '{alpa}', so jobs have the same name: there is no key 'alpa' (did you mean 'alpha'?)",
        ),
        (
            'a: [1, 2]\nb: expr({a}/0)\nname: "{b}"',
            "b stays 'expr(2/0)', so jobs have the same name: ZeroDivisionError",
        ),
        (
            'm: [{u: {x: "{nope}"}}, {v: {z: 1}}, {w: {z: 2}}]\nname: "j{x}"',
            "name stays 'j{x}', so jobs have the same name: there is no key 'x'",
        ),
        (
            'm: [{u: {k: "{nope}"}}, {v: {k: 1}}, {w: {k: 1}}]\nname: "{k}"',
            "job names must be unique; given more than once: '1'",
        ),
        ("[1, 2]", "expected keys with values"),
        ("a: !!python/object:os.system x\nname: n", "is not a"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        params_of(text) if text[0] != "[" else expand(text)
    assert message in str(refused.value)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(SpecError, match=r"sbatch_script missing at m big"):
        expand("m:\n  - small: {sbatch_script: s}\n  - big: {x: 1}\nname: '{m}'\noutput_file: o\ncmd: c\n")


def test_too_many_jobs_are_refused_at_once() -> None:
    text = "".join(f"k{number}: [1,2,3,4,5,6,7,8,9,10]\n" for number in range(12))
    with processor_limit(1), pytest.raises(SpecError, match=r"1,000,000,000,000 jobs"):
        expand(as_job(f"{text}name: n"))


def test_alias_bombs_and_deep_nesting_are_refused_at_once() -> None:
    bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{chr(98 + level)}: &{chr(98 + level)} [{','.join([f'*{chr(97 + level)}'] * 10)}]\n"
        for level in range(9)
    )
    with processor_limit(5):
        for text in (
            bomb,
            "a: " + "[" * 50_000,
            "a: &a {b: *a}",
            "\n".join(" " * depth + "a:" for depth in range(500)),
        ):
            with pytest.raises(SpecError):
                expand(text)


@pytest.mark.slow
def test_expansion_is_quick() -> None:
    text = (CONFORMANCE / "scaling_exps.yaml").read_text(encoding="utf-8")
    spent = []
    for _ in range(3):
        started = time.process_time()
        assert len(expand(text).jobs) == 1080
        spent.append(time.process_time() - started)
    # AutoExperiment takes 0.70 s on a machine on which this takes about 0.03 s
    assert is_usual(min(spent), 0.05)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${oc.select:absent,4}", 4),
        ("${oc.select:w}", 3),
        ("${oc.decode:'1e-3'}", 0.001),
        ("${oc.env:NOT_SET,1e-3}", "0.001"),
        ("${oc.env:NOT_SET,true}", "True"),
    ],
)
def test_resolvers_of_omegaconf(text: str, value: Any) -> None:
    (job,) = params_of(f"w: 3\nv: {text}\nname: n")
    assert repr(job["v"]) == repr(value)


def test_resolvers_that_give_lists() -> None:
    text = "m: {x: 7, y: 8}\nv: ${oc.dict.keys:m}\nw: ${oc.create:[1, 2]}\nname: n{v}{w}"
    assert [job["name"] for job in params_of(text)] == ["nx1", "nx2", "ny1", "ny2"]


def test_resolvers_of_another_tool_are_unknown() -> None:
    with pytest.raises(SpecError, match=r"no resolver 'oc\.mul'"):
        params_of("v: ${oc.mul:2,3}\nname: n")
