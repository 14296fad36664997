"""The factor between the compiler's estimate and a phone, as a file: `bench --fit-scale` writes, `estimate` reads it.

Only a valid run on a phone's NPU gives one; docs/bench-report.md has the formula.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from calibration.jsonfile import read_object, write_object
from hyco_npu.bench.estimate_beside import SCALE_FORMULA
from hyco_npu.bench.result import on_npu
from quant.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from hyco_npu.bench.result import BenchResult

_SCHEMA_VERSION: Literal[1] = 1
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ScaleFile(BaseModel):
    """A fitted factor and where it comes from.

    qnn_version: of the compiler whose estimate is scaled. qnn_build: of the library on the phone. bundles: SHA-256 of
    the manifests that were measured, by kind. when: UTC.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    schema_version: Literal[1]
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    formula: str
    provider: Literal["htp"]
    device: str
    soc_model: str | None
    qnn_version: str
    qnn_build: str | None
    perf_mode: str | None
    bundles: dict[Literal["mtp", "slm"], _Sha256]
    when: str


def fit_scale(result: BenchResult, path: Path) -> ScaleFile:
    """Save the factor that bundle pair A implies in its first performance mode; `path` is replaced in one step.

    Raises UsageError where the run gives none: not a phone's NPU, not valid, no or only part of an estimate, an
    estimate with operations that the compiler has no cost for, a place that cannot be written.
    """
    problem = _why_not(result)
    if problem is not None:
        raise UsageError(f"no scale is saved: {problem}")
    beside, run = result.estimate, result.runs[0].run
    assert beside is not None
    assert beside.scale is not None
    pair = next(pair for pair in result.measurement.pairs if pair.label == run.label)
    identity = result.measurement.identity
    file = ScaleFile(
        schema_version=_SCHEMA_VERSION,
        scale=beside.scale,
        formula=SCALE_FORMULA,
        provider="htp",
        device=result.measurement.device,
        soc_model=None if identity is None else identity.soc_model,
        qnn_version=beside.qnn_version,
        qnn_build=run.runner.qnn_build,
        perf_mode=run.perf_mode,
        bundles={"mtp": pair.mtp_sha256, "slm": pair.slm_sha256},
        when=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        write_object(path, file.model_dump())
    except OSError as error:
        raise UsageError(f"the scale cannot be written to {path} ({error.strerror}); choose another place") from error
    return file


def read_scale(path: Path) -> ScaleFile:
    """Read a file that `fit_scale` wrote; raises UsageError for any other."""
    fields = read_object(path, _SCHEMA_VERSION, UsageError)
    try:
        return ScaleFile.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{path} is no scale file: {where}: {first['msg']}; `hyco-npu bench --fit-scale` on a phone writes one"
        ) from error


def _why_not(result: BenchResult) -> str | None:
    beside = result.estimate
    if not on_npu(result):
        return f"these are times of {result.time_label}; only a phone's NPU tells how far the estimate is off"
    if not result.valid:
        return f"the run is not valid ({result.reasons[0]}); repeat it"
    if beside is None:
        return "there is no estimate beside the run; it needs the HTP compiler (onnxruntime-qnn on x86-64 Linux)"
    if beside.missing_kinds:
        return f"the estimate is not of a whole round: no {' and no '.join(beside.missing_kinds)} bundle"
    if beside.unreliable:
        return "the estimate is unreliable: the compiler has no cost for some operations"
    if beside.scale is None:
        missing = ", ".join(graph.graph for graph in beside.graphs if graph.measured is None)
        return f"the timed rounds hold no pass of {missing}, which the estimate's round has"
    return None
