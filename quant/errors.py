"""The root of the project's exception tree, and the errors of the arithmetic.

    HycoError                    exit code 1: the work failed
    |-- UsageError               exit code 2: the command or its options were wrong
    `-- QuantError               quantisation refused its input
        |-- PackingError         codes that do not fit their bits, packed bytes of the wrong length
        |-- TokenIdError         a token id that the embedding table does not hold
        `-- TableFileError       an embedding table file that cannot be used

Every package derives its own errors from `HycoError`; a message says what broke, the value seen and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class HycoError(Exception):
    """Anything that this project reports to its user; `exit_code` is what the CLI ends with."""

    exit_code: ClassVar[int] = 1


class UsageError(HycoError):
    """A wrong option, argument or combination of them."""

    exit_code: ClassVar[int] = 2


class QuantError(HycoError):
    """A tensor, scale or type that the arithmetic cannot work with."""


class PackingError(QuantError):
    """Codes outside their type, or packed bytes whose length does not match the count."""


class TokenIdError(QuantError):
    """A token id that a table does not hold."""


class TableFileError(QuantError):
    """An embedding table file that is absent, damaged or of another schema."""
