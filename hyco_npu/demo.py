"""The product's main job in one command: export the family's drafters, check them, let the head draft for its verifier,
and show what a tree pass of the SLM adds to a chain.

Knows no phone: what would need one is listed as not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from transformers import AutoTokenizer

from calibration.prompts import Prompt, encode_prompt, read_prompts
from calibration.states import greedy_sequence
from calibration.verifier import load_verifier
from export.bundle import open_bundle
from export.engines.htp import why_unavailable
from export.mtp.chain import CHAIN_LENGTH
from export.mtp.check import check_bundle, open_cpu, open_simulator
from export.mtp.export import export_mtp
from export.slm.check import check_slm_bundle
from export.slm.export import export_slm
from hyco_npu.decode.acceptance import Exact
from hyco_npu.decode.bundles import open_chain
from hyco_npu.decode.clock import Clock
from hyco_npu.decode.config import load_config
from hyco_npu.decode.drafters.parts import MtpEngine, Parts
from hyco_npu.decode.drafters.registry import DRAFTERS
from hyco_npu.decode.loop import Round, decode
from hyco_npu.decode.sampling import Sampling
from hyco_npu.decode.target import Target
from hyco_npu.decode.verifier import VerifierModel
from hyco_npu.defaults import mtp_export_options, slm_export_options
from hyco_npu.family import HELD_OUT_PROMPTS, VERIFIER_DIR
from hyco_npu.tree_pass import TreePass, tree_pass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from export.bundle.reader import Bundle
    from export.engines.graph_io import Feed
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

    @property
    def drafted(self) -> tuple[int, ...]:
        """The chain."""
        return self.round.tree.token_ids[1:]

    @property
    def accepted(self) -> tuple[int, ...]:
        """The part of it that was emitted."""
        return self.round.emitted[: len(self.round.reply.accepted)]

    @property
    def emitted(self) -> tuple[int, ...]:
        """Accepted and bonus tokens."""
        return self.round.emitted


class SwitchingGraph:
    """The head's graph on the simulator for a stated number of rounds, then on the CPU."""

    def __init__(self, bundle: Bundle) -> None:
        self._cpu = open_cpu(bundle)
        self._simulator = open_simulator(bundle) if why_unavailable() is None else None
        self._steps = 0
        self.engine = "prefill"

    def run(self, feed: Feed) -> Feed:
        """One step."""
        graph, self.engine = self._cpu, "CPU (QDQ)"
        if self._simulator is not None and self._steps < SIMULATED_ROUNDS * CHAIN_LENGTH:
            graph, self.engine = self._simulator, "HTP simulator"
        self._steps += 1
        return graph.run(feed)


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
    drafted = [i for i, one in enumerate(rounds) if len(one.drafted) == CHAIN_LENGTH]
    cut = [i for i in drafted if len(rounds[i].accepted) < CHAIN_LENGTH]
    if not drafted:
        return None
    number = (cut or drafted)[0]
    text = [*prompt, *(token for one in rounds[:number] for token in one.emitted)]
    truth = tuple(token for one in rounds[number:] for token in one.emitted)
    return ShownTree(number, tree_pass(bundle, text, rounds[number].drafted), truth[: CHAIN_LENGTH + 1])


def draft_rounds(bundle: Bundle, prompt: Sequence[int], max_new_tokens: int) -> Iterator[DemoRound]:
    """Let the compiled graph draft for the family's verifier, greedy and exact."""
    graph = SwitchingGraph(bundle)
    clock = Clock()
    head = MtpEngine(open_chain(bundle), graph, bundle.manifest.window)
    drafter = DRAFTERS["chain"](load_config("cloud-mtp"), Parts(head, None, clock))
    verifier = VerifierModel(load_verifier(VERIFIER_DIR)).begin()
    for one in decode(Target(verifier, Exact(Sampling()), clock=clock), drafter, prompt, max_new_tokens):
        yield DemoRound(one, graph.engine)


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
    full = [len(r.accepted) for r in rounds if len(r.drafted) == CHAIN_LENGTH]
    return float(np.mean(full)) if full else 0.0
