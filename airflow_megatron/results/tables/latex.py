"""Tables of text cells as LaTeX: booktabs, for pdfLaTeX, XeLaTeX and LuaLaTeX."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPECIAL: Final = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": "{-}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "?": "{?}",
    "!": "{!}",
    ",": "{,}",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "★": r"$\star$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "∝": r"$\propto$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "→": r"$\to$",
    "∞": r"$\infty$",
    "²": r"$^2$",
    "³": r"$^3$",
    "µ": r"$\mu$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "η": r"$\eta$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    "“": "``",
    "”": "''",
    "’": "'",
    "‘": "`",
    "\N{NO-BREAK SPACE}": "~",
}
"""A brace around ``[``, ``*`` and the like keeps them from becoming arguments of ``\\\\`` and ligatures."""
_LIGATURES: Final = frozenset("-,?!")
_NUMBER: Final = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?[kMBT%]?( ?[★±].*)?|–|")


def escaped(text: str) -> str:
    """Return a text that LaTeX prints literally.

    Characters that pdfLaTeX cannot print are replaced by their code points: ``[U+4E2D]``.
    """
    found = []
    for index, character in enumerate(text):
        if character in _LIGATURES and text[index + 1 : index + 2] not in (character, "`"):
            found.append(character)
        else:
            found.append(_SPECIAL.get(character) or _printable(character))
    return "".join(found)


def _printable(character: str) -> str:
    if character.isspace():
        return " "
    if " " <= character <= "\N{LATIN SMALL LETTER Z WITH CARON}" and unicodedata.category(character) != "Cc":
        return character
    return f"{{[}}U+{ord(character):04X}{{]}}"


def latex_table(table: Sequence[Sequence[str]], *, caption: str, label: str) -> str:
    """Return a table as a ``table`` environment; it needs the packages booktabs and textcomp.

    :param table: the headings, then the rows; all of one length
    :param caption: caption of the table
    :param label: label after ``tab:``
    """
    head, *rows = table
    columns = "".join(
        "r" if index and rows and all(_NUMBER.fullmatch(row[index]) for row in rows) else "l"
        for index in range(len(head))
    )
    lines = [
        "% needs \\usepackage[T1]{fontenc}, \\usepackage{textcomp} and \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{escaped(caption)}}}",
        f"\\label{{tab:{re.sub(r'[^A-Za-z0-9-]', '-', label)}}}",
        f"\\begin{{tabular}}{{{columns}}}",
        "\\toprule",
        _line(head),
        "\\midrule",
        *map(_line, rows),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(map(escaped, cells)) + r" \\"
