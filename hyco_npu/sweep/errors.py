"""Errors of sweeps.

HycoError
`-- SweepError               a setting that failed, a result that cannot be read
"""

from __future__ import annotations

from quant.errors import HycoError


class SweepError(HycoError):
    """A sweep cannot go on; the message names the setting or the file."""
