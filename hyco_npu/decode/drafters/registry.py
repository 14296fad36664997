"""Drafters by the name that a configuration gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hyco_npu.decode.drafters.beam import EDGE_SCORE, BeamDrafter
from hyco_npu.decode.drafters.chain import ChainDrafter
from hyco_npu.decode.drafters.guesses import Guesses
from hyco_npu.decode.drafters.hybrid import HybridDrafter
from hyco_npu.decode.drafters.ngram import NgramDrafter
from hyco_npu.decode.drafters.none import NoDrafter
from hyco_npu.decode.drafters.parts import MtpEngine, Parts, SlmEngine
from hyco_npu.decode.drafters.passes import TreePasses
from quant.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hyco_npu.decode.config import DecodeConfig, SlmSettings
    from hyco_npu.decode.drafters.mtp import MtpCandidates
    from hyco_npu.decode.protocols import Drafter

__all__ = ["DRAFTERS", "MtpEngine", "Parts", "SlmEngine", "build_drafter"]

_Needed = TypeVar("_Needed")


def build_drafter(config: DecodeConfig, parts: Parts) -> Drafter:
    """The drafter that the configuration names, for one text.

    Raises UsageError for an unknown name, a section that the configuration lacks, or an engine that was not opened.
    """
    if config.drafter not in DRAFTERS:
        raise UsageError(
            f"configuration {config.name} names the drafter {config.drafter!r}; there are {', '.join(sorted(DRAFTERS))}"
        )
    return DRAFTERS[config.drafter](config, parts)


def _none(config: DecodeConfig, parts: Parts) -> Drafter:
    return NoDrafter()


def _chain(config: DecodeConfig, parts: Parts) -> Drafter:
    return ChainDrafter(_head(config, parts), config.tree, parts.clock)


def _hybrid(config: DecodeConfig, parts: Parts) -> Drafter:
    head, (passes, settings) = _head(config, parts), _slm(config, parts)
    mtp = _section(config, "mtp", config.mtp)
    first = 1 + mtp.steps + (mtp.width - 1) * min(mtp.sibling_depth, mtp.steps)
    if first > passes.rows.rows_a_pass:
        raise UsageError(
            f"configuration {config.name}: root, chain and siblings are {first} rows, the SLM's draft graph runs "
            f"{passes.rows.rows_a_pass}; take fewer steps or siblings in [mtp]"
        )
    guesses = None
    if config.guesses is not None:
        guesses = Guesses(config.guesses)
        head.considered = max(head.considered, config.guesses.runners_up)
    return HybridDrafter(head, passes, settings.passes, config.tree, guesses)


def _beam(config: DecodeConfig, parts: Parts) -> Drafter:
    passes, settings = _slm(config, parts, EDGE_SCORE)
    return BeamDrafter(passes, settings)


def _ngram(config: DecodeConfig, parts: Parts) -> Drafter:
    settings = _section(config, "ngram", config.ngram)
    return NgramDrafter(settings, config.tree.nodes, config.score_of("ngram").bias, parts.clock)


def _head(config: DecodeConfig, parts: Parts) -> MtpCandidates:
    settings = _section(config, "mtp", config.mtp)
    return parts.head(_engine(config, "mtp", parts.mtp), settings, config.score_of("mtp"), parts.clock)


def _slm(config: DecodeConfig, parts: Parts, edge_score: float = 0.0) -> tuple[TreePasses, SlmSettings]:
    settings = _section(config, "slm", config.slm)
    rows = parts.rows(_engine(config, "slm", parts.slm), settings.children, config.score_of("slm"), parts.clock)
    return TreePasses(rows, config.tree.nodes, settings.beam, parts.clock, edge_score), settings


def _section(config: DecodeConfig, name: str, section: _Needed | None) -> _Needed:
    if section is None:
        raise UsageError(f"configuration {config.name}: the drafter {config.drafter!r} needs a section [{name}]")
    return section


def _engine(config: DecodeConfig, name: str, engine: _Needed | None) -> _Needed:
    if engine is None:
        raise UsageError(
            f"configuration {config.name}: the model of its section [{name}] was not opened; name its files"
        )
    return engine


DRAFTERS: dict[str, Callable[[DecodeConfig, Parts], Drafter]] = {
    "none": _none,
    "chain": _chain,
    "hybrid": _hybrid,
    "beam": _beam,
    "ngram": _ngram,
}
