"""Errors of the calibration's files.

HycoError
`-- CalibrationError         ranges, a tokenizer without a chat template
    |-- KeepSetError         a keep set that does not fit its vocabulary, its hash or its required ids
    `-- PromptFileError      a prompt file that cannot be read; names file and line
"""

from __future__ import annotations

from quant.errors import HycoError


class CalibrationError(HycoError):
    """Calibration data that cannot be used."""


class KeepSetError(CalibrationError):
    """A keep set that is malformed or belongs to something else."""


class PromptFileError(CalibrationError):
    """A prompt file that is absent, empty or has a malformed line."""
