"""The product's main job in one command: export the family's drafters, check them, let the head draft for its verifier,
and show what a tree pass of the SLM adds to a chain.

Knows no phone: what would need one is listed as not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from transformers import AutoTokenizer

from calibration.keepset import KeepSet
from calibration.prompts import Prompt, encode_prompt, read_prompts
from calibration.states import greedy_sequence
from calibration.verifier import load_verifier
from export.bundle import open_bundle
from export.engines.htp import why_unavailable
from export.graphs.feeds import FeedBuilder
from export.mtp.chain import CHAIN_LENGTH, MtpChain
from export.mtp.check import check_bundle, head_config, open_cpu, open_simulator
from export.mtp.export import export_mtp
from export.slm.check import check_slm_bundle
from export.slm.export import export_slm
from hyco_npu.decode.loop import MtpDrafter, Round, decode
from hyco_npu.decode.verifier import GreedyVerifier
from hyco_npu.defaults import mtp_export_options, slm_export_options
from hyco_npu.family import HELD_OUT_PROMPTS, VERIFIER_DIR
from hyco_npu.tree_pass import TreePass, tree_pass
from quant.table import EmbeddingTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from calibration.states import HeadState
    from export.bundle.reader import Bundle
    from export.mtp.options import MtpExportResult
    from export.parity import CheckResult
    from export.slm.options import SlmExportResult

SIMULATED_ROUNDS = 40
"""Rounds drafted on the simulator; later ones run the same QDQ graph on the CPU, which is faster."""

CHECK_SAMPLES = 16
SLM_CHECK_PASSES = 4
NOT_MEASURED = (
    "milliseconds per drafting step on a phone's NPU",
    "power, temperature and throttling",
    "the link between phone and server",
)


@dataclass(frozen=True)
class DemoRound:
    """A round and the engine that drafted it."""

    round: Round
    engine: str


class EngineSwitch:
    """Drafts on the simulator for a stated number of rounds, then on the CPU."""

    def __init__(self, bundle: Bundle, chain: MtpChain) -> None:
        self._cpu = MtpDrafter(chain, open_cpu(bundle), CHAIN_LENGTH)
        self._simulator = None
        if why_unavailable() is None:
            self._simulator = MtpDrafter(chain, open_simulator(bundle), CHAIN_LENGTH)
        self._rounds = 0
        self.engine = "prefill"

    def draft(self, state: HeadState) -> list[int]:
        """A chain from `state`."""
        drafter, self.engine = self._cpu, "CPU (QDQ)"
        if self._simulator is not None and self._rounds < SIMULATED_ROUNDS:
            drafter, self.engine = self._simulator, "HTP simulator"
        self._rounds += 1
        return drafter.draft(state)


def open_chain(bundle: Bundle) -> MtpChain:
    """The bundle's drafting chain: its keep set, its table, its window."""
    keep_set = bundle.manifest.keep_set
    keep = KeepSet.load(bundle.path(keep_set.file), keep_set.vocab_size, (), expected_sha256=keep_set.sha256)
    table_info = bundle.manifest.table
    assert table_info is not None  # the family's bundle always has its table
    table = EmbeddingTable.load(bundle.path(table_info.file))
    feeds = FeedBuilder(head_config(bundle), bundle.manifest.window, bundle.manifest.position_rule)
    return MtpChain(feeds, keep.token_ids, lambda token_id: table.lookup(token_id).numpy())


def export_and_check(
    out: Path, force: bool, progress: Callable[[str], None]
) -> tuple[MtpExportResult, Bundle, CheckResult]:
    """Export the family's head into `out` and run its check."""
    exported = export_mtp(mtp_export_options(out=out, force=force), progress)
    bundle = open_bundle(out)
    return exported, bundle, check_bundle(bundle, CHECK_SAMPLES, progress)


def export_and_check_slm(
    out: Path, force: bool, progress: Callable[[str], None]
) -> tuple[SlmExportResult, Bundle, CheckResult]:
    """The same for the family's SLM."""
    exported = export_slm(slm_export_options(out=out, force=force), progress)
    bundle = open_bundle(out)
    return exported, bundle, check_slm_bundle(bundle, SLM_CHECK_PASSES, progress)


@dataclass(frozen=True)
class ShownTree:
    """A tree pass over one round's chain; `truth` is what the verifier wrote there."""

    round: int
    tree: TreePass
    truth: tuple[int, ...]


def show_tree(bundle: Bundle, prompt: Sequence[int], rounds: Sequence[DemoRound]) -> ShownTree | None:
    """The SLM's pass over the first chain that was not accepted whole (else the first full one); None without any."""
    drafted = [i for i, one in enumerate(rounds) if len(one.round.drafted) == CHAIN_LENGTH]
    cut = [i for i in drafted if len(rounds[i].round.accepted) < CHAIN_LENGTH]
    if not drafted:
        return None
    number = (cut or drafted)[0]
    text = [*prompt, *(token for one in rounds[:number] for token in one.round.emitted)]
    truth = tuple(token for one in rounds[number:] for token in one.round.emitted)
    return ShownTree(number, tree_pass(bundle, text, rounds[number].round.drafted), truth[: CHAIN_LENGTH + 1])


def draft_rounds(bundle: Bundle, prompt: Sequence[int], max_new_tokens: int) -> Iterator[DemoRound]:
    """Let the compiled graph draft for the family's verifier, greedy and exact."""
    drafter = EngineSwitch(bundle, open_chain(bundle))
    verifier = GreedyVerifier.load(VERIFIER_DIR, bundle.manifest.window)
    for one in decode(verifier, drafter, prompt, max_new_tokens):
        yield DemoRound(one, drafter.engine)


def plain_greedy(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """What the verifier writes alone: token by token, with transformers' own cache."""
    return greedy_sequence(load_verifier(VERIFIER_DIR), prompt, max_new_tokens)[len(prompt) :]


def demo_prompt(text: str | None) -> tuple[str, list[int], PreTrainedTokenizerBase]:
    """The prompt's text, its ids and the family's tokenizer; by default the first held-out prompt."""
    prompt = read_prompts(HELD_OUT_PROMPTS)[0] if text is None else Prompt("prompt", (text,))
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(VERIFIER_DIR, local_files_only=True)
    return prompt.turns[0], encode_prompt(tokenizer, prompt), tokenizer


def accepted_per_round(rounds: Sequence[DemoRound]) -> float:
    """Mean of accepted draft tokens over rounds that drafted a full chain (the last one may be cut short)."""
    full = [len(r.round.accepted) for r in rounds if len(r.round.drafted) == CHAIN_LENGTH]
    return float(np.mean(full)) if full else 0.0
