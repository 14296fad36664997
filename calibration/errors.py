"""Errors of the calibration's files.

HycoError
`-- CalibrationError         ranges, a tokenizer without a chat template
    |-- KeepSetError         a keep set that does not fit its vocabulary, its hash or its required ids
    |-- PromptFileError      a prompt file that cannot be read; names file and line
    |-- SplitError           splits that are incomplete or were changed since they were written
    `-- ResponseFileError    a file of responses that cannot be used, or a half-written one of other settings
"""

from __future__ import annotations

from quant.errors import HycoError


class CalibrationError(HycoError):
    """Calibration data that cannot be used."""


class KeepSetError(CalibrationError):
    """A keep set that is malformed or belongs to something else."""


class PromptFileError(CalibrationError):
    """A prompt file that is absent, empty or has a malformed line."""


class SplitError(CalibrationError):
    """Splits that cannot be made, are incomplete, or are not those that were written."""


class ResponseFileError(CalibrationError):
    """A file of responses that is absent, damaged or belongs to something else."""
