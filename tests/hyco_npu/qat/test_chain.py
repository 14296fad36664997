"""Many rows at once against transformers' own head, one row at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from calibration.states import HeadState, record_states
from hyco_npu.qat.chain import OUTPUT_LAYER, Centroids, output_logits
from hyco_npu.qat.data import RowBatch, RowBuilder
from tests.export.tiny import BACKBONE, SLIDING_WINDOW, VOCAB_SIZE, last_rows, run_transformers

from .conftest import Tiny, trunk_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hyco_npu.qat.chain import Trunk
    from hyco_npu.qat.data import Recorded

STEPS = 4


def state_at(tiny: Tiny, text: Recorded, t: int) -> HeadState:
    """What a server would send at row t; the sliding layer's rows are cut to the head's window."""
    (state,) = record_states(tiny.verifier, [text.ids.tolist()], [[t]], 1024)
    return last_rows(state, {"sliding": SLIDING_WINDOW})


def with_token(state: HeadState, embedding: np.ndarray, hidden: np.ndarray) -> HeadState:
    return HeadState(state.token_id, state.position, embedding, hidden, state.keys, state.values)


def batch_of(builder: RowBuilder, texts: Sequence[Recorded]) -> RowBatch:
    return builder.batch(texts, [text.rows for text in texts])


def test_forced_chains_are_transformers(tiny: Tiny, texts: list[Recorded], trunk: Trunk, builder: RowBuilder) -> None:
    batch = batch_of(builder, texts)
    ours = [output_logits(last, trunk.weights[OUTPUT_LAYER], None) for last in trunk.forced(trunk.weights, batch)]
    for index, text in enumerate(texts):
        for row, t in enumerate(text.rows.tolist()):
            state = state_at(tiny, text, t)
            hidden = state.hidden
            for step in range(STEPS):
                counts = t + step + 1 < len(text.ids)
                assert bool(batch.counted[step, index, row]) is counts
                if counts:
                    fed = with_token(state, text.embeddings[t + step].numpy(), hidden)
                    hidden, logits = run_transformers(tiny.head.model, fed, t)
                    np.testing.assert_allclose(ours[step][index, row].numpy(), logits, atol=2e-5)


def test_drafts_are_transformers_greedy_chains(
    tiny: Tiny, texts: list[Recorded], trunk: Trunk, builder: RowBuilder
) -> None:
    embed = tiny.verifier.get_input_embeddings()
    with torch.no_grad():
        drafts = trunk.drafts(trunk.weights, batch_of(builder, texts), embed)
    for index, text in enumerate(texts[:2]):
        for row, t in enumerate(text.rows.tolist()):
            state = state_at(tiny, text, t)
            for step in range(STEPS):
                hidden, logits = run_transformers(tiny.head.model, state, t)
                assert int(drafts[step, index, row]) == int(logits.argmax())
                with torch.no_grad():
                    state = with_token(state, embed(torch.tensor(int(logits.argmax()))).numpy(), hidden)


@pytest.mark.parametrize("window", [1024, 6])
def test_a_row_sees_the_rows_before_it_and_its_window_alone(
    texts: list[Recorded], trunk: Trunk, tiny: Tiny, window: int
) -> None:
    text, t = texts[2], 20
    builder = RowBuilder(tiny.head.config, window)

    def logits(changed: dict[str, slice]) -> torch.Tensor:
        other = {kind: keys.clone() for kind, keys in text.keys.items()}
        values = {kind: v.clone() for kind, v in text.values.items()}
        for kind, rows in changed.items():
            other[kind][:, rows], values[kind][:, rows] = 1e3, -1e3
        touched = type(text)(text.ids, text.prompt_length, text.hidden, text.embeddings, other, values)
        batch = builder.batch([touched], [torch.tensor([t, t + 5])])
        return torch.stack([last[0, 0] for last in trunk.forced(trunk.weights, batch)])

    plain = logits({})
    full = min(window, t)
    sliding = min(window, SLIDING_WINDOW)
    hidden_rows = {"sliding": slice(0, t - sliding), "full": slice(0, t - full)}
    assert torch.equal(logits(hidden_rows), plain)
    assert torch.equal(logits({"sliding": slice(t, None), "full": slice(t, None)}), plain)
    for kind, seen in (("sliding", sliding), ("full", full)):
        for row in (t - seen, t - 1):
            assert not torch.allclose(logits({kind: slice(row, row + 1)}), plain)


def test_padding_rows_never_count(texts: list[Recorded], builder: RowBuilder) -> None:
    batch = builder.batch(texts[:2], [torch.tensor([10, 12, 15]), torch.tensor([15])])
    # 22 tokens: 10 and 12 predict at all four steps, 15 too; 17 tokens: 15 predicts token 16 alone
    assert batch.counted.sum((0, 2)).tolist() == [12, 1]
    assert batch.count == 13


def test_a_centroid_head_scores_what_transformers_scores(tmp_path: Path) -> None:
    model, trunk = centroid_head(tmp_path)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 32, generator=generator)
    with torch.no_grad():
        theirs = model.masked_embedding(hidden[None], model.lm_head.weight)[0]
    ours = output_logits(hidden, trunk.weights[OUTPUT_LAYER], trunk.centroids)
    unscored = theirs == theirs.min()
    assert unscored.sum(1).tolist() == [VOCAB_SIZE - 3 * 15] * 7
    assert torch.equal(ours == -torch.inf, unscored)
    torch.testing.assert_close(ours[~unscored], theirs[~unscored])
    assert not ours.softmax(-1)[unscored].any()


def test_unscored_tokens_hold_no_probability_at_the_real_size() -> None:
    """Case 42: 4,096 scored of 262,144, logits ~ N(0, 1), a permuted token order."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(262144, generator=generator).view(2048, 128)
    hidden = torch.randn(3, 64, generator=generator)
    centroids = Centroids(torch.randn(2048, 64, generator=generator), order, 32)
    weight = torch.randn(262144, 64, generator=generator) / 8
    logits = torch.stack([output_logits(row[None], weight, centroids)[0] for row in hidden])
    for row, found in zip(hidden, logits, strict=True):
        best = np.argsort(-(centroids.rows.numpy() @ row.numpy()))[:32]
        scored = np.zeros(262144, bool)
        scored[order.numpy()[best]] = True
        assert scored.sum() == 4096
        assert np.array_equal(np.isfinite(found.numpy()), scored)
        assert found.softmax(-1).double()[torch.from_numpy(scored)].sum().item() == pytest.approx(1.0, abs=1e-5)
        assert scored[found.topk(4096).indices.numpy()].all()
    # rows of a batch do not depend on one another, which a fill from the batch's minimum breaks
    assert torch.equal(torch.isfinite(output_logits(hidden, weight, centroids)), torch.isfinite(logits))


def centroid_head(folder: Path) -> tuple[object, Trunk]:
    """A head of 20 centroids of 15 tokens each, of which it scores 3."""
    from tests.export.checkpoint.builders import assistant_config, write_assistant
    from tests.export.tiny import SIZES

    config = assistant_config(
        SIZES,
        backbone_hidden_size=BACKBONE,
        use_ordered_embeddings=True,
        num_centroids=20,
        centroid_intermediate_top_k=3,
    )
    return write_assistant(folder, config, torch.float32), trunk_of(folder)
