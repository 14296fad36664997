"""Held-out samples of a bundle: states, chain inputs, and what the float references answered at export.

They let `check` judge a bundle later, where the checkpoint may be gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file, save_file

from calibration.states import HeadState
from export.engines.graph_io import Feed, joined_logits
from export.graphs.mtp import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from export.engines.graph_io import StepGraph
    from export.graphs.feeds import FeedBuilder
    from export.mtp.chain import ChainStep, MtpChain

REFERENCES = ("transformers", "fp32", "fake_quant")


@dataclass(frozen=True)
class Outputs:
    """Outputs of all samples under one engine: logits [samples, columns], hidden [samples, backbone], float32."""

    logits: np.ndarray
    hidden: np.ndarray

    @property
    def named(self) -> dict[str, np.ndarray]:
        """Both by name, as `export.parity.compare` takes them."""
        return {"logits": self.logits, "hidden": self.hidden}

    def at(self, indices: Sequence[int]) -> Outputs:
        """The rows of some samples."""
        return Outputs(self.logits[list(indices)], self.hidden[list(indices)])


@dataclass(frozen=True)
class Samples:
    """Sample i is a step from state `state_of[i]` with `embeddings[i]` and `hiddens[i]` [samples, backbone]."""

    states: list[HeadState]
    state_of: np.ndarray
    embeddings: np.ndarray
    hiddens: np.ndarray
    references: dict[str, Outputs]

    def feed(self, builder: FeedBuilder, index: int) -> Feed:
        """The float feed of sample `index`."""
        context = builder.context(self.states[int(self.state_of[index])])
        return builder.step(context, self.embeddings[index], self.hiddens[index])

    def __len__(self) -> int:
        return len(self.state_of)


def record_samples(chain: MtpChain, states: Sequence[HeadState], fp32: StepGraph) -> Samples:
    """Draft from every state with the float graph; keep each step's inputs and outputs.

    Later engines are compared on the float graph's own inputs: one wrong draft does not spoil the steps behind it.
    """
    state_of: list[int] = []
    steps: list[ChainStep] = []
    for index, state in enumerate(states):
        drafted = list(chain.run(fp32, state))
        steps += drafted
        state_of += [index] * len(drafted)
    return Samples(
        states=list(states),
        state_of=np.array(state_of),
        embeddings=np.stack([step.feed["embedding"].reshape(-1) for step in steps]),
        hiddens=np.stack([step.feed["hidden"].reshape(-1) for step in steps]),
        references={"fp32": stack_outputs([step.result for step in steps])},
    )


def run_samples(samples: Samples, builder: FeedBuilder, graph: StepGraph, indices: Sequence[int]) -> Outputs:
    """Outputs of `graph` on the samples at `indices`, each fed as it was recorded."""
    return stack_outputs([graph.run(samples.feed(builder, index)) for index in indices])


def stack_outputs(results: Sequence[Feed]) -> Outputs:
    """Step results -> one array per output."""
    return Outputs(
        logits=np.stack([joined_logits(r).reshape(-1) for r in results]),
        hidden=np.stack([r["next_hidden"].reshape(-1) for r in results]),
    )


def save_samples(samples: Samples, path: Path) -> None:
    """Write one safetensors file; keys and values as float16."""
    arrays = {"state_of": samples.state_of, "embeddings": samples.embeddings, "hiddens": samples.hiddens}
    for name, outputs in samples.references.items():
        arrays |= {f"{name}.logits": outputs.logits, f"{name}.hidden": outputs.hidden}
    for index, state in enumerate(samples.states):
        arrays[f"state.{index}.token_and_position"] = np.array([state.token_id, state.position])
        arrays[f"state.{index}.embedding"], arrays[f"state.{index}.hidden"] = state.embedding, state.hidden
        for kind in KINDS:
            arrays[f"state.{index}.keys_{kind}"] = state.keys[kind].astype(np.float16)
            arrays[f"state.{index}.values_{kind}"] = state.values[kind].astype(np.float16)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def load_samples(path: Path) -> Samples:
    """The inverse of `save_samples`."""
    arrays = load_file(path)
    states: list[HeadState] = []
    while f"state.{len(states)}.embedding" in arrays:
        prefix = f"state.{len(states)}"
        token_id, position = (int(x) for x in arrays[f"{prefix}.token_and_position"])
        states.append(
            HeadState(
                token_id=token_id,
                position=position,
                embedding=arrays[f"{prefix}.embedding"],
                hidden=arrays[f"{prefix}.hidden"],
                keys={kind: arrays[f"{prefix}.keys_{kind}"].astype(np.float32) for kind in KINDS},
                values={kind: arrays[f"{prefix}.values_{kind}"].astype(np.float32) for kind in KINDS},
            )
        )
    references = {name: Outputs(arrays[f"{name}.logits"], arrays[f"{name}.hidden"]) for name in REFERENCES}
    return Samples(states, arrays["state_of"], arrays["embeddings"], arrays["hiddens"], references)
