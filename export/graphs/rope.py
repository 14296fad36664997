"""Cosines and sines of one position, computed on the CPU and fed to the graph.

Source: transformers' modeling_rope_utils ("default" and "proportional"). Proportional RoPE rotates the first part of
the frequencies of the WHOLE head and leaves the rest at angle 0; it is not the usual partial RoPE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from export.checkpoint.mtp import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> np.ndarray:
    """Inverse frequencies [head_dim / 2], float32; those of unrotated pairs are 0."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = (1.0 / np.float32(rope.theta) ** exponents).astype(np.float32)
    if rope.rope_type == "proportional":
        rotated = int(rope.partial_rotary_factor * head_dim // 2)
        frequencies[rotated:] = 0.0
    return frequencies


def signed_rotation(frequencies: np.ndarray, positions: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin [1, 1, n, head_dim] at n positions; the first half of sin is negated (see blocks.rotate)."""
    angles = np.atleast_1d(np.asarray(positions, np.float32))[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([cos, cos], axis=1)[None, None], np.concatenate([-sin, sin], axis=1)[None, None]
