"""The profiling CSV: one that QNN wrote, and ones that it might write."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from export.errors import CompileError
from export.estimate.profile import Profile, read_profile

from .builders import REAL_CSV

if TYPE_CHECKING:
    from pathlib import Path

MISSING = "Missing Ops (Number of Ops with no Costs associated)"


def changed(tmp_path: Path, pattern: str, replacement: str) -> Path:
    """The recorded CSV with one change, which must change something."""
    text = REAL_CSV.read_text()
    new = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    assert new != text
    path = tmp_path / "profile.csv"
    path.write_text(new)
    return path


def test_a_recorded_profile() -> None:
    """The figures as a person reads them in the file; the compiler's own 3,745,978 us are not among them."""
    assert read_profile(REAL_CSV) == Profile(
        cycles=4_913_703,
        cycles_low=4_783_452,
        cycles_high=5_098_718,
        us=2875,
        us_low=2799,
        us_high=2983,
        input_fill_bytes=135_624_704,
        intermediate_fill_bytes=24_002_560,
        intermediate_spill_bytes=13_320_192,
        output_spill_bytes=5_685_248,
        missing_costs=0,
    )


def test_operations_without_a_cost(tmp_path: Path) -> None:
    path = changed(tmp_path, rf"BACKEND,0,(US,BACKEND,SUB-EVENT,{re.escape(MISSING)})", r"BACKEND,3,\1")
    assert read_profile(path).missing_costs == 3


@pytest.mark.parametrize("unit", ["COUNT", "OBJECT", ""])
def test_the_unit_of_the_count_does_not_matter(tmp_path: Path, unit: str) -> None:
    path = changed(tmp_path, rf"US,(BACKEND,SUB-EVENT,{re.escape(MISSING)})", rf"{unit},\1")
    assert read_profile(path) == read_profile(REAL_CSV)


def test_other_order_and_other_rows_do_not_matter(tmp_path: Path) -> None:
    lines = REAL_CSV.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith("Performance Estimates"))
    shuffled = [*lines[: start + 1], "", "a remark", "0,BACKEND,7,US,BACKEND,SUB-EVENT,News", *lines[:start:-1]]
    (tmp_path / "p.csv").write_text("\r\n".join(shuffled))
    assert read_profile(tmp_path / "p.csv") == read_profile(REAL_CSV)


def test_values_before_the_section_are_not_estimates(tmp_path: Path) -> None:
    row = "0,BACKEND,1,BYTES,BACKEND,SUB-EVENT,Input Fill"
    path = changed(tmp_path, r"\A(.*\n)", rf"\g<1>{row}\n")
    assert read_profile(path).input_fill_bytes == 135_624_704


@pytest.mark.parametrize("content", ["", "Msg Timestamp,Message,Time\n", "\0\xff binary"])
def test_no_estimates_at_all(tmp_path: Path, content: str) -> None:
    (tmp_path / "p.csv").write_text(content)
    with pytest.raises(CompileError, match=r"p\.csv has no section 'Performance Estimates'"):
        read_profile(tmp_path / "p.csv")


def test_the_compilers_own_stages_alone(tmp_path: Path) -> None:
    """What QNN writes for the phones' chips."""
    path = changed(tmp_path, r"^0,BACKEND,0,US,BACKEND,ROOT,Performance Estimates\n(.*\n)*", "")
    with pytest.raises(CompileError, match="gives no estimates for the chip"):
        read_profile(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"wrote no profile at .*p\.csv"):
        read_profile(tmp_path / "p.csv")


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"^.*exec time us \(lower estimate\).*\n", "", r"time us \(lower estimate\)\)' is absent"),
        (r"^.*Simulated \(Accelerator exec time us\)\n", "", r"exec time us\)' is absent"),
        (r"^.*Input Fill\n", "", "'Input Fill' is absent"),
        (r"^.*Missing Ops.*\n", "", "'Missing Ops .* is absent"),
        (r"^(.*Input Fill\n)", r"\1\1", "'Input Fill' is given 2 times"),
        (r"2983,US", "2983,MS", r"\(upper estimate\)\)' is in 'MS'; want 'US'"),
        (r"24002560", "-1", "'Intermediate Fill' is '-1'"),
        (r"24002560", "2.5e7", "'Intermediate Fill' is '2.5e7'"),
        (r"24002560", "nan", "'Intermediate Fill' is 'nan'"),
    ],
)
def test_a_profile_of_another_form(tmp_path: Path, pattern: str, replacement: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        read_profile(changed(tmp_path, pattern, replacement))
