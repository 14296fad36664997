"""The HTML report: one file without anything outside it; the raw series lies in it as CSV and as JSON."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from hyco_npu.bench import cells, plots
from hyco_npu.bench.csv_file import csv_text
from hyco_npu.bench.estimate_beside import PAPER_LABEL, SCALE_FORMULA
from hyco_npu.bench.summary import RATIO_METHOD, TOKENS_METHOD

if TYPE_CHECKING:
    from hyco_npu.bench.result import BenchResult

_TEMPLATE = "report.html.j2"


def html_text(result: BenchResult) -> str:
    """The page. Everything that came from a device or a path is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hyco_npu.bench"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(_TEMPLATE).render(
        result=result,
        cells=cells,
        record=result.to_json(),
        pictures=_pictures(result),
        csv=_data_uri(csv_text(result.measurement).encode(), "text/csv"),
        notes={"ratio": RATIO_METHOD, "tokens": TOKENS_METHOD, "scale": SCALE_FORMULA, "paper": PAPER_LABEL},
    )


def _pictures(result: BenchResult) -> list[tuple[str, str, str]]:
    """(id, caption, data URI) of each picture."""
    temperature = "" if plots.has_temperature(result.measurement) else " The device does not tell its temperature."
    drawn = [
        ("rounds", f"Round time over iterations, blocks shaded, warm-up hollow.{temperature}", plots.rounds_svg),
        (
            "parts",
            "Parts of a round: their medians on each other, which need not add up to the round's median (diamond).",
            plots.parts_svg,
        ),
        ("distribution", "Share of timed rounds that took at most so long.", plots.distribution_svg),
    ]
    return [(name, caption, _data_uri(draw(result), "image/svg+xml")) for name, caption, draw in drawn]


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
