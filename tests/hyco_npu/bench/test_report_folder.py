"""A report appears whole or not at all, and replaces nothing but a report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hyco_npu.bench.report_folder import report_folder, write_report
from hyco_npu.bench.result import evaluate
from quant.errors import UsageError
from tests.hyco_npu.bench import builders

if TYPE_CHECKING:
    from pathlib import Path


def test_a_report_has_all_its_files(tmp_path: Path) -> None:
    out = tmp_path / "reports" / "one"
    result = evaluate(builders.measurement(builders.block()))
    with report_folder(out, force=False) as folder:
        (folder / "raw" / "00-A.jsonl").write_text("{}\n")
        write_report(folder, result)
        assert not out.exists()
    assert sorted(path.name for path in out.iterdir()) == ["raw", "report.html", "result.json", "rounds.csv"]
    assert json.loads((out / "result.json").read_text())["valid"] == result.valid
    assert [path.name for path in out.parent.iterdir()] == ["one"]


def test_a_failure_leaves_nothing_and_the_old_report_stays(tmp_path: Path) -> None:
    out = tmp_path / "one"
    out.mkdir()
    (out / "result.json").write_text("{}")
    with pytest.raises(RuntimeError), report_folder(out, force=True):
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert (out / "result.json").read_text() == "{}"


def test_only_a_report_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "one"
    out.mkdir()
    with pytest.raises(UsageError, match="exists; choose another folder"), report_folder(out, force=False):
        pass
    with pytest.raises(UsageError, match="is no report"), report_folder(out, force=True):
        pass
    (out / "result.json").write_text("{}")
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"holds 'thesis\.tex'"), report_folder(out, force=True):
        pass
    (out / "thesis.tex").unlink()
    with report_folder(out, force=True) as folder:
        (folder / "result.json").write_text('{"new": true}')
    assert json.loads((out / "result.json").read_text()) == {"new": True}
