"""What one check finds, and the rule that a broken world is a finding and not an exception.

A check looks at one thing and knows no other check. This module does not know what is looked at.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from device_runner.doctor.errors import UnansweredError
from quant.errors import HycoError

if TYPE_CHECKING:
    from collections.abc import Callable

_LOG = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")


class Status(str, Enum):
    """How a check ended; a check that could not be made says why."""

    OK = "ok"
    PROBLEM = "problem"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True)
class Finding:
    """A check's result before it has a name."""

    status: Status
    found: str
    what_to_do: str | None = None


@dataclass(frozen=True)
class Check:
    """A check's result: what was found, and what to do about it (None: nothing, or `found` says it)."""

    name: str
    status: Status
    found: str
    what_to_do: str | None


def ok(found: str, what_to_do: str | None = None) -> Finding:
    """As it should be."""
    return Finding(Status.OK, found, what_to_do)


def problem(found: str, what_to_do: str) -> Finding:
    """Something that keeps the product, or a measurement, from working."""
    return Finding(Status.PROBLEM, found, what_to_do)


def not_checked(why: str, what_to_do: str | None = None) -> Finding:
    """Nothing can be said, because of `why`."""
    return Finding(Status.NOT_CHECKED, why, what_to_do)


def examine(name: str, look: Callable[[], Finding]) -> Check:
    """Make one check; whatever it raises becomes its result."""
    return examine_value(name, lambda: (look(), None))[0]


def examine_value(name: str, look: Callable[[], tuple[Finding, _Value | None]]) -> tuple[Check, _Value | None]:
    """Make a check that also gives later ones something to work with; None where it failed."""
    value: _Value | None = None
    try:
        finding, value = look()
    except UnansweredError as error:
        finding = not_checked(str(error))
    except HycoError as error:
        # The messages of our own errors say what to do.
        finding = Finding(Status.PROBLEM, str(error))
    except Exception as error:  # what else is broken is what this is for
        _LOG.debug("check %r failed", name, exc_info=True)
        finding = problem(f"{type(error).__name__}: {error}", "`hyco-npu --verbose doctor` shows where this happened")
    _LOG.debug("%s: %s: %s", name, finding.status.value, finding.found)
    return Check(name, finding.status, finding.found, finding.what_to_do), value


def named(name: str) -> Callable[[Callable[_Arguments, Finding]], Callable[_Arguments, Check]]:
    """Turn a function that gives a finding into a check of that name."""

    def decorate(look: Callable[_Arguments, Finding]) -> Callable[_Arguments, Check]:
        @functools.wraps(look)
        def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Check:
            return examine(name, lambda: look(*args, **kwargs))

        return checked

    return decorate
