"""What a text cost: rounds as JSON lines, and their sums.

MAT (mean accepted tokens) is tokens emitted per round, the bonus token among them; the prefill is no round. The
decoding rate leaves out the first token and the prefill that made it. Bytes are those of the planned wire: up, 3 for a
token id and 1 for its parent, the root's left out, for the server knows it; down, a token id for every emitted token
and, to a head on the device, its update at 8 bits a value without scales. Nothing is sent in one process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hyco_npu.decode.config import DecodeConfig
    from hyco_npu.decode.loop import Round

TOKEN_BYTES, PARENT_BYTES = 3, 1
VERIFIER_SOURCE = "verifier"


@dataclass(frozen=True)
class Summary:
    """Sums over a text's rounds; `phases` are seconds by "side.part", `accounted` their share of all the time.

    `mat` and `tokens_per_s` are None for a text of one token: there was no round. `sources` counts emitted tokens by
    who drafted them; those of no drafter are the verifier's.
    """

    rounds: int
    tokens: int
    mat: float | None
    tokens_per_s: float | None
    time_to_first_token_s: float
    phases: dict[str, float]
    accounted: float
    bytes_up: int
    bytes_down: int
    sources: dict[str, int]


def head_on_device(config: DecodeConfig) -> bool:
    """Whether the head's update has to travel."""
    return config.mtp is not None and config.mtp.place == "device"


def summarize(rounds: Sequence[Round], config: DecodeConfig) -> Summary:
    """Sum up a text that `config` decoded; the first of `rounds` is its prefill."""
    prefill, drafted = rounds[0], rounds[1:]
    later = sum(len(one.emitted) for one in drafted)
    seconds = sum(one.seconds for one in drafted)
    phases: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    for one in rounds:
        phases.update(one.phases)
        sources.update(sources_of(one))
    whole = prefill.seconds + seconds
    return Summary(
        rounds=len(drafted),
        tokens=len(prefill.emitted) + later,
        mat=later / len(drafted) if drafted else None,
        tokens_per_s=later / seconds if drafted else None,
        time_to_first_token_s=prefill.seconds,
        phases=dict(phases),
        accounted=sum(phases.values()) / whole,
        bytes_up=sum(map(bytes_up, rounds)),
        bytes_down=sum(bytes_down(one, head_on_device(config)) for one in rounds),
        sources=dict(sources),
    )


def trace_lines(rounds: Sequence[Round], config: DecodeConfig) -> list[dict[str, Any]]:
    """One object a round; round 0 is the prefill."""
    lines, emitted = [], 0
    for number, one in enumerate(rounds):
        emitted += len(one.emitted) if number else 0
        lines.append(
            {
                "round": number,
                "rows": one.tree.rows,
                "accepted": len(one.reply.accepted),
                "bonus": one.reply.bonus,
                "emitted": list(one.emitted),
                "sources": sources_of(one),
                "mat": emitted / number if number else None,
                "seconds": one.seconds,
                "phases": dict(one.phases),
                "accounted": sum(one.phases.values()) / one.seconds,
                "bytes_up": bytes_up(one),
                "bytes_down": bytes_down(one, head_on_device(config)),
            }
        )
    return lines


def sources_of(one: Round) -> list[str]:
    """Who drafted each emitted token of a round."""
    sources = [one.tree.sources[row] for row in one.reply.accepted]
    return sources if one.reply.bonus is None else [*sources, VERIFIER_SOURCE]


def bytes_up(one: Round) -> int:
    """Bytes of the tree."""
    return one.tree.nodes * (TOKEN_BYTES + PARENT_BYTES)


def bytes_down(one: Round, with_update: bool) -> int:
    """Bytes of the reply, the head's update among them or not."""
    update = one.reply.update if with_update else None
    return len(one.emitted) * TOKEN_BYTES + (0 if update is None else update.wire_bytes)
