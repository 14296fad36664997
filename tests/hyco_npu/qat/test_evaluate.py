"""The measurements against the embedded family's own, and the table against closed forms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from hyco_npu.family import MTP_DIR, VERIFIER_DIR
from hyco_npu.family.corpus import Document
from hyco_npu.family.evaluate import Acceptance, count_rounds, mtp_matches
from hyco_npu.family.stages import load_mtp, load_verifier
from hyco_npu.qat.data import RowBuilder, record
from hyco_npu.qat.evaluate import METRICS, Ruler, matched_prefix
from hyco_npu.qat.processes import Processes
from hyco_npu.qat.table import judge, names_of, original_form, quantized_form, table_rows, untrained_forms
from quant.dtypes import INT4
from quant.weights import Clip, quantize_weight

from .conftest import CPU, trunk_of

if TYPE_CHECKING:
    from hyco_npu.qat.evaluate import Measured


def test_the_original_head_is_measured_as_the_family_is() -> None:
    verifier = load_verifier(VERIFIER_DIR)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(6, 2048, (1, 12), generator=generator)
    with torch.no_grad():
        for _ in range(60):
            ids = torch.cat([ids, verifier(ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    matches = mtp_matches(load_mtp(MTP_DIR), verifier, ids)
    text = record(verifier, Document(ids[0].tolist(), 12), CPU)
    trunk = trunk_of(MTP_DIR)
    from export.checkpoint.mtp import read_mtp_config

    builder = RowBuilder(read_mtp_config(MTP_DIR), 1024)
    ruler = Ruler(trunk, builder, [text], [text, text], verifier.get_input_embeddings(), Processes.join("cpu"))
    found = ruler.measure(original_form(trunk.weights, None))
    accepted, rounds = count_rounds(matches.tolist(), 12)
    assert accepted > 10
    assert (found["accepted_greedy"].accepted.tolist(), found["accepted_greedy"].rounds.tolist()) == (
        [accepted],
        [rounds],
    )
    assert found["accepted_sampled"].accepted.tolist() == [2 * accepted]
    # 59 rows predict at step 1, one fewer at each later step
    assert found["kl"].rounds.tolist() == [59 + 58 + 57 + 56]
    assert found["kl"].accepted[0] == pytest.approx(0, abs=1e-3)
    assert found["top1"].accepted.tolist() == found["top1"].rounds.tolist()


def test_matched_prefix_counts_up_to_the_first_miss() -> None:
    ids = torch.tensor([9, 1, 2, 3, 4])
    drafts = torch.tensor([[1, 2, 3, 4], [2, 3, 4, 7], [3, 9, 7, 7], [4, 7, 7, 7]])
    # rows 0..3: row 0 misses nothing; row 1 misses at the third token; beyond the end nothing matches
    assert matched_prefix(drafts, ids, torch.arange(4)).tolist() == [4, 1 + 1, 1 + 1, 1]


def test_bytes_of_every_form() -> None:
    weights = {"a": torch.ones(6, 10), "b": torch.ones(3, 6)}
    assert original_form(weights, None).size_bytes == 2 * 78
    sizes = {form.name: form.size_bytes for form in untrained_forms(weights, 3)}
    assert sizes == {
        "W8": 78 + 4 * 9,
        # 180 and 54 bits in whole bytes
        "W3 round-to-nearest": 23 + 7 + 4 * 9,
        "W3 clip search": 23 + 7 + 4 * 9,
    }
    codes = {name: quantize_weight(weight, INT4, Clip.NONE) for name, weight in weights.items()}
    assert quantized_form("W4 QAT", codes).size_bytes == 30 + 9 + 4 * 9


def measured(greedy: list[int], kl: float = 1.0) -> Measured:
    """Ten rounds and ten predictions a prompt."""
    counts = np.full(len(greedy), 10)
    figures = {metric: Acceptance(np.array(greedy), counts) for metric in METRICS}
    return {**figures, "kl": Acceptance(np.full(len(greedy), 10 * kl), counts)}


def verdict_of(nearest: list[int], searched: list[int], trained: list[int]) -> tuple[bool, float | None, str]:
    names = names_of(4)
    forms = dict(zip(names, map(measured, (nearest, searched, trained)), strict=True))
    verdict = judge({"bf16": measured([30, 30, 30, 30]), **forms}, 4, 0)
    return verdict.helped, verdict.recovered, verdict.text


def test_the_verdict() -> None:
    helped, recovered, text = verdict_of([20, 20, 20, 20], [24, 24, 24, 24], [29, 29, 29, 29])
    assert helped
    assert recovered == pytest.approx(0.9)
    assert text.startswith("QAT helped: +0.500 (+0.500 to +0.500)")
    assert "wins back 90%" in text
    helped, _, text = verdict_of([20, 20, 20, 20], [25, 25, 25, 25], [24, 26, 23, 27])
    assert not helped
    assert text.startswith("QAT did not help")
    helped, _, text = verdict_of([20, 20, 20, 20], [25, 25, 25, 25], [24, 24, 24, 24])
    assert not helped
    assert "do not use it" in text
    _, recovered, text = verdict_of([29, 31, 28, 32], [30, 30, 30, 30], [30, 30, 30, 30])
    assert recovered is None
    assert "too little to tell" in text


def test_intervals_are_paired() -> None:
    forms = [original_form({"a": torch.ones(1, 1)}, None), *untrained_forms({"a": torch.ones(1, 1)}, 4)[:1]]
    before, after = [10, 40, 25, 5], [8, 38, 23, 3]  # 0.2 a round less on every prompt, however much they vary
    reference, other = table_rows([(forms[0], measured(before)), (forms[1], measured(after))], 0)
    assert reference["accepted_greedy"] == 2.0
    assert reference["accepted_greedy_minus_bf16"] == 0.0
    assert other["accepted_greedy_minus_bf16"] == pytest.approx(-0.2)
    assert other["accepted_greedy_minus_bf16_ci95"] == pytest.approx([-0.2, -0.2])
    low, high = other["accepted_greedy_ci95"]  # type: ignore[misc]
    assert high - low > 0.5
