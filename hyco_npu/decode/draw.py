"""A round's draft tree to look at: tokens with their sources and scores, the accepted path, the bonus token."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from hyco_npu.decode.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hyco_npu.decode.loop import Round

_COLOURS = {"root": "white", "mtp": "cyan", "slm": "magenta", "mtp+slm": "yellow", "ngram": "blue"}
_WIDTH = 100


def round_tree(one: Round, number: int, name_of: Callable[[int], str]) -> Tree:
    """The tree of a round; `name_of` gives a token's text. Children stand from best to worst."""
    reply, tree = one.reply, one.tree
    accepted = {ROOT, *reply.accepted}
    last = reply.accepted[-1] if reply.accepted else ROOT
    title = f"round {number}: {tree.rows} rows, {len(reply.accepted)} accepted, {len(reply.emitted)} emitted"
    top = Tree(Text(title, style="bold"))

    def add(parent: Tree, row: int) -> None:
        branch = parent.add(_row_label(one, row, name_of, row in accepted))
        for child in sorted(tree.children(row), key=lambda c: (-tree.scores[c], c)):
            add(branch, child)
        if row == last and reply.bonus is not None:
            branch.add(Text(f"{name_of(reply.bonus)}  bonus", style="bold green"))

    add(top, ROOT)
    return top


def save_svg(trees: Iterable[Tree], path: Path, title: str) -> None:
    """Write the trees as one SVG picture."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
    for tree in trees:
        console.print(tree)
    part = path.with_name(f".{path.name}.part")
    part.write_text(console.export_svg(title=title), encoding="utf-8")
    part.replace(path)


def _row_label(one: Round, row: int, name_of: Callable[[int], str], accepted: bool) -> Text:
    source = one.tree.sources[row]
    label = Text(name_of(one.tree.token_ids[row]), style="bold green" if accepted else "dim")
    label.append(f"  {source}", style=_COLOURS.get(source, "white"))
    if row != ROOT:
        label.append(f"  {one.tree.scores[row]:.2f}", style="dim")
    if accepted and row != ROOT:
        label.append("  accepted", style="green")
    return label
