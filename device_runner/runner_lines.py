"""What `hyco_runner bench` prints, line by line, into a measurement's records.

Every line of the runner is one JSON object. Native libraries print beside it, and a device without a second stream
mixes what they print in: lines that do not begin with a brace are theirs, kept in the raw series and otherwise passed
over. Nothing is lost that way, for rounds are numbered and the last line is an end marker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from device_runner.errors import RunnerError
from device_runner.measurement import DraftedTree, GraphLoad, RoundSample, RunnerInfo

if TYPE_CHECKING:
    from device_runner.errors import DeviceError

_SHOWN_CHARACTERS = 200


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Runner(_Line):
    version: str
    provider: str
    ort_version: str | None = None
    abi: str
    qnn_build: str | None = None
    perf_mode: str | None = None
    cpu_mask: str | None = None
    threads: int


class _Load(_Line):
    graph: str
    provider: str
    milliseconds: FiniteFloat = Field(ge=0)
    verify_ms: FiniteFloat = Field(ge=0)


class _Tree(_Line):
    token_ids: tuple[int, ...] = Field(min_length=1)
    parents: tuple[int | None, ...]
    scores: tuple[FiniteFloat, ...]
    sources: tuple[str, ...]

    @model_validator(mode="after")
    def _is_a_tree(self) -> _Tree:
        if len({len(rows) for rows in (self.token_ids, self.parents, self.scores, self.sources)}) != 1:
            raise ValueError("a tree's rows are not all there")
        for row, parent in enumerate(self.parents):
            if (parent is None) != (row == 0) or (parent is not None and not 0 <= parent < row):
                raise ValueError(f"row {row} of a tree follows row {parent}")
        return self


class _Round(_Line):
    number: int = Field(ge=0)
    text: int = Field(ge=0)
    start_ns: int = Field(ge=0)
    total_ms: FiniteFloat = Field(gt=0)
    parts: dict[str, FiniteFloat]
    matched: int | None = Field(default=None, ge=0)
    tree: _Tree


@dataclass(eq=False)
class RunnerLines:
    """One process' lines so far. `name` is the device in messages."""

    name: str
    runner: RunnerInfo | None = None
    loads: list[GraphLoad] = field(default_factory=list)
    rounds: list[RoundSample] = field(default_factory=list)
    error: str | None = None
    exit_code: int | None = None
    _torn: RunnerError | None = None

    def take(self, line: str) -> None:
        """The next line. Raises RunnerError for one that the runner cannot have printed.

        A line that is no whole JSON is held: where it is the last, the link was cut in its middle, and that is told.
        """
        if self._torn is not None:
            raise self._torn
        if not line.startswith("{"):
            return
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            self._torn = self._unreadable(line, str(error))
            return
        try:
            if self.exit_code is not None:
                raise ValueError("it comes after the end marker")
            self._sort(fields)
        except ValidationError as error:
            first = error.errors()[0]
            raise self._unreadable(line, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(line, str(error)) from error

    def require_end(self, rounds: int) -> RunnerInfo:
        """Its description, if it ran to its end with as many rounds.

        Raises RunnerError: its own error, no end marker, another number of rounds.
        """
        if self.error is not None or self.exit_code:
            raise self.failure()
        if self._torn is not None:
            raise self._torn
        if self.exit_code is None:
            raise RunnerError(
                f"the runner on {self.name} ended without its end marker after {len(self.rounds)} of {rounds} rounds: "
                "what it printed is no result"
            )
        if self.runner is None or len(self.rounds) != rounds:
            raise RunnerError(
                f"the runner on {self.name} ended well with {len(self.rounds)} rounds where {rounds} were asked for: "
                "is it of another version?"
            )
        return self.runner

    def failure(self, cause: DeviceError | None = None) -> DeviceError:
        """The error of a run that failed: the runner's own words where it found some, else `cause`."""
        if self.error is None and cause is not None:
            return cause
        told = self.error or f"it ended with {self.exit_code}"
        return RunnerError(f"the runner on {self.name} failed after {len(self.rounds)} rounds: {told}")

    def _unreadable(self, line: str, why: str) -> RunnerError:
        return RunnerError(
            f"the runner on {self.name} printed a line that cannot be read ({why}): {line[:_SHOWN_CHARACTERS]!r}; "
            "is it of another version?"
        )

    def _sort(self, fields: Any) -> None:
        kind = next(iter(fields), None)
        if kind == "runner":
            self.runner = RunnerInfo(**_Runner.model_validate(fields[kind]).model_dump())
        elif kind == "load":
            self.loads.append(GraphLoad(**_Load.model_validate(fields[kind]).model_dump()))
        elif kind == "round":
            self._add(_Round.model_validate(fields[kind]))
        elif kind == "error":
            self.error = str(fields[kind])
        elif fields.get("end") is True:
            self.exit_code = int(fields["exit"])
        else:
            raise ValueError("none of runner, load, round, error and end")

    def _add(self, one: _Round) -> None:
        if one.number != len(self.rounds):
            raise ValueError(f"round {one.number} comes where {len(self.rounds)} is due")
        tree = DraftedTree(**one.tree.model_dump())
        self.rounds.append(RoundSample(one.number, one.text, one.start_ns, one.total_ms, one.parts, one.matched, tree))
