"""What people read: the screen, the CSV, the HTML. The data points are taken out of the files again."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from rich.console import Console

from hyco_npu.bench.report import render, write_csv, write_html
from hyco_npu.bench.result import BenchResult, evaluate
from quant.errors import UsageError

from .builders import STEADY, block, estimate, facts, measurement, rounds, runner

if TYPE_CHECKING:
    from device_runner.measurement import Measurement

SVG = "{http://www.w3.org/2000/svg}"
LABELS = {"cpu": "x86 CPU (cpu), not a phone", "simulator": "x86 HTP simulator, not a phone", "htp": "phone NPU (htp)"}
OTHER_TIMES = [60.0, *np.random.default_rng(1).normal(18, 0.3, 14).tolist()]


def screen(result: BenchResult) -> str:
    console = Console(file=io.StringIO(), width=180)
    render(console, result)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def whole(provider: str = "htp", **changes: Any) -> Measurement:
    """A B B A, a profiled block of A."""
    info = runner(provider)
    timed = [block(label, STEADY if label == "A" else OTHER_TIMES, info=info) for label in "ABBA"]
    return measurement(*timed, block("A", [70.0, *[40.0] * 5], info=info, profiled=True), **changes)


def html_of(result: BenchResult, tmp_path: Path) -> str:
    path = tmp_path / "report.html"
    write_html(result, path)
    assert sorted(tmp_path.iterdir()) == [path]
    return path.read_text(encoding="utf-8")


class Page(HTMLParser):
    """Tags with their attributes, and the text within each id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def data_of(uri: str | None) -> bytes:
    assert uri is not None
    return base64.b64decode(uri.partition(";base64,")[2], validate=True)


def pictures(page: Page) -> dict[str, ElementTree.Element]:
    """The pictures in their order on the page, as SVG trees."""
    found = [ElementTree.fromstring(data_of(image["src"])) for image in page.attributes("img")]
    return dict(zip(("rounds", "parts", "distribution"), found, strict=True))


def marks(svg: ElementTree.Element, gid: str) -> np.ndarray:
    """Where the markers of a line stand: [n, 2], in the picture's points."""
    (group,) = [element for element in svg.iter(f"{SVG}g") if element.get("id") == gid]
    uses = list(group.iter(f"{SVG}use"))
    return np.array([[float(use.attrib["x"]), float(use.attrib["y"])] for use in uses])


@pytest.mark.parametrize("provider", LABELS)
def test_csv_holds_every_sample(provider: str, tmp_path: Path) -> None:
    made = whole(provider)
    path = tmp_path / "rounds.csv"
    write_csv(evaluate(made), path)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    samples = [(place, one, sample) for place, one in enumerate(made.blocks) for sample in one.rounds]
    assert len(rows) == len(samples)
    of_time = f" [{LABELS[provider]}]"
    for row, (place, one, sample) in zip(rows, samples, strict=True):
        assert (row["label"], row["provider"], row["block"]) == (one.bundle, provider, str(place))
        assert row["perf_mode"] == (one.runner.perf_mode or "")
        assert (row["profiled"], row["warm_up"]) == (str(int(one.profiled)), str(int(sample.number == 0)))
        assert (int(row["number"]), int(row["text"]), int(row["start_ns"])) == (sample.number, 0, sample.start_ns)
        assert float(row[f"total_ms{of_time}"]) == sample.total_ms
        for name, ms in sample.parts.items():
            assert float(row[f"{name}_ms{of_time}"]) == ms
        assert float(row[f"other_ms{of_time}"]) == pytest.approx(sample.total_ms / 64)
        assert int(row["matched"]) == sample.matched
        heat = ("0", "0", "30.0", "33.0") if provider == "htp" else ("", "", "", "")
        assert tuple(row[name] for name in [*row][-4:]) == heat
    assert all("_ms" not in name or name.endswith(of_time) for name in rows[0])


def test_csv_leaves_absent_values_empty(tmp_path: Path) -> None:
    odd = replace(rounds(STEADY, matched=lambda _: None)[1], parts={"prefill": 3.0}, number=13, start_ns=10**9)
    made = measurement(block(rounds=(*rounds(STEADY, matched=lambda _: None), odd)))
    write_csv(evaluate(made), tmp_path / "rounds.csv")
    rows = list(csv.DictReader((tmp_path / "rounds.csv").read_text().splitlines()))
    of_time = " [phone NPU (htp)]"
    assert rows[0][f"prefill_ms{of_time}"] == rows[-1][f"tree_ms{of_time}"] == rows[0]["matched"] == ""
    assert rows[-1][f"prefill_ms{of_time}"] == "3.0"


@pytest.mark.parametrize("write", [write_csv, write_html])
def test_a_place_that_cannot_be_written(write: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write(evaluate(measurement(block())), tmp_path / "none" / "file")


def test_html_needs_no_other_file(tmp_path: Path) -> None:
    page = Page(html_of(evaluate(whole(), estimate=estimate()), tmp_path))
    sources = [image["src"] for image in page.attributes("img")] + [link["href"] for link in page.attributes("a")]
    assert len(sources) == 4
    assert all(str(source).startswith("data:") for source in sources)
    assert [dict(tag) for tag in page.attributes("script")] == [{"type": "application/json", "id": "result"}]
    assert page.attributes("link") == []


def test_html_holds_the_raw_series(tmp_path: Path) -> None:
    """The linked CSV is that of `write_csv`, the JSON is the result's."""
    result = evaluate(whole())
    text = html_of(result, tmp_path)
    (link,) = Page(text).attributes("a")
    write_csv(result, tmp_path / "rounds.csv")
    assert data_of(link["href"]) == (tmp_path / "rounds.csv").read_bytes()
    assert link["download"] == "rounds.csv"
    held = re.search(r'id="result">(.*?)</script>', text, re.DOTALL)
    assert held is not None
    assert json.loads(held.group(1)) == json.loads(json.dumps(result.to_json()))


def test_the_picture_of_rounds_holds_the_data_points(tmp_path: Path) -> None:
    """Heights are one linear function of the times, places one of the rounds' order; warm-up is drawn apart."""
    made = measurement(block("A", [30.0, *STEADY[1:]]), block("B", [30.0, *OTHER_TIMES[1:]]))
    svg = pictures(Page(html_of(evaluate(made), tmp_path)))["rounds"]
    points, times = [], []
    for place, one in enumerate(made.blocks):
        warm, timed = marks(svg, f"block-{place}-warm-up"), marks(svg, f"block-{place}-timed")
        assert (len(warm), len(timed)) == (1, len(one.rounds) - 1)
        points += [*warm, *timed]
        times += [sample.total_ms for sample in one.rounds]
    drawn = np.array(points)
    slope, offset = np.polyfit(times, drawn[:, 1], 1)
    assert slope < 0
    assert drawn[:, 1] == pytest.approx(slope * np.array(times) + offset, abs=0.01)
    steps = np.diff(drawn[:, 0])
    assert steps == pytest.approx(np.full(len(steps), steps[0]), abs=0.01)


def test_the_picture_of_rounds_holds_the_temperature(tmp_path: Path) -> None:
    """Skin before and after each block, 30, 34, 31 and 35 °C, at the blocks' edges."""
    one = block(before=facts(skin_c=30.0), after=facts(skin_c=34.0))
    other = block(before=facts(skin_c=31.0), after=facts(skin_c=35.0))
    text = html_of(evaluate(measurement(one, other)), tmp_path)
    drawn = marks(pictures(Page(text))["rounds"], "skin")
    heights = drawn[:, 1]
    assert (heights[0] - heights) / (heights[0] - heights[3]) == pytest.approx([0, 0.8, 0.2, 1.0], abs=0.001)
    assert drawn[1, 0] == pytest.approx(drawn[2, 0])
    assert "does not tell its temperature" not in text


def test_a_slow_first_round_is_drawn_on_a_logarithmic_axis(tmp_path: Path) -> None:
    """1000 ms beside 20: all points are in the picture, and their heights go with the logarithm."""
    made = measurement(block("A", [1000.0, *STEADY[1:]]))
    svg = pictures(Page(html_of(evaluate(made), tmp_path)))["rounds"]
    drawn = np.concatenate([marks(svg, "block-0-warm-up"), marks(svg, "block-0-timed")])
    times = np.log([1000.0, *STEADY[1:]])
    slope, offset = np.polyfit(times, drawn[:, 1], 1)
    assert drawn[:, 1] == pytest.approx(slope * times + offset, abs=0.01)


def test_the_picture_of_parts(tmp_path: Path) -> None:
    """Stacked bars: heights in the proportion of the medians, for A and for B."""
    result = evaluate(measurement(block("A"), block("B", [60.0, *[10.0] * 12])))
    svg = pictures(Page(html_of(result, tmp_path)))["parts"]
    heights = {}
    for group in svg.iter(f"{SVG}g"):
        name = group.get("id") or ""
        if name.startswith("part-"):
            (path,) = group.iter(f"{SVG}path")
            numbers = np.array(re.findall(r"-?\d+\.?\d*", path.attrib["d"]), float).reshape(-1, 2)
            heights[name] = np.ptp(numbers[:, 1])
    assert len(heights) == 2 * 6
    for name, share in {"slm_pass_1": 0.5, "mtp_step_1": 0.125, "tables": 0.125, "other": 1 / 64}.items():
        assert heights[f"part-{name}-0"] / heights["part-slm_pass_1-0"] == pytest.approx(share / 0.5, abs=1e-3)
        assert heights[f"part-{name}-1"] / heights[f"part-{name}-0"] == pytest.approx(0.5, abs=1e-3)
    assert len(marks(svg, "round-medians")) == 2


def test_pictures_are_the_same_each_time(tmp_path: Path) -> None:
    result = evaluate(whole())
    assert html_of(result, tmp_path) == html_of(result, tmp_path)


@pytest.mark.parametrize("provider", ["cpu", "simulator"])
def test_every_time_off_the_phone_says_so(provider: str, tmp_path: Path) -> None:
    """No title of times without the label; neither the phone's label nor the paper's figures appear."""
    result = evaluate(whole(provider), estimate=estimate())
    shown, text = screen(result), html_of(result, tmp_path)
    for line in shown.splitlines():
        if re.search(r"\d ms\b|: ms", line):
            assert LABELS[provider] in line
    captions = re.findall(r"<caption>(.*?)</caption>", text)
    assert len(captions) == 4
    assert all(LABELS[provider] in caption for caption in captions)
    for page in (shown, text):
        assert "phone NPU (htp)" not in page
        assert "Galaxy S26 Ultra" not in page
        assert "not measured" in page
        assert "No factor is given" in page
    assert "does not tell its temperature" in text


def test_the_phones_report(tmp_path: Path) -> None:
    result = evaluate(whole(usb_powered=True), estimate=estimate())
    shown, text = screen(result), html_of(result, tmp_path)
    assert shown.startswith("VALID\n")
    for page in (shown, text):
        assert "paper, Galaxy S26 Ultra, derived" in page
        assert "38" in page
        assert "52.9" in page
        assert "fed by USB" in page
        assert "estimate (proxy chip)" in page
        assert f"B / A, burst: {np.median(OTHER_TIMES[1:13]) / 20:.3f} (" in page
        assert "profiled" in page
    assert "1.250" in shown
    assert re.search(r"│ round +│ 20\.000 │ 20\.500 │ 20\.500 │ 19\.500 │ 20\.500 │ 24 │", shown)
    assert '<section class="verdict valid" id="verdict">' in text


def test_an_invalid_run_says_why_first(tmp_path: Path) -> None:
    hot = block(before=facts(1), after=facts(2))
    result = evaluate(measurement(block(), hot))
    shown, text = screen(result), html_of(result, tmp_path)
    lines = shown.splitlines()
    assert lines[0] == "INVALID"
    assert lines[1] == "- A, burst: block 1: the thermal status changed from 1 (light) to 2 (moderate); want no change"
    assert "INVALID: A, burst: ms, phone NPU (htp)" in shown
    assert '<section class="verdict invalid" id="verdict">' in text
    for reason in result.reasons:
        assert f"<li>{reason}</li>" in text


def test_what_a_device_says_is_no_markup(tmp_path: Path) -> None:
    """A serial and a path may hold anything; rich's and HTML's markup is shown, not obeyed."""
    evil = "<script>x</script> [bold]R5 & Co"
    made = measurement(block(), device=evil, rounds_file=Path("[red]</script><b>.safetensors"))
    result = evaluate(made)
    text = html_of(result, tmp_path)
    assert "<script>x" not in text
    assert len(re.findall(r"<script", text)) == 1
    assert "&lt;script&gt;x&lt;/script&gt; [bold]R5 &amp; Co" in text
    assert evil in screen(result)


def test_a_run_without_figures_is_shown(tmp_path: Path) -> None:
    result = evaluate(measurement(block(times=[50.0])), estimate=estimate())
    assert "0 timed rounds after warm-up" in screen(result)
    assert "0 timed rounds after warm-up" in html_of(result, tmp_path)
