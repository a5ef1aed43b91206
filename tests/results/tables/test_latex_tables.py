"""Tables for LaTeX print every text unchanged."""

from __future__ import annotations

import re

import pytest

from airflow_megatron.results.tables.latex import escaped, latex_table


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a_b & 50% #1", r"a\_b \& 50\% \#1"),
        ("$x^2$", r"\$x\textasciicircum{}2\$"),
        ("{a}", r"\{a\}"),
        ("C:\\new", r"C:\textbackslash{}new"),
        ("~<|>", r"\textasciitilde{}\textless{}\textbar{}\textgreater{}"),
        ("[1, 2]", "{[}1, 2{]}"),
        ("-1", "-1"),
        ("a--b---c", "a{-}-b{-}{-}-c"),
        ("?`!`", r"{?}\textasciigrave{}{!}\textasciigrave{}"),
        ("0.5 ±0.1 ★", r"0.5 $\pm$0.1 $\star$"),
        ("β/(α+β)", r"$\beta$/($\alpha$+$\beta$)"),
        ("naïve Ž", "naïve Ž"),
        ("中\N{PILE OF POO}", "{[}U+4E2D{]}{[}U+1F4A9{]}"),
        ("a\nb\tc", "a b c"),
        ("\x00\x1b", "{[}U+0000{]}{[}U+001B{]}"),
        ("%\n\\end{document}", r"\% \textbackslash{}end\{document\}"),
    ],
)
def test_special_characters(text: str, written: str) -> None:
    assert escaped(text) == written


def test_a_table_is_one_environment_with_columns_of_numbers_on_the_right() -> None:
    text = latex_table(
        [["point", "loss"], ["a_1", "2.5 ★"], ["[b]*", "–"]], caption="100%", label="my results"
    )
    assert text.splitlines()[1:] == [
        r"\begin{table}",
        r"\centering",
        r"\caption{100\%}",
        r"\label{tab:my-results}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"point & loss \\",
        r"\midrule",
        r"a\_1 & 2.5 $\star$ \\",
        r"{[}b{]}{*} & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("code", [*range(0x20, 0x7F), *range(0xA0, 0x180)])
def test_no_character_is_markup(code: int) -> None:
    written = escaped(chr(code) * 2)
    commands = re.findall(r"\\[A-Za-z]+|\\.", written)
    bare = re.sub(r"\\[A-Za-z]+\{\}|\\.|\{[^{}]*\}|\$\\?[a-z^23]+\$", "", written)
    assert not set(bare) & set("\\{}$&#%^_") or chr(code) == "\\", (written, commands)
