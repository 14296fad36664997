"""What is brought to a device: only what a provider opens, and only what fits the device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from device_runner.admission import admit, device_abis, runners_for
from device_runner.devices import Identity
from device_runner.errors import FactError
from device_runner.native_errors import RunnerFolderError
from device_runner.staging import Pair, StagedPair, provider_files, stage, stage_rounds
from export.bundle import open_bundle
from export.bundle.manifest import TargetStatus
from export.errors import BundleError
from quant.errors import HycoError, UsageError
from tests.device_runner.native.real_bundles import alter, make_pair
from tests.device_runner.scripted_runner import scripted_runner

if TYPE_CHECKING:
    from pathlib import Path

    from device_runner.runner_folder import RunnerFolder

PHONE = Identity("SM_S948", "SM8850", None, "16", "arm64-v8a", None)
QNN = "v2.51.0.260929181845"
COMPILED = TargetStatus(target="sm8850", soc_model=87, htp_arch="v81", qnn_version=QNN, compiled=True, simulated=False)


def touch_graphs(folder: Path, prefix: str = "") -> None:
    """Name compiled graphs in a manifest: their files are those of the QDQ graphs."""
    manifest = open_bundle(folder).manifest
    graphs = tuple(
        graph.model_copy(update={"files": {**graph.files, f"{prefix}context": graph.files["qdq"]}})
        for graph in manifest.graphs
    )
    alter(folder, graphs=graphs, targets=(COMPILED,))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Two small bundles, not compiled."""
    made = make_pair(tmp_path, {"mtp": {}, "slm": {}})
    return Pair("A", open_bundle(made.mtp), open_bundle(made.slm))


@pytest.fixture
def compiled(pair: Pair) -> Pair:
    """As `pair`, said to be compiled for SM8850."""
    for bundle in pair.bundles:
        touch_graphs(bundle.folder)
    return Pair("A", *(open_bundle(bundle.folder) for bundle in pair.bundles))


@pytest.fixture
def phone_runner(tmp_path: Path) -> RunnerFolder:
    return scripted_runner(
        tmp_path / "phone-runner", abi="arm64-v8a", qnn_build=QNN, providers=("cpu", "htp"), htp_archs=("v81",)
    )


def test_the_cpu_reads_the_quantised_graphs_with_their_weights(pair: Pair) -> None:
    assert provider_files(pair.mtp, "cpu") == (
        "graphs/mtp_step.onnx",
        "keep_set.json",
        "manifest.json",
        "table.safetensors",
    )
    assert provider_files(pair.slm, "cpu") == (
        "graphs/draft.onnx",
        "graphs/draft.weights",
        "graphs/prefill.onnx",
        "graphs/prefill.weights",
        "keep_set.json",
        "manifest.json",
        "per_layer_table.safetensors",
        "table.safetensors",
    )


def test_the_other_providers_read_compiled_graphs(pair: Pair) -> None:
    for provider in ("htp", "simulator"):
        with pytest.raises(BundleError, match=f"mtp_step.*no 'context' file, which the provider {provider} opens"):
            provider_files(pair.mtp, provider)  # type: ignore[arg-type]
    with pytest.raises(BundleError, match=r"draft.*no 'simulator_context' file"):
        provider_files(pair.slm, "simulator")
    for bundle, prefix in ((pair.mtp, ""), (pair.slm, ""), (pair.slm, "simulator_")):
        touch_graphs(bundle.folder, prefix)
    assert "graphs/mtp_step.onnx" in provider_files(open_bundle(pair.mtp.folder), "simulator")
    # prefill is quicker on the CPU than simulated: its quantised graph is what is read
    assert "graphs/prefill.weights" in provider_files(open_bundle(pair.slm.folder), "simulator")
    assert "graphs/draft.onnx" in provider_files(open_bundle(pair.slm.folder), "htp")


def test_a_staged_folder_holds_links_and_each_bundle_once(pair: Pair, tmp_path: Path) -> None:
    other = make_pair(tmp_path / "other", {"mtp": {}, "slm": {}})
    second = Pair("B", open_bundle(other.mtp), pair.slm)
    runner = scripted_runner(tmp_path / "runner")
    out = tmp_path / "staged"
    out.mkdir()
    staged = stage(out, runner, [pair, second], "cpu")
    assert staged == {"A": StagedPair("mtp", "slm"), "B": StagedPair("mtp-b", "slm")}
    assert sorted(path.name for path in out.iterdir()) == ["mtp", "mtp-b", "runner", "slm"]
    assert (out / "mtp/manifest.json").read_bytes() == (pair.mtp.folder / "manifest.json").read_bytes()
    assert (out / "runner/hyco_runner").samefile(runner.executable)
    rounds = tmp_path / "r.safetensors"
    rounds.write_bytes(b"r")
    stage_rounds(out, rounds)
    assert (out / "rounds.safetensors").read_bytes() == b"r"


def test_a_fitting_run_is_admitted(compiled: Pair, pair: Pair, phone_runner: RunnerFolder) -> None:
    chip = admit(phone_runner, "htp", [compiled], PHONE)
    assert chip is not None
    assert (chip.soc_model, chip.htp_arch) == (87, 81)
    assert admit(phone_runner, "cpu", [pair], PHONE) is None


def older(status: TargetStatus = COMPILED, **changes: Any) -> dict[str, Any]:
    return {"targets": (status.model_copy(update=changes),)}


@pytest.mark.parametrize(
    ("manifest", "identity", "facts", "kind", "message"),
    [
        (older(), {"soc_model": "SM8750"}, {}, BundleError, "compiled for sm8850, not for sm8750"),
        (older(target="sm8750", soc_model=69, htp_arch="v79"), {}, {}, BundleError, "sm8750, not for sm8850"),
        (older(htp_arch="v79"), {}, {}, BundleError, "soc_model 87 and v79 for sm8850, which is 87 and v81"),
        (older(qnn_version="v2.52.0"), {}, {}, BundleError, r"compiled by QNN v2\.52\.0, the runtime is"),
        (older(), {"soc_model": "MT6991"}, {}, FactError, "chip is MT6991"),
        (older(), {"soc_model": None}, {}, FactError, "does not tell its chip"),
        (older(), {"abi": "x86_64"}, {}, UsageError, "built for arm64-v8a, the device is x86_64"),
        (older(), {"abi": None}, {}, FactError, "does not tell its processor"),
        (older(), {}, {"providers": ("cpu",)}, UsageError, "has no provider htp; it has cpu"),
        (older(), {}, {"htp_archs": ("v79",)}, UsageError, "skeleton for v79, the device's NPU is v81"),
    ],
    ids=["phone", "bundle", "arch", "qnn", "chip", "no-chip", "abi", "no-abi", "provider", "skeleton"],
)
def test_what_cannot_run_is_refused(
    compiled: Pair, tmp_path: Path, manifest: dict[str, Any], identity: dict[str, Any], facts: dict[str, Any],
    kind: type[HycoError], message: str,
) -> None:  # fmt: skip
    for bundle in compiled.bundles:
        alter(bundle.folder, **manifest)
    pair = Pair("A", *(open_bundle(bundle.folder) for bundle in compiled.bundles))
    given = {"abi": "arm64-v8a", "qnn_build": QNN, "providers": ("cpu", "htp"), "htp_archs": ("v81",)}
    runner = scripted_runner(tmp_path / "runner", **{**given, **facts})
    with pytest.raises(kind, match=message):
        admit(runner, "htp", [pair], replace(PHONE, **identity))


def test_damage_is_refused(compiled: Pair, phone_runner: RunnerFolder) -> None:
    table = compiled.slm.path("table.safetensors")
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"damaged.*\n.*table\.safetensors: \d+ bytes"):
        admit(phone_runner, "cpu", [compiled], PHONE)


def test_a_changed_runner_is_refused(pair: Pair, phone_runner: RunnerFolder) -> None:
    content = bytearray(phone_runner.executable.read_bytes())
    content[-1] ^= 1
    phone_runner.executable.write_bytes(content)
    with pytest.raises(RunnerFolderError, match="hyco_runner"):
        admit(phone_runner, "cpu", [pair], PHONE)


def test_this_machine_has_a_processor_too() -> None:
    assert device_abis(None) in (("x86_64",), ("aarch64",))


@pytest.mark.parametrize(
    ("machine", "abi", "runners"),
    [
        ("aarch64", "arm64-v8a", ("arm64-v8a",)),
        ("x86_64", "arm64-v8a", ("x86_64-linux", "arm64-v8a")),
        ("x86_64", None, ("x86_64-linux",)),
        ("x86_64", "x86_64", ("x86_64-linux",)),
        (None, "armeabi-v7a", ()),
    ],
)
def test_a_kernel_for_x86_runs_this_machines_runner(
    machine: str | None, abi: str | None, runners: tuple[str, ...]
) -> None:
    assert runners_for(replace(PHONE, abi=abi, machine=machine)) == runners
