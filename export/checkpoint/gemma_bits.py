"""How many bits each module of a `quant_method: gemma` checkpoint has, resolved exactly as transformers resolves it.

Knows module names only, neither tensors nor shapes. Source: transformers' integrations/gemma_quant.py
(`replace_with_quant_layers`) and quantizers/base.py (`get_modules_to_not_convert`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from transformers.quantizers.quantizers_utils import should_convert_module

from export.checkpoint.config import CONFIG_FILE
from export.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

QUANT_METHOD = "gemma"
BITS = (2, 4, 8)
_OUTPUT_LAYER = "lm_head"


@dataclass(frozen=True)
class BitMap:
    """Rules of a checkpoint: module-name regex -> bits (None: `default`), in the file's order; `path` is for messages.

    transformers joins the patterns into one alternation and searches a name once. So the match that starts furthest to
    the left wins, and among those that start at the same place the first pattern; we search the same expression.
    """

    path: Path
    rules: tuple[tuple[str, int | None], ...]
    default: int | None
    skipped: tuple[str, ...]
    quantize_embeddings: bool

    def linear(self, module: str) -> int | None:
        """Bits of a linear layer's weights (2, 4 or 8), or None where it keeps its floats.

        `module` is the full name, "model.language_model.layers.0.mlp.up_proj". Raises CheckpointError where no rule
        matches and config.json names no `num_bits` for the rest.
        """
        if not should_convert_module(module, list(self.skipped)):
            return None
        match = self._matcher.search(module) if self._matcher is not None else None
        bits = None if match is None else self.rules[self._rule_of(match)][1]
        bits = self.default if bits is None else bits
        if bits is None:
            raise CheckpointError(
                f"{self.path}: quantization_config says nothing of the bits of {module!r}; add a pattern to "
                "module_quant_configs, or num_bits for all that match none"
            )
        return bits

    def table(self, module: str) -> int | None:
        """Bits of an embedding table, or None where it keeps its floats (`quantize_embeddings` false, or skipped)."""
        return self.linear(module) if self.quantize_embeddings else None

    @cached_property
    def _matcher(self) -> re.Pattern[str] | None:
        return _joined(pattern for pattern, _ in self.rules) if self.rules else None

    @staticmethod
    def _rule_of(match: re.Match[str]) -> int:
        return next(int(name[1:]) for name, text in match.groupdict().items() if text is not None)


def read_bit_map(folder: Path, config: Mapping[str, Any]) -> BitMap:
    """The bit map in `config`, the object of the folder's config.json: its own or else its text_config's.

    Raises CheckpointError, naming the setting, where there is none, where it is of another method, and for patterns or
    bits that cannot be used.
    """
    path = folder / CONFIG_FILE
    text = config.get("text_config")
    found = config.get("quantization_config") or (text.get("quantization_config") if isinstance(text, dict) else None)
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{path}: quantization_config is {found!r}; only checkpoints with quant_method {QUANT_METHOD!r} are "
            "supported, whose weights are 2, 4 and 8-bit codes"
        )
    if found.get("quant_method") != QUANT_METHOD:
        raise CheckpointError(f"{path}: quant_method is {found.get('quant_method')!r}, expected {QUANT_METHOD!r}")
    quantize_embeddings = found.get("quantize_embeddings", False)
    if not isinstance(quantize_embeddings, bool):
        raise CheckpointError(f"{path}: quantize_embeddings is {quantize_embeddings!r}, expected true or false")
    default = found.get("num_bits")
    return BitMap(
        path=path,
        rules=_read_rules(path, found.get("module_quant_configs")),
        default=None if default is None else _bits(path, "num_bits", default),
        skipped=_read_skipped(path, found.get("modules_to_not_convert")),
        quantize_embeddings=quantize_embeddings,
    )


def _read_rules(path: Path, value: object) -> tuple[tuple[str, int | None], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: module_quant_configs holds a {type(value).__name__}, expected an object")
    rules = []
    for pattern, options in value.items():
        place = f"module_quant_configs[{pattern!r}]"
        if not isinstance(options, dict) or not options.keys() <= {"num_bits"}:
            raise CheckpointError(f"{path}: {place} is {options!r}; the one known option is num_bits")
        if re.compile(_checked(path, pattern)).groupindex:
            raise CheckpointError(f"{path}: {place} has a named group, which transformers takes for a rule of its own")
        rules.append((pattern, _bits(path, place, options["num_bits"]) if "num_bits" in options else None))
    try:
        _joined(pattern for pattern, _ in rules)
    except re.error as error:
        # e.g. a flag that may only stand at the start, fine alone
        raise CheckpointError(f"{path}: the patterns of module_quant_configs cannot be joined ({error})") from error
    return tuple(rules)


def _read_skipped(path: Path, value: object) -> tuple[str, ...]:
    if value is None:
        # transformers' own choice where the file names none: the output layer
        return (_OUTPUT_LAYER,)
    if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
        raise CheckpointError(f"{path}: modules_to_not_convert is {value!r}, expected a list of module names")
    return tuple(_checked(path, pattern) for pattern in value)


def _joined(patterns: Any) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<g{index}>{pattern})" for index, pattern in enumerate(patterns)))


def _checked(path: Path, pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise CheckpointError(f"{path}: {pattern!r} is no regular expression ({error})") from error
    return pattern


def _bits(path: Path, place: str, value: object) -> int:
    # bool is an int for Python, and transformers stores any other width as 8 bits without a word.
    if type(value) is not int or value not in BITS:
        raise CheckpointError(f"{path}: {place} asks for {value!r} bits; supported are {', '.join(map(str, BITS))}")
    return value
