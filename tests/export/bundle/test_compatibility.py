"""A bundle for another chip, an older QNN or another keep set is refused on the host."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from calibration.keepset import KeepSet
from export.bundle import Bundle, KeepSetInfo, RuntimeTarget, open_bundle, require_keep_set, require_target
from export.bundle.compatibility import parse_version
from export.errors import BundleError

from .builders import KEEP_SET, SHA_A, example_manifest

if TYPE_CHECKING:
    from pathlib import Path

PHONE = RuntimeTarget("sm8850", 87, "v81", "2.51.0")


@dataclass(frozen=True)
class Identity:
    sha256: str = KEEP_SET.sha256
    size: int = 4
    vocab_size: int = 107


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle(tmp_path, example_manifest())


@pytest.mark.parametrize("version", [None, "2.51", "2.51.0", "v2.51.0.260115", "2.51.1", "2.100.0", "3.0.0"])
def test_fits(bundle: Bundle, version: str | None) -> None:
    status = require_target(bundle, replace(PHONE, qnn_version=version))
    assert (status.target, status.soc_model, status.measured_on_device) == ("sm8850", 87, "not measured")


@pytest.mark.parametrize(
    ("phone", "message"),
    [
        (replace(PHONE, htp_arch="v79"), "htp_arch for sm8850 is v81, the device's is v79"),
        (replace(PHONE, soc_model=69), "soc_model for sm8850 is 87, the device's is 69"),
        (replace(PHONE, target="sm8650"), "compiled for sm8850, not for sm8650: export with --target sm8650"),
        (replace(PHONE, target="sm8750", soc_model=69, htp_arch="v79"), "compiled for sm8850, not for sm8750"),
        (replace(PHONE, qnn_version="2.50.9"), "compiled by QNN 2.51.0, the runtime is QNN 2.50.9"),
        (replace(PHONE, qnn_version="2.9.0"), "update the runtime"),
        (replace(PHONE, qnn_version="1.99"), "update the runtime"),
        (replace(PHONE, qnn_version="unknown"), "cannot be read"),
    ],
)
def test_does_not_fit(bundle: Bundle, phone: RuntimeTarget, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        require_target(bundle, phone)


def test_manifest_edited_to_another_arch(tmp_path: Path) -> None:
    value = json.loads(example_manifest(table=None, graphs=()).to_json())
    value["files"] = [{"path": "keep_set.json", "size_bytes": 0, "sha256": SHA_A}]
    value["targets"][0]["htp_arch"] = "v79"
    (tmp_path / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(BundleError, match="htp_arch for sm8850 is v79, the device's is v81"):
        require_target(open_bundle(tmp_path), PHONE)


def test_nothing_compiled(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="compiled for no target"):
        require_target(Bundle(tmp_path, example_manifest(targets=())), PHONE)


def test_keep_set_that_fits(bundle: Bundle) -> None:
    require_keep_set(bundle, Identity())


@pytest.mark.parametrize(
    ("keep_set", "message"),
    [
        (Identity(sha256=SHA_A), f"sha256 is {SHA_A}, the manifest says {KEEP_SET.sha256}"),
        (Identity(size=5), "number of ids is 5, the manifest says 4"),
        (Identity(vocab_size=151936), "vocabulary size is 151936, the manifest says 107"),
    ],
)
def test_keep_set_of_another_run(bundle: Bundle, keep_set: Identity, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        require_keep_set(bundle, keep_set)


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.51", (2, 51, 0)), ("2.51.3", (2, 51, 3)), ("v2.9.1.250101", (2, 9, 1)), (" 2.51.0-rc1\n", (2, 51, 0))],
)
def test_parse_version(text: str, version: tuple[int, int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "2", "latest", "x2.51"])
def test_parse_version_refuses(text: str) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        parse_version(text)


def test_keep_set_of_calibration(tmp_path: Path) -> None:
    kept = KeepSet(np.array([1, 5, 9, 106]), 107)
    info = KeepSetInfo(file="keep_set.json", size=4, sha256=kept.sha256, vocab_size=107)
    bundle = Bundle(tmp_path, example_manifest(keep_set=info))
    require_keep_set(bundle, kept)
    with pytest.raises(BundleError, match="sha256"):
        require_keep_set(bundle, KeepSet(np.array([1, 5, 10, 106]), 107))
