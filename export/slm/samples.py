"""Held-out passes of an SLM's bundle: texts with trees behind them, and what the references answered at export.

They let `check` judge a bundle later, where the checkpoint may be gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file

from export.engines.graph_io import joined_logits
from export.graphs.slm import cache_shapes
from export.graphs.tree_feeds import RowTree, TreeFeedBuilder, softcapped
from export.kv_window import KvRows, KvWindow
from export.slm.runner import new_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from export.checkpoint.slm import SlmConfig
    from export.slm.runner import PassGraph
    from export.slm.sources import HeldOut

Outputs = dict[str, np.ndarray]
"""`logits` [rows, kept] (softcapped) and `caches` [rows, all new keys and values], float32, over rows that run."""

FP32, TRANSFORMERS, BOUNDED = "fp32", "transformers", "transformers_bounds"
PREFILL = "prefill"
_CHAIN, _SIBLINGS = 4, 2


@dataclass(frozen=True, eq=False)
class TreeSample:
    """A tree behind `context` tokens whose 8-bit keys and values lie in `caches`, with the tables' rows for it."""

    context: int
    tree: RowTree
    embedding: np.ndarray
    per_layer: np.ndarray
    caches: Mapping[int, KvRows]


@dataclass(frozen=True, eq=False)
class SlmSamples:
    """Trees for the draft graph, one piece of a text for the prefill graph, and answers by name of the reference."""

    trees: list[TreeSample]
    prefill: TreeSample
    references: dict[str, Outputs] = field(default_factory=dict)


@dataclass(frozen=True)
class PassRunner:
    """Runs samples on a graph of `rows` rows; `scales` are those of 8-bit caches by tensor name, None for floats."""

    config: SlmConfig
    graph: PassGraph
    rows: int
    window: int
    scales: Mapping[str, float] | None

    def run(self, samples: Sequence[TreeSample]) -> Outputs:
        """Outputs of all rows of all samples, one below the other."""
        results = [self._one(sample) for sample in samples]
        return {name: np.concatenate([result[name] for result in results]) for name in results[0]}

    def _one(self, sample: TreeSample) -> Outputs:
        dtype = np.dtype(np.float32 if self.scales is None else np.int8)
        window = KvWindow(cache_shapes(self.config), self.window, dtype)
        if sample.context:
            window.append(sample.caches, range(sample.context))
            window.accept(range(sample.context))
        builder = TreeFeedBuilder(self.config, self.rows, self.window)
        whole = builder.feed(sample.tree, sample.embedding, sample.per_layer, window.view())
        result = self.graph.run({name: whole[name] for name in self.graph.inputs})
        outputs = {"caches": self._flat(new_rows(result), sample.tree.run)}
        if any(name.startswith("logits_") for name in result):
            logits = joined_logits(result)[0, 0, : sample.tree.run]
            outputs["logits"] = softcapped(logits, self.config.final_logit_softcapping)
        return outputs

    def _flat(self, rows: Mapping[int, KvRows], count: int) -> np.ndarray:
        parts = []
        for owner, of_owner in rows.items():
            for name, array in (("keys", of_owner.keys.swapaxes(2, 3)), ("values", of_owner.values)):
                scale = 1.0 if self.scales is None else self.scales[f"new_{name}_{owner}"]
                parts.append(array[0, :, :count].swapaxes(0, 1).reshape(count, -1).astype(np.float32) * scale)
        return np.concatenate(parts, axis=1)


def tree_of(one: HeldOut, rng: np.random.Generator, keep: np.ndarray, rows: int) -> tuple[RowTree, list[int]]:
    """The rows of a drafting round in a text, and their tokens; the first `rows` of them, which are all from 9 on.

    The accepted tokens that the cache lacks, the root, a chain of the text's next four tokens, and a sibling (drawn
    from the keep set) at depths 1 and 2.
    """
    spine = one.text[one.position : one.position + one.caught_up + 1 + _CHAIN]
    parents: list[int | None] = [row - 1 if row else None for row in range(len(spine))]
    parents += [one.caught_up + depth for depth in range(_SIBLINGS)]
    tokens = [*spine, *rng.choice(keep, _SIBLINGS).tolist()]
    return RowTree(tuple(parents[:rows])), tokens[:rows]


def save_samples(samples: SlmSamples, path: Path) -> None:
    """Write one safetensors file."""
    arrays: dict[str, np.ndarray] = {}
    for name, sample in [*((f"tree.{i}", s) for i, s in enumerate(samples.trees)), (PREFILL, samples.prefill)]:
        arrays[f"{name}.context"] = np.array([sample.context])
        arrays[f"{name}.parents"] = np.array([-1 if p is None else p for p in sample.tree.parents])
        arrays[f"{name}.embedding"], arrays[f"{name}.per_layer"] = sample.embedding, sample.per_layer
        for owner, rows in sample.caches.items():
            arrays[f"{name}.keys.{owner}"], arrays[f"{name}.values.{owner}"] = rows.keys, rows.values
    for name, outputs in samples.references.items():
        arrays |= {f"reference.{name}.{output}": array for output, array in outputs.items()}
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def load_samples(path: Path) -> SlmSamples:
    """The inverse of `save_samples`."""
    arrays = load_file(path)
    trees: list[TreeSample] = []
    while f"tree.{len(trees)}.context" in arrays:
        trees.append(_sample(arrays, f"tree.{len(trees)}"))
    references: dict[str, Outputs] = {}
    for name, array in arrays.items():
        kind, _, rest = name.partition(".")
        if kind == "reference":
            reference, output = rest.rsplit(".", 1)
            references.setdefault(reference, {})[output] = array
    return SlmSamples(trees, _sample(arrays, PREFILL), references)


def _sample(arrays: Mapping[str, np.ndarray], name: str) -> TreeSample:
    prefix = f"{name}.keys."
    owners = sorted(int(key.removeprefix(prefix)) for key in arrays if key.startswith(prefix))
    return TreeSample(
        context=int(arrays[f"{name}.context"][0]),
        tree=RowTree(tuple(None if p < 0 else int(p) for p in arrays[f"{name}.parents"])),
        embedding=arrays[f"{name}.embedding"],
        per_layer=arrays[f"{name}.per_layer"],
        caches={o: KvRows(arrays[f"{name}.keys.{o}"], arrays[f"{name}.values.{o}"]) for o in owners},
    )
