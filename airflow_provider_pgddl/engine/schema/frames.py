"""Frames, colours and widths of what is printed on a terminal. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

WIDTH = 66
"""Columns of a terminal that a box takes, where nothing in it needs more."""
_STYLES: Mapping[str, str] = {"bold": "1", "mismatch": "31", "warning": "33", "compatible": "32"}
_ACTION = re.compile(r"^(ALTER TABLE (?:ONLY )?(?:\"(?:[^\"]|\"\")*\"|[^\s\"])+) (?=\S)")
# Up to a blank outside of a quoted name or literal: a piece that stays whole.
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"']|["'])+""")


@dataclass(frozen=True, slots=True)
class FrameRow:
    """A line of a box, with what stands at its right end."""

    text: str
    right: str = ""
    style: str = ""
    rule: bool = False


class Frame:
    """A box that is as wide as asked, or as its longest piece that must not be broken."""

    def __init__(self, width: int, colour: bool) -> None:
        self._inner, self._colour = max(width, 20) - 4, colour
        self._rows: list[FrameRow] = []
        self._title = FrameRow("")

    def title(self, text: str, style: str) -> None:
        self._title = FrameRow(text, style=style)

    def text(self, text: str, style: str = "", indent: int = 0) -> None:
        for line in printable(text).split("\n"):
            for piece in _wrapped(line, self._inner - indent):
                self._rows.append(FrameRow(" " * indent + piece, style=style))

    def sides(self, left: str, right: str, style: str) -> None:
        """`right` in a column of its own, 10 wide, as the verdicts of tables stand."""
        *above, last = _wrapped(one_line(left), self._inner - 11)
        self._rows += [FrameRow(line) for line in above]
        self._rows.append(FrameRow(last, right, style))

    def blank(self) -> None:
        self._rows.append(FrameRow(""))

    def rule(self) -> None:
        self._rows.append(FrameRow("", rule=True))

    def sql(self, statement: str, indent: int) -> None:
        """A statement in lines that can be copied as they stand: broken before its action and outside of names."""
        for line in printable(statement).split("\n"):
            for part in _ACTION.sub(r"\1\n", line, count=1).split("\n"):
                self._whole(_WORD.findall(part), "", indent)

    def command(self, line: str, indent: int) -> None:
        """A shell's line, continued by backslashes."""
        self._whole(_WORD.findall(one_line(line)), " \\", indent)

    def _whole(self, parts: Sequence[str], continued: str, indent: int) -> None:
        lines: list[str] = []
        room = self._inner - indent - cell_len(continued)
        for part in parts:
            if lines and cell_len(lines[-1]) + 1 + cell_len(part) <= room:
                lines[-1] += f" {part}"
            else:
                lines.append(part)
        self._rows += [FrameRow(" " * indent + line + continued) for line in lines[:-1]]
        self._rows += [FrameRow(" " * indent + line) for line in lines[-1:]]

    def drawn(self) -> str:
        wide = max(self._inner, *(cell_len(row.text) for row in (self._title, *self._rows)))
        drawn = [f"╔{'═' * (wide + 2)}╗", self._drawn(self._title, wide), f"╠{'═' * (wide + 2)}╣"]
        drawn += [f"╟{'─' * (wide + 2)}╢" if row.rule else self._drawn(row, wide) for row in self._rows]
        return "\n".join([*drawn, f"╚{'═' * (wide + 2)}╝"])

    def _drawn(self, row: FrameRow, wide: int) -> str:
        if row.right:
            right = padded(row.right, 10)
            return f"║ {padded(row.text, wide - 10)}{coloured(right, row.style, self._colour)} ║"
        return f"║ {coloured(padded(row.text, wide), row.style, self._colour)} ║"


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken at blanks, and within a word only where it is longer than a line."""
    if cell_len(text) <= width:
        return [text]
    indent = len(text) - len(text.lstrip(" "))
    lines: list[str] = []
    for word in text.split():
        for piece in chop_cells(word, width - indent) if cell_len(word) > width - indent else [word]:
            if lines and cell_len(lines[-1]) + 1 + cell_len(piece) <= width:
                lines[-1] += f" {piece}"
            else:
                lines.append(" " * indent + piece)
    return lines or [""]


def padded(text: str, width: int) -> str:
    """Filled with blanks to so many columns of a terminal."""
    return text + " " * (width - cell_len(text))


def printable(text: str) -> str:
    """Control characters spelled out, so that a name can neither break a frame nor speak to a terminal; line breaks
    stay."""
    return "\n".join(map(one_line, text.split("\n")))


def one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def coloured(text: str, style: str, colour: bool) -> str:
    """In the colour of a status, or bold; as it is where `colour` is off."""
    code = _STYLES.get(style)
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text
