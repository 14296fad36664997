"""qnn-net-run as a control measurement: stand-ins of the SDK's programs, on this machine and over the real adb."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from device_runner.bench_run import BenchDevice
from device_runner.devices import Identity, identify
from device_runner.errors import CommandError
from device_runner.graph_errors import NetRunError, SdkError
from device_runner.local import LocalTransport
from device_runner.native_errors import PieceError
from device_runner.net_run import NetRunOptions, measure_with_net_run
from device_runner.push import PushOptions
from device_runner.thermal_gate import ThermalGate
from export.errors import BundleError
from quant.errors import UsageError
from tests.device_runner.conftest import CALL
from tests.device_runner.graph_bundles import DRAFT_NAME, TARGET, write_head, write_slm
from tests.device_runner.qairt_sdk import BUILD, StandInSdk, write_sdk
from tests.device_runner.samples import BATTERY_TEXT, thermal_text

if TYPE_CHECKING:
    from pathlib import Path

    from device_runner.graph_series import GraphsMeasurement
    from export.bundle import Bundle

RUNS = NetRunOptions(inferences=4)


@dataclass(frozen=True)
class Place:
    """A device, and where its work_dir lies on this machine."""

    device: BenchDevice
    work_dir: Path

    @property
    def pushed(self) -> Path:
        return self.work_dir / "hyco-npu/net-run"


@pytest.fixture
def local(tmp_path: Path) -> Place:
    (tmp_path / "root").mkdir()
    return Place(BenchDevice(LocalTransport(tmp_path / "root"), None), tmp_path / "root")


@pytest.fixture(params=["local", pytest.param("adb", marks=pytest.mark.adb)])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "local":
        found: Place = request.getfixturevalue("local")
        return found
    phone = request.getfixturevalue("phone")
    phone.set_dumpsys("thermalservice", thermal_text())
    phone.set_dumpsys("battery", BATTERY_TEXT)
    transport = request.getfixturevalue("connect")(phone)
    return Place(BenchDevice(transport, identify(transport, CALL)), phone.work_dir)


@pytest.fixture
def sdk(tmp_path: Path) -> StandInSdk:
    return write_sdk(tmp_path / "sdk")


@pytest.fixture
def head(tmp_path: Path) -> Bundle:
    return write_head(tmp_path / "head")


@pytest.fixture
def slm(tmp_path: Path) -> Bundle:
    return write_slm(tmp_path / "slm")


def run(place: Place, sdk: StandInSdk, *bundles: Bundle, options: NetRunOptions = RUNS) -> GraphsMeasurement:
    return measure_with_net_run(place.device, bundles, sdk.root, options, lambda text: None)


def test_both_graphs_are_run_and_read(place: Place, sdk: StandInSdk, head: Bundle, slm: Bundle) -> None:
    found = run(place, sdk, slm, head)
    step, draft = found.graphs
    assert (found.device, found.provider) == (place.device.transport.name, "htp (qnn-net-run)")
    assert found.qnn_runtime == BUILD
    assert (step.kind, step.graph, step.passes, draft.kind, draft.graph, draft.passes) == (
        *("mtp", "mtp_step", 4),
        *("slm", "draft", 1),
    )
    for series in (step, draft):
        assert series.series_ms == (3.0, 3.01, 3.02, 3.03)
        assert series.other_ms == {"qnn": (2.95, 2.96, 2.97, 2.98), "accelerator": (2.5, 2.51, 2.52, 2.53)}
        assert series.loads_ms == {"binary": 9.009}
    assert draft.origin["command"].split()[:9] == [
        *("./qnn-net-run", "--retrieve_context", "slm.bin", "--backend", "libQnnHtp.so"),
        *("--config_file", "net_run.json", "--input_list", "__,draft.txt"),
    ]
    assert not place.pushed.exists()


@pytest.mark.adb
@pytest.mark.parametrize("place", ["adb"], indirect=True)
def test_a_phone_is_waited_for_and_its_facts_are_kept(place: Place, sdk: StandInSdk, head: Bundle) -> None:
    step = run(place, sdk, head, options=replace(RUNS, gate=ThermalGate(poll_s=0.01))).graphs[0]
    assert step.cool_down is not None
    assert step.cool_down.readings[0].status == 0
    assert step.before is not None
    assert step.after is not None
    assert step.before.thermal is not None
    assert (step.before.thermal.status, step.after.battery is not None) == (0, True)


def test_this_machine_has_no_facts(local: Place, sdk: StandInSdk, head: Bundle) -> None:
    step = run(local, sdk, head, options=replace(RUNS, gate=ThermalGate())).graphs[0]
    assert (step.cool_down, step.before, step.after) == (None, None, None)


def test_the_inputs_are_the_codes_of_zero(local: Place, sdk: StandInSdk, slm: Bundle) -> None:
    found = run(local, sdk, slm, options=replace(RUNS, push=PushOptions("net-run", keep=True)))
    assert found.inputs == "the code of the value 0 in every place"
    x, keys = (np.fromfile(local.pushed / f"draft/{n}.raw", t) for n, t in (("x", "uint16"), ("past_keys", "int8")))
    assert np.array_equal(x, np.full(6, 32768))
    assert np.array_equal(keys, np.zeros(10))
    assert (local.pushed / "draft.txt").read_text() == "x:=draft/x.raw past_keys:=draft/past_keys.raw\n"
    assert not (local.pushed / "out_draft").exists()


def test_recorded_codes_are_sent_as_they_are(local: Place, sdk: StandInSdk, head: Bundle) -> None:
    codes = {"x": np.array([[1, 2, 65535]], np.uint16), "past_keys": np.arange(-5, 5, dtype=np.int8).reshape(1, 2, 5)}
    options = replace(RUNS, codes={"mtp_step": codes}, push=PushOptions("net-run", keep=True))
    assert run(local, sdk, head, options=options).inputs == "recorded codes"
    for name, values in codes.items():
        sent = np.fromfile(local.pushed / f"mtp_step/{name}.raw", values.dtype)
        assert np.array_equal(sent, values.ravel())


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ({"x": np.zeros((1, 3), np.uint16)}, r"takes \['x', 'past_keys'\], the recorded codes are \['x'\]"),
        ({"x": np.zeros((1, 3), np.int16), "past_keys": np.zeros((1, 2, 5), np.int8)}, r"'x' are int16 \(1, 3\)"),
        ({"x": np.zeros((3, 1), np.uint16), "past_keys": np.zeros((1, 2, 5), np.int8)}, r"'x' are uint16 \(3, 1\)"),
    ],
)
def test_codes_of_another_graph(
    local: Place, sdk: StandInSdk, head: Bundle, codes: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(NetRunError, match=message):
        run(local, sdk, head, options=replace(RUNS, codes={"mtp_step": codes}))
    assert not local.pushed.exists()


@pytest.mark.parametrize(
    "name",
    [
        "bin/aarch64-android/qnn-net-run",
        "lib/aarch64-android/libQnnHtpV81Stub.so",
        "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so",
        "bin/x86_64-linux-clang/qnn-profile-viewer",
    ],
)
def test_a_missing_file_of_the_sdk_is_named(local: Place, sdk: StandInSdk, head: Bundle, name: str) -> None:
    (sdk.root / name).unlink()
    with pytest.raises(SdkError, match=re.escape(f"lacks {name}: is it a QAIRT SDK")):
        run(local, sdk, head)


def test_no_sdk(local: Place, head: Bundle, tmp_path: Path) -> None:
    with pytest.raises(SdkError, match="is no folder; --qairt-sdk takes"):
        run(local, StandInSdk(tmp_path / "nowhere"), head)


def test_pieces_of_two_builds(local: Place, sdk: StandInSdk, head: Bundle) -> None:
    (sdk.root / "lib/hexagon-v81/unsigned/libQnnHtpV81Skel.so").write_bytes(b"\0v2.50.0.260828221209\0")
    with pytest.raises(PieceError, match=r"not of one build.*2\.51.*2\.50"):
        run(local, sdk, head)


def test_no_piece_tells_its_build(local: Place, sdk: StandInSdk, head: Bundle) -> None:
    for path in (sdk.root / "lib").rglob("*.so"):
        path.write_bytes(b"\x7fELF")
    with pytest.raises(SdkError, match="carries its QNN build"):
        run(local, sdk, head)


def test_an_sdk_older_than_the_binary(local: Place, sdk: StandInSdk, tmp_path: Path) -> None:
    newer = TARGET.model_copy(update={"qnn_version": "v2.52.0.261101000000"})
    with pytest.raises(BundleError, match=r"compiled by QNN v2\.52\.0\.261101000000, the runtime is QNN v2\.51"):
        run(local, sdk, write_head(tmp_path / "newer", targets=(newer,)))


def test_a_phone_of_another_chip(local: Place, sdk: StandInSdk, head: Bundle) -> None:
    other = Identity("SM_S938", "SM8750", None, "15", "arm64-v8a", None)
    place = Place(BenchDevice(local.device.transport, other), local.work_dir)
    with pytest.raises(BundleError, match=r"compiled for sm8850, the phone has SM8750: export with --target sm8750"):
        run(place, sdk, head)


def test_bundles_of_two_chips(local: Place, sdk: StandInSdk, head: Bundle, tmp_path: Path) -> None:
    other = TARGET.model_copy(update={"target": "sm8750", "soc_model": 69, "htp_arch": "v79"})
    with pytest.raises(UsageError, match="sm8850, sm8750: give two of one chip"):
        run(local, sdk, head, write_slm(tmp_path / "other", targets=(other,)))


def test_a_tool_that_fails_on_the_phone(place: Place, sdk: StandInSdk, head: Bundle) -> None:
    sdk.set_faults(net_run="Failed to create context from binary", exit=16)
    with pytest.raises(CommandError, match=r"exit code 16 on the device: Failed to create context from binary"):
        run(place, sdk, head)
    assert not place.pushed.exists()


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"no_header": True}, r"no table with the columns Message, Time, .*but QNN SDK version"),
        ({"no_csv": True}, r"qnn-profile-viewer of .* ended with 0 and did not write its output"),
        ({"lost_runs": 1}, r"has 3 EXECUTE rows of NETRUN, 4 are expected"),
        ({"name": "Accelerator time"}, r"has 0 'QNN accelerator \(execute\) time', 4 are expected; it has: .*RPC"),
        ({"unit": "CYCLES"}, r"'QNN accelerator \(execute\) time' as '2500' CYCLES: microseconds"),
        ({"time": "none"}, r"'none' US: microseconds are expected"),
        ({"time": "0"}, r"'0' US: microseconds are expected"),
        ({"loads": 0}, r"has 0 'QNN \(load binary\) time', 1 are expected"),
        ({"loads": 2}, r"has 2 'QNN \(load binary\) time', 1 are expected"),
        ({"graph": "another"}, r"the profile is of \['Graph 0: another'\]"),
        ({"described": {"graphs": []}}, r"wrote another form than expected \(KeyError: 'info'\)"),
        ({"described": {"info": {"graphs": []}}}, r"holds the graphs \[\], not 'QNNExecutionProvider_141_1_0' once"),
        (
            {"described": {"info": {"graphs": [{"info": {"graphName": "g", "graphInputs": [{"info": {}}]}}]}}},
            r"wrote another form than expected \(KeyError",
        ),
    ],
)
def test_output_in_another_form(
    local: Place, sdk: StandInSdk, head: Bundle, faults: dict[str, Any], message: str
) -> None:
    sdk.set_faults(**faults)
    with pytest.raises(NetRunError, match=message):
        run(local, sdk, head)
    assert not local.pushed.exists()


def test_inputs_that_differ_from_the_manifest(local: Place, sdk: StandInSdk, slm: Bundle) -> None:
    inputs = [
        {"info": {"name": "x", "dataType": "QNN_DATATYPE_UFIXED_POINT_8", "dimensions": [2, 3]}},
        {"info": {"name": "keys", "dataType": "QNN_DATATYPE_SFIXED_POINT_8", "dimensions": [1, 2, 5]}},
    ]
    sdk.set_faults(described={"info": {"graphs": [{"info": {"graphName": DRAFT_NAME, "graphInputs": inputs}}]}})
    with pytest.raises(NetRunError) as error:
        run(local, sdk, slm)
    assert (
        "keys (10 bytes, the manifest None), past_keys (None bytes, the manifest 10), x (6 bytes, the manifest 12)"
        in str(error.value)
    )


def test_a_tool_of_the_host_without_its_mode(local: Place, sdk: StandInSdk, head: Bundle) -> None:
    (sdk.root / "bin/x86_64-linux-clang/qnn-context-binary-utility").chmod(0o644)
    with pytest.raises(SdkError, match=r"qnn-context-binary-utility cannot be run: unpack"):
        run(local, sdk, head)


@pytest.mark.parametrize("options", [{"inferences": 1}, {"perf_profile": "fast"}])
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="at least two, and one of burst"):
        NetRunOptions(**options)
