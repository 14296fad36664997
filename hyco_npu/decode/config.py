"""A decoding configuration: who drafts what, how the tree is cut, how it is accepted. A TOML file in one frozen object.

The configurations of the HyCo paper lie in hyco_npu/decode/configs; a user copies one and changes it. What a file
leaves out has the default below; a key that nothing reads is an error.
"""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hyco_npu.decode.scores import SourceScore
from quant.errors import UsageError

Place = Literal["device", "server"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TreeSettings(_Section):
    """How the merged tree is cut: `nodes` draft tokens, the chain always among them or by its score like all others."""

    nodes: int = Field(default=32, ge=1)
    keep_chain: bool = True


class MtpSettings(_Section):
    """The MTP head: a chain of `steps` tokens, `width` candidates at depths 1 to `sibling_depth`.

    Without `keep_set` it scores the full vocabulary, without `window` it sees the whole text; bits 16 are the weights
    as released.
    """

    place: Place = "device"
    steps: int = Field(default=4, ge=1)
    width: int = Field(default=2, ge=1)
    sibling_depth: int = Field(default=2, ge=0)
    bits: Literal[2, 3, 4, 8, 16] = 4
    keep_set: int | None = Field(default=None, ge=1)
    window: int | None = Field(default=None, ge=1)


class SlmSettings(_Section):
    """The SLM: `passes` over the tree, `children` candidates a row, at most `beam` new nodes run in a pass after the
    first; `proactive_passes` more while the reply is under way."""

    passes: int = Field(default=1, ge=1)
    children: int = Field(default=8, ge=1)
    beam: int = Field(default=32, ge=1)
    proactive_passes: int = Field(default=0, ge=0)
    keep_set: int | None = Field(default=None, ge=1)
    window: int = Field(default=1024, ge=1)


class NgramSettings(_Section):
    """Lookup of the text's own n-grams: the longest suffix of `longest` to `shortest` tokens that occurred before."""

    longest: int = Field(default=4, ge=1)
    shortest: int = Field(default=1, ge=1)
    tokens: int = Field(default=4, ge=1)


class GuessSettings(_Section):
    """Rows that the SLM's first pass runs beside the head's drafts (drafters/guesses.py): the head's `runners_up` best
    candidates at every depth, its later tokens behind them, and what followed the text's last `shortest` to `longest`
    tokens before."""

    runners_up: int = Field(default=4, ge=1)
    longest: int = Field(default=4, ge=1)
    shortest: int = Field(default=2, ge=1)


class AcceptanceSettings(_Section):
    """`exact`; `epsilon`: a child may be accepted if the verifier gives it `epsilon` or more; `typical`: Medusa's rule.

    distribution: the verifier's probabilities as they are ("raw"), or after temperature, top-k and top-p ("processed").
    order (epsilon): an exact draw first ("sample_first"), the likeliest child ("max_p"), or the child with the longest
    acceptable path ("longest"). nodes: where the rule acts, everywhere ("all") or behind nodes of the head ("chain").
    `epsilon` left out is the paper's 0.005, for `typical` Medusa's 0.09.
    """

    rule: Literal["exact", "epsilon", "typical"] = "exact"
    epsilon: float = Field(default=0.005, gt=0)
    order: Literal["sample_first", "max_p", "longest"] = "sample_first"
    distribution: Literal["raw", "processed"] = "processed"
    nodes: Literal["all", "chain"] = "all"
    delta: float = Field(default=0.3, gt=0)


class ScoreSettings(_Section):
    """Temperature and bias of a source's scores, as `hyco-npu fit-scores` writes them."""

    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    bias: float = Field(default=0.0, allow_inf_nan=False)

    @property
    def score(self) -> SourceScore:
        """The same as arithmetic takes it."""
        return SourceScore(self.temperature, self.bias)


class DecodeConfig(_Section):
    """A whole configuration; `drafter` names how head and SLM work together (drafters/registry.py)."""

    name: str
    summary: str = ""
    drafter: str
    tree: TreeSettings = TreeSettings()
    mtp: MtpSettings | None = None
    slm: SlmSettings | None = None
    ngram: NgramSettings | None = None
    guesses: GuessSettings | None = None
    acceptance: AcceptanceSettings = AcceptanceSettings()
    scores: dict[Literal["mtp", "slm", "ngram"], ScoreSettings] = {}

    def score_of(self, source: Literal["mtp", "slm", "ngram"]) -> SourceScore:
        """Scale of a source; as its logits are where the file names none."""
        return self.scores.get(source, ScoreSettings()).score


def config_names() -> list[str]:
    """The configurations that come with the package."""
    return sorted(file.name.removesuffix(".toml") for file in _packaged().iterdir() if file.name.endswith(".toml"))


def load_config(name: str) -> DecodeConfig:
    """The packaged configuration `name`, or that of a TOML file. Raises UsageError naming the key or the choices."""
    return parse_config(read_toml(name), name)


def read_toml(name: str) -> dict[str, Any]:
    """What the file of a configuration says, before it is checked."""
    path = Path(name)
    packaged = _packaged() / f"{name}.toml"
    if name in config_names():
        content = packaged.read_bytes()
    elif path.is_file():
        content = path.read_bytes()
    else:
        raise UsageError(f"no configuration {name!r}: give a TOML file or one of {', '.join(config_names())}")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"configuration {name} is not TOML: {error}") from error


def parse_config(values: dict[str, Any], origin: str) -> DecodeConfig:
    """Check what a file says. Raises UsageError naming the keys that are wrong."""
    try:
        return DecodeConfig.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise UsageError(f"configuration {origin}: {problems}") from error


def _packaged() -> Any:
    return resources.files("hyco_npu.decode") / "configs"
