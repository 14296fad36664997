"""Bundles and the runner's folder, whole and broken, without a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from device_runner.doctor.check import Check, Status
from device_runner.doctor.pieces import bundle_fits, open_pieces, stub_and_skeleton
from export.bundle import TargetStatus
from export.engines.htp import TARGETS
from tests.export.bundle.builders import write_example

from .conftest import BUILD, OTHER_BUILD

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from device_runner.runner_folder import RunnerFolder

SM8850, SM8750 = TARGETS["sm8850"], TARGETS["sm8750"]
ALL = {f"libQnnHtp{part}.so": BUILD for part in ("", "V81Stub", "V81Skel")}


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def test_pieces_that_fit(tmp_path: Path, write_runner: Callable[..., RunnerFolder]) -> None:
    write_example(tmp_path / "mtp.bundle")
    checks, bundles, runner = open_pieces([tmp_path / "mtp.bundle"], write_runner().folder)
    found = by_name(checks)
    name = f"bundle {tmp_path / 'mtp.bundle'}"
    assert list(found) == [name, "runner", f"{name}: age of QNN"]
    assert {check.status for check in checks} == {Status.OK}
    assert "compiled for sm8850 by QNN 2.51.0" in found[name].found
    assert f"arm64-v8a, ONNX Runtime 1.32.0, QNN {BUILD}, providers: htp" in found["runner"].found
    assert found[f"{name}: age of QNN"].found == f"runtime {BUILD}, binaries 2.51.0"
    assert [bundle.folder.name for bundle in bundles] == ["mtp.bundle"]
    assert runner is not None


def test_pieces_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    checks, bundles, runner = open_pieces([tmp_path / "gone", tmp_path / "empty"], tmp_path / "gone")
    assert [check.status for check in checks] == [Status.PROBLEM] * 3
    assert "there is no such folder" in checks[0].found
    assert "it has no manifest.json" in checks[1].found
    assert "no runner at" in checks[2].found
    assert (bundles, runner) == ((), None)


def test_no_runner_given(tmp_path: Path) -> None:
    write_example(tmp_path / "mtp.bundle")
    checks, _, runner = open_pieces([tmp_path / "mtp.bundle"], None)
    assert [check.status for check in checks] == [Status.OK, Status.NOT_CHECKED, Status.NOT_CHECKED]
    assert runner is None
    assert stub_and_skeleton(None, SM8850).status is Status.NOT_CHECKED


def test_a_runner_with_a_changed_file(tmp_path: Path, write_runner: Callable[..., RunnerFolder]) -> None:
    folder = write_runner().folder
    (folder / "hyco_runner").write_bytes(b"\x7fELG\0")
    checks, _, _ = open_pieces([], folder)
    assert checks[0].status is Status.PROBLEM
    assert "hyco_runner" in checks[0].found


@pytest.mark.parametrize(
    ("build", "status", "found"),
    [
        ("v2.51.0.260929181845", Status.OK, "runtime v2.51.0.260929181845, binaries 2.51.0"),
        ("v2.52.1.261001000000", Status.OK, "runtime v2.52.1.261001000000"),
        ("v2.49.0.260601120000", Status.PROBLEM, "compiled by QNN 2.51.0, the runtime is QNN v2.49.0.260601120000"),
        (None, Status.NOT_CHECKED, "carries no QNN"),
    ],
)
def test_age_of_the_runtime(
    tmp_path: Path, write_runner: Callable[..., RunnerFolder], build: str | None, status: Status, found: str
) -> None:
    write_example(tmp_path / "mtp.bundle")
    checks, _, _ = open_pieces([tmp_path / "mtp.bundle"], write_runner(qnn_build=build).folder)
    assert checks[-1].status is status
    assert found in checks[-1].found


def test_a_bundle_for_no_chip(tmp_path: Path, write_runner: Callable[..., RunnerFolder]) -> None:
    bundle = write_example(tmp_path / "mtp.bundle", targets=())
    checks, _, _ = open_pieces([bundle.folder], write_runner().folder)
    assert "compiled for no chip" in checks[0].found
    assert (checks[-1].status, checks[-1].found) == (Status.NOT_CHECKED, "the bundle holds no compiled graph")


def test_bundle_against_the_chip(tmp_path: Path) -> None:
    bundle = write_example(tmp_path / "mtp.bundle")
    check = bundle_fits(bundle, SM8850)
    assert (check.name, check.status) == (f"bundle {bundle.folder}: chip", Status.OK)
    assert check.found == "compiled for sm8850 (soc_model 87, v81)"
    check = bundle_fits(bundle, SM8750)
    assert check.status is Status.PROBLEM
    assert "is compiled for sm8850, not for sm8750: export with --target sm8750" in check.found
    assert bundle_fits(bundle, None).status is Status.NOT_CHECKED


def test_bundle_of_another_architecture(tmp_path: Path) -> None:
    wrong = TargetStatus(
        target="sm8850", soc_model=87, htp_arch="v79", qnn_version="2.51.0", compiled=True, simulated=False
    )
    check = bundle_fits(write_example(tmp_path / "mtp.bundle", targets=(wrong,)), SM8850)
    assert check.status is Status.PROBLEM
    assert "htp_arch for sm8850 is v79, the device's is v81" in check.found


@pytest.mark.parametrize(
    ("builds", "status", "found"),
    [
        (ALL, Status.OK, f"libQnnHtpV81Stub.so {BUILD}, libQnnHtpV81Skel.so {BUILD}, libQnnHtp.so {BUILD}"),
        ({**ALL, "libQnnHtpV81Stub.so": "260929181845"}, Status.OK, "libQnnHtpV81Stub.so 260929181845"),
        ({**ALL, "libQnnHtpV81Skel.so": OTHER_BUILD}, Status.PROBLEM, f"libQnnHtpV81Skel.so {OTHER_BUILD}"),
        ({**ALL, "libQnnHtpV81Skel.so": "none"}, Status.NOT_CHECKED, "libQnnHtpV81Skel.so unknown"),
        (
            {"libQnnHtp.so": BUILD, "libQnnHtpV79Stub.so": BUILD, "libQnnHtpV79Skel.so": BUILD},
            Status.PROBLEM,
            "libQnnHtpV81Stub.so, libQnnHtpV81Skel.so missing",
        ),
    ],
)
def test_stub_and_skeleton(
    write_runner: Callable[..., RunnerFolder], builds: dict[str, str], status: Status, found: str
) -> None:
    check = stub_and_skeleton(write_runner(builds), SM8850)
    assert check.status is status
    assert found in check.found


def test_stub_and_skeleton_without_a_phone(write_runner: Callable[..., RunnerFolder]) -> None:
    assert stub_and_skeleton(write_runner(ALL), None).status is Status.OK


def test_a_runner_for_no_phone(write_runner: Callable[..., RunnerFolder]) -> None:
    check = stub_and_skeleton(write_runner({"libQnnHtp.so": BUILD}, htp_archs=()), None)
    assert check.status is Status.NOT_CHECKED
    assert "is for no phone's NPU" in check.found


def test_two_bundles_of_one_name(tmp_path: Path) -> None:
    """A and B of a comparison often have the same name in two folders."""
    folders = [tmp_path / letter / "mtp.bundle" for letter in "ab"]
    for folder in folders:
        folder.parent.mkdir()
        write_example(folder)
    checks, bundles, _ = open_pieces(folders, None)
    assert len({check.name for check in checks}) == len(checks) == 5
    assert [bundle.folder for bundle in bundles] == folders
