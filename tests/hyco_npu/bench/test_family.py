"""Bundles that are not named: exported once, kept whole, exported again where they were damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from export.bundle import open_bundle
from export.errors import BundleError, CompileError
from hyco_npu.bench import family
from quant.errors import UsageError
from tests.device_runner.native import real_bundles
from tests.device_runner.native.real_bundles import make_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CONFIG: dict[str, Any] = {"mtp": {}, "slm": {}}


def quiet(text: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The exports that were made: small bundles stand for the family's."""
    made: list[str] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def export(kind: str) -> Callable[..., None]:
        def run(options: Any, progress: Any) -> None:
            made.append(kind)
            source = make_pair(tmp_path / f"source{len(made)}", CONFIG)
            (source.mtp if kind == "mtp" else source.slm).rename(options.out)

        return run

    for kind in ("mtp", "slm"):
        monkeypatch.setattr(family, f"export_{kind}", export(kind))
    return made


def test_the_family_is_exported_once(exports: list[str], tmp_path: Path) -> None:
    folder = family.family_bundles(quiet)
    assert family.family_bundles(quiet) == folder
    assert exports == ["mtp", "slm"]
    assert folder.is_relative_to(tmp_path / "cache/hyco-npu/family")
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_damaged_bundles_are_exported_again(exports: list[str]) -> None:
    folder = family.family_bundles(quiet)
    table = folder / "slm/table.safetensors"
    table.write_bytes(table.read_bytes()[:-1])
    assert family.family_bundles(quiet) == folder
    assert exports == ["mtp", "slm"] * 2
    (folder / "mtp/manifest.json").unlink()
    family.family_bundles(quiet)
    assert exports == ["mtp", "slm"] * 3


def test_an_export_that_fails_leaves_nothing(
    exports: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(options: Any, progress: Any) -> None:
        raise CompileError("the compiler crashed")

    monkeypatch.setattr(family, "export_slm", fail)
    with pytest.raises(CompileError):
        family.family_bundles(quiet)
    assert list((tmp_path / "cache/hyco-npu/family").iterdir()) == []


def test_named_bundles_are_taken_and_the_second_pair_has_one_of_its_own(exports: list[str], tmp_path: Path) -> None:
    first, second = make_pair(tmp_path / "1", CONFIG), make_pair(tmp_path / "2", CONFIG)
    (only,) = family.chosen_pairs(first.mtp, first.slm, None, quiet)
    assert (only.label, only.mtp.folder, only.slm.folder) == ("A", first.mtp, first.slm)
    _, head = family.chosen_pairs(first.mtp, first.slm, second.mtp, quiet)
    assert (head.label, head.mtp.folder, head.slm.folder) == ("B", second.mtp, first.slm)
    _, slm = family.chosen_pairs(first.mtp, first.slm, second.slm, quiet)
    assert (slm.mtp.folder, slm.slm.folder) == (first.mtp, second.slm)
    assert exports == []
    mixed = family.chosen_pairs(first.mtp, None, None, quiet)[0]
    assert mixed.slm.folder == family.family_bundles(quiet) / "slm"


def test_bundles_of_the_wrong_kind_or_vocabulary_are_refused(
    exports: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_pair(tmp_path / "1", CONFIG)
    with pytest.raises(UsageError, match=r"--mtp-bundle .* is a bundle of kind 'slm'"):
        family.chosen_pairs(made.slm, made.slm, None, quiet)
    with pytest.raises(BundleError, match="no bundle at"):
        family.chosen_pairs(made.mtp, made.slm, tmp_path / "none", quiet)
    from dataclasses import replace

    monkeypatch.setattr(
        real_bundles, "SIZES", replace(real_bundles.SIZES, vocabulary=240, table_rows=240, distinct_rows=240)
    )
    other = make_pair(tmp_path / "2", CONFIG)
    assert open_bundle(other.mtp).manifest.keep_set.vocab_size == 240
    with pytest.raises(UsageError, match=r"--against .* is for a vocabulary of 240"):
        family.chosen_pairs(made.mtp, made.slm, other.mtp, quiet)
