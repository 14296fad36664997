"""Errors of decoding.

HycoError
`-- DecodeError              a tree, a text or a verifier that decoding cannot go on with
    `-- LogitsError          a verifier's or drafter's scores that are not numbers
"""

from __future__ import annotations

from quant.errors import HycoError


class DecodeError(HycoError):
    """Decoding cannot go on; the message names what was seen."""


class LogitsError(DecodeError):
    """Scores hold NaN, or nothing but minus infinity."""
