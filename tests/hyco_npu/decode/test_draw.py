"""The drawn tree: every node once, with its source; the accepted path and the bonus marked."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from hyco_npu.decode.draw import round_tree, save_svg
from hyco_npu.decode.loop import Round
from hyco_npu.decode.protocols import Reply
from hyco_npu.decode.tree import DraftTree

if TYPE_CHECKING:
    from pathlib import Path

TREE = DraftTree((1, 2, 3, 4), (None, 0, 0, 2), (0.0, -1.5, -0.5, -2.25), ("root", "mtp", "mtp+slm", "slm"))
ROUND = Round(TREE, Reply((2, 3), (3, 4, 9), finished=False), 0.1)


def drawn() -> list[str]:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(round_tree(ROUND, 7, lambda token: f"<{token}>"))
    return capture.get().splitlines()


def test_every_node_is_there_with_source_score_and_fate() -> None:
    lines = drawn()
    assert lines[0] == "round 7: 4 rows, 2 accepted, 3 emitted"
    of_token = {token: line for line in lines for token in "12349" if f"<{token}>" in line}
    assert len(lines) == 6
    assert "mtp+slm" in of_token["3"]
    assert "-0.50" in of_token["3"]
    assert "accepted" in of_token["3"]
    assert "accepted" in of_token["4"]
    assert "accepted" not in of_token["2"]
    assert "bonus" in of_token["9"]


def test_children_hang_below_their_parents_from_best_to_worst() -> None:
    lines = drawn()
    indents = {line.split("<")[1][0]: line.index("<") for line in lines[1:]}
    assert indents["1"] < indents["2"] == indents["3"] < indents["4"] < indents["9"]
    order = [line.split("<")[1][0] for line in lines[1:]]
    assert order == ["1", "3", "4", "9", "2"]


def test_the_picture_is_xml_that_names_the_tokens(tmp_path: Path) -> None:
    save_svg([round_tree(ROUND, 1, lambda token: f"tok{token}")], tmp_path / "tree.svg", "a title")
    root = ElementTree.parse(tmp_path / "tree.svg").getroot()
    text = "".join(root.itertext())
    assert root.tag.endswith("svg")
    assert all(f"tok{token}" in text for token in (1, 2, 3, 4, 9))
    assert [file.name for file in tmp_path.iterdir()] == ["tree.svg"]


def test_nothing_is_left_where_the_picture_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no-such"):
        save_svg([], tmp_path / "no-such" / "tree.svg", "a title")
