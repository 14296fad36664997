"""The two sides of a round and what passes between them: a tree goes up, a reply comes down.

The device has a Drafter, the server a Verifier behind a Target (target.py), which accepts. Neither knows the other's
insides; a wire between them carries `DraftTree` and `Reply` and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from hyco_npu.decode.tree import DraftTree


@dataclass(frozen=True, eq=False)
class HeadUpdate:
    """What the MTP head needs of the rows verified since the last update.

    hidden [backbone]: after the verifier's final norm, at the last verified row. embedding [backbone]: scaled, of the
    token behind it. keys and values by kind ("sliding", "full") [kv_heads, new rows, head_dim]: of the last layer of
    that kind, keys rotated, in the order of the text.
    """

    hidden: np.ndarray
    embedding: np.ndarray
    keys: dict[str, np.ndarray]
    values: dict[str, np.ndarray]

    @property
    def wire_bytes(self) -> int:
        """Bytes at 8 bits a value, as they would travel, without scales."""
        rows = sum(array.size for array in (*self.keys.values(), *self.values.values()))
        return int(rows + self.hidden.size + self.embedding.size)

    def named(self, number: int) -> dict[str, np.ndarray]:
        """Its arrays as update.NUMBER.hidden, .embedding, .keys_KIND and .values_KIND.

        The names of files of rounds and of the native runner (device_runner/native/events.h).
        """
        arrays = {"hidden": self.hidden, "embedding": self.embedding}
        for part, by_kind in (("keys", self.keys), ("values", self.values)):
            arrays |= {f"{part}_{kind}": array for kind, array in by_kind.items()}
        return {f"update.{number}.{name}": array for name, array in arrays.items()}


@dataclass(frozen=True)
class Reply:
    """The server's answer to a tree, or to a prompt (which drafts nothing).

    accepted: rows of the tree whose tokens were emitted, from the root's child down. emitted: the accepted tokens and,
    unless the text ended on one of those, the bonus token. All emitted tokens but the last have keys and values at the
    verifier; the last is the next tree's root. `update` is None for a verifier without a head.
    """

    accepted: tuple[int, ...]
    emitted: tuple[int, ...]
    finished: bool
    update: HeadUpdate | None = None

    @property
    def bonus(self) -> int | None:
        """The token that the verifier added itself; None where the text ended on an accepted one."""
        return self.emitted[-1] if len(self.emitted) > len(self.accepted) else None

    @property
    def committed(self) -> tuple[int, ...]:
        """The accepted rows that have keys and values at the verifier: all but one that is the last token."""
        return self.accepted[: len(self.emitted) - 1]


class Drafter(Protocol):
    """The device's side of a round, for one text."""

    def begin(self, token_ids: Sequence[int], reply: Reply) -> None:
        """Take in a prompt, or a further turn behind what was emitted, and the reply to it."""
        ...

    def draft(self, max_depth: int) -> DraftTree:
        """A tree whose root is the last emitted token and whose paths hold at most `max_depth` draft tokens, >= 1."""
        ...

    def while_waiting(self) -> None:
        """Called while the tree is under way: room for drafting ahead."""
        ...

    def commit(self, tree: DraftTree, reply: Reply) -> None:
        """Take the answer to `tree`: the last draft, or a root alone where no draft was asked for."""
        ...


class Verifier(Protocol):
    """The server's model over one text. The last emitted token has no row yet: it is the root of the next tree."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a text."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Longest text in tokens; None where the model has no limit."""
        ...

    @property
    def length(self) -> int:
        """Tokens of the text so far, the last emitted one included."""
        ...

    def prefill(self, token_ids: Sequence[int]) -> np.ndarray:
        """Logits [1, vocabulary] of the last of `token_ids`, which follow the text; `commit` ends the call."""
        ...

    def verify(self, tree: DraftTree) -> np.ndarray:
        """Logits [rows, vocabulary], float32, of every row given its ancestors; `commit` ends the call."""
        ...

    def commit(self, rows: Sequence[int], next_token: int) -> HeadUpdate | None:
        """Keep the root and `rows` (a path) of the last pass, drop all others; after a prefill `rows` is empty.

        The update, where there is a head, is for the rows kept, and `next_token` follows them.
        """
        ...
