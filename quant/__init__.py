"""Arithmetic of quantisation on torch tensors: schemes, clip search, packing, embedding tables, fake quantisation.

Knows nothing of checkpoints, graphs or devices; export and training call the same functions.
"""

from __future__ import annotations
