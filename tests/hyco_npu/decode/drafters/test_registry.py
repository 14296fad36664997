"""Which drafter a configuration names, and what it must have for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hyco_npu.decode.clock import Clock
from hyco_npu.decode.config import config_names, load_config
from hyco_npu.decode.drafters.registry import DRAFTERS, Parts, build_drafter
from quant.errors import UsageError

from .builders import Sides, config_of, head_engine, prompt_of, slm_engine

if TYPE_CHECKING:
    from tests.export.tiny import TinyHead
    from tests.export.tiny_slm import TinySlm

NEEDS = {"none": (), "ngram": ("ngram",), "chain": ("mtp",), "beam": ("slm",), "hybrid": ("mtp", "slm")}


def test_every_drafter_is_covered_here() -> None:
    assert DRAFTERS.keys() == NEEDS.keys()


@pytest.mark.parametrize("name", config_names())
def test_packaged_configurations_have_their_drafters(name: str, head: TinyHead, slm: TinySlm) -> None:
    parts = Parts(head_engine(head), slm_engine(slm, draft_rows=32), Clock())
    build_drafter(load_config(name), parts)


@pytest.mark.parametrize(("drafter", "section"), [(d, s) for d, needed in NEEDS.items() for s in needed])
def test_a_missing_section_is_named(drafter: str, section: str, head: TinyHead, slm: TinySlm) -> None:
    parts = Parts(head_engine(head), slm_engine(slm), Clock())
    others: dict[str, Any] = {name: {} for name in NEEDS[drafter] if name != section}
    with pytest.raises(UsageError, match=rf"'{drafter}' needs a section \[{section}\]"):
        build_drafter(config_of(drafter, **others), parts)


@pytest.mark.parametrize(("drafter", "section"), [("chain", "mtp"), ("beam", "slm"), ("hybrid", "mtp")])
def test_a_missing_engine_is_named(drafter: str, section: str) -> None:
    sections: dict[str, Any] = {name: {} for name in NEEDS[drafter]}
    with pytest.raises(UsageError, match=rf"the model of its section \[{section}\] was not opened"):
        build_drafter(config_of(drafter, **sections), Parts(None, None, Clock()))


def test_an_unknown_drafter_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="names the drafter 'forest'; there are beam, chain, hybrid, ngram, none"):
        build_drafter(config_of("forest"), Parts(None, None, Clock()))


def test_a_chain_that_the_draft_graph_cannot_run_is_refused(head: TinyHead, slm: TinySlm) -> None:
    """Root, 4 tokens and 2 siblings are 7 rows."""
    sections: dict[str, Any] = {"mtp": {"steps": 4, "width": 2, "sibling_depth": 2}, "slm": {}}
    build_drafter(config_of("hybrid", **sections), Parts(head_engine(head), slm_engine(slm, draft_rows=7), Clock()))
    with pytest.raises(UsageError, match="are 7 rows, the SLM's draft graph runs 6"):
        build_drafter(config_of("hybrid", **sections), Parts(head_engine(head), slm_engine(slm, draft_rows=6), Clock()))


def test_time_is_booked_by_part(head: TinyHead, slm: TinySlm) -> None:
    sections: dict[str, Any] = {"mtp": {}, "slm": {"passes": 2}}
    sides = Sides(config_of("hybrid", **sections), head, slm)
    sides.begin(prompt_of(5), 8)
    sides.answer(sides.drafter.draft(9), (), 3)
    phases = sides.clock.take()
    assert phases.keys() == {"device.tree", "device.feeds", "device.state"}
    assert all(seconds > 0 for seconds in phases.values())
