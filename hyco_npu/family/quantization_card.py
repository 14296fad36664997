"""What the SLM's model card says of its quantisation: bits and bytes by module, scales, the cost in acceptance.

Read from the stored checkpoint by the reader that exports it; the figures are handed in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from export.checkpoint.slm import SlmCheckpoint, read_slm_checkpoint
from export.checkpoint.slm_tensors import full_name, linear_shapes, table_shapes, vector_shapes
from hyco_npu.family.stages import CHAIN_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_FORMAT = (
    "Weights are codes with one scale per row, value = code * scale, zero point 0: 2 bits hold -2 to 1, 4 bits -8 to "
    "7. Inputs and outputs of every linear layer with codes are clipped and rounded to 8 bits by stored scales, as "
    "transformers does it; the logits are not. Keys (after rope) and values were rounded to 8 bits in training; "
    "transformers ignores the stored cache scales."
)


def quantization_sections(folder: Path, figures: Mapping[str, object]) -> tuple[str, ...]:
    """Sections of the model card for the checkpoint in `folder`; `figures` are its held-out figures."""
    checkpoint = read_slm_checkpoint(folder)
    return (
        "## Quantisation",
        _FORMAT,
        table(("Modules", "Bits", "Values", "Bytes"), _size_rows(checkpoint)),
        table(("Scale", "Smallest", "Largest"), _scale_rows(checkpoint)),
        "### What it cost in acceptance",
        _cost(figures),
    )


def parameter_count(folder: Path) -> int:
    """Values of the SLM in `folder`, whatever their bits; scales are not counted."""
    config = read_slm_checkpoint(folder).config
    shapes = [*linear_shapes(config).values(), *table_shapes(config).values(), *vector_shapes(config).values()]
    return sum(math.prod(shape) for shape in shapes)


def table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """A Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def _size_rows(checkpoint: SlmCheckpoint) -> list[tuple[object, ...]]:
    """Modules of one kind and width together, with the layers that have that width."""
    tables = table_shapes(checkpoint.config)
    layers: dict[tuple[str, int], list[str]] = {}
    values: dict[tuple[str, int], int] = {}
    for module, shape in (tables | linear_shapes(checkpoint.config)).items():
        coded = checkpoint.bits.table if module in tables else checkpoint.bits.linear
        place, _, inner = module.removeprefix("layers.").partition(".")
        key = (inner.split(".")[0] or place, coded(full_name(checkpoint.prefix, module)) or 16)
        values[key] = values.get(key, 0) + math.prod(shape)
        if inner and place not in layers.setdefault(key, []):
            layers[key].append(place)
    vectors = sum(math.prod(shape) for shape in vector_shapes(checkpoint.config).values())
    rows: list[tuple[object, ...]] = []
    for (kind, bits), count in values.items():
        of_layers = f" of layers {', '.join(layers[kind, bits])}" if (kind, bits) in layers else ""
        width = "bf16" if bits == 16 else bits
        rows.append((f"`{kind}`{of_layers}", width, f"{count:,}", f"{count * bits // 8:,}"))
    return [*rows, ("norms, layer scalars", "bf16", f"{vectors:,}", f"{vectors * 2:,}")]


def _scale_rows(checkpoint: SlmCheckpoint) -> list[tuple[object, ...]]:
    scales = [checkpoint.activation_scales(module) for module in linear_shapes(checkpoint.config)]
    named = {
        "input of a linear layer": [scale for scale, _ in scales if scale is not None],
        "output of a linear layer": [scale for _, scale in scales if scale is not None],
    }
    caches = [checkpoint.cache_scales(layer) for layer in checkpoint.config.cache_owners]
    named |= {"keys of a layer": [keys for keys, _ in caches], "values of a layer": [values for _, values in caches]}
    return [(name, f"{min(values):.4f}", f"{max(values):.4f}") for name, values in named.items()]


def _cost(figures: Mapping[str, object]) -> str:
    before, control, after = (
        _number(figures[f"{name}_accepted_per_round"]) for name in ("slm_float", "slm_control", "slm")
    )
    return (
        f"Of {CHAIN_STEPS} drafted tokens {after:.3f} are accepted per round. The SLM in floats from which this one "
        f"started has {before:.3f}: a loss of {_lost(figures, 'slm_quantization_cost')}. That one lacks the training "
        "of the second stage; trained on for as long with the same batches and rates, but without rounding, it has "
        f"{control:.3f}: a loss of {_lost(figures, 'slm_rounding_cost')}, which is what rounding cost. Intervals are a "
        "bootstrap over the same prompts for both sides; below 0 is a gain."
    )


def _lost(figures: Mapping[str, object], name: str) -> str:
    interval = figures[f"{name}_ci95"]
    assert isinstance(interval, list)
    low, high = (_number(bound) for bound in interval)
    return f"{_number(figures[name]):.3f} (95 % interval {low:.3f} to {high:.3f})"


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
