"""Blocks on a device, with a scripted runner over this machine: order, command line, what is kept, what is refused."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from device_runner.bench_run import BenchDevice, BenchOptions, BenchPlan, Variant, block_order, run_bench, usb_powered
from device_runner.devices import Identity
from device_runner.errors import CallTimeoutError, CommandError, DeviceError, FactError, RunnerError
from device_runner.local import LocalTransport
from device_runner.measurement import GraphLoad
from device_runner.staging import StagedPair
from device_runner.thermal_gate import ThermalGate
from export.engines.htp import TARGETS
from quant.errors import UsageError
from tests.device_runner.conftest import wait_until
from tests.device_runner.samples import BATTERY_TEXT, thermal_text
from tests.device_runner.scripted_runner import TREE, calls, scripted_runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from device_runner.adb import AdbTransport
    from device_runner.measurement import Block
    from tests.device_runner.phone import Phone

OPTIONS = BenchOptions("cpu", rounds=3, blocks=2)
PHONE = Identity("SM_S948", "SM8850", None, "16", "x86_64", None)


class Bench:
    """A staged folder with a scripted runner, and this machine as the device."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.raw = folder / "staged", folder / "device", folder / "raw"
        for made in (self.folder, self.root, self.raw):
            made.mkdir()
        self.device = BenchDevice(LocalTransport(self.root), None)
        self.labels = ("A",)
        self.facts: dict[str, Any] = {}
        self.chip: Any = None

    def run(self, options: BenchOptions = OPTIONS, play: str = "") -> tuple[Block, ...]:
        runner = scripted_runner(self.folder / "runner", play, **self.facts)
        pairs = {label: StagedPair("mtp" if label == "A" else "mtp-b", "slm") for label in self.labels}
        plan = BenchPlan(self.folder, runner, pairs, self.chip)
        return run_bench(self.device, plan, options, self.raw, lambda text: None)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_block_is_what_its_process_printed(bench: Bench) -> None:
    (first, second) = bench.run()
    assert (first.bundle, first.profiled, first.cool_down, first.before, first.after) == ("A", False, None, None, None)
    assert (first.runner.version, first.runner.provider, first.runner.threads) == ("0.1.0", "cpu", 1)
    assert first.loads == (GraphLoad("mtp_step", "cpu", 12.5, 1.25),)
    assert [(one.number, one.text, one.total_ms, one.matched) for one in first.rounds] == [
        (0, 0, 10.0, 1),
        (1, 0, 11.0, 1),
        (2, 0, 12.0, 1),
    ]
    assert first.rounds[0].parts == {"mtp_step_1": 4.0, "slm_pass_1": 5.5}
    assert first.rounds[0].tree.token_ids == tuple(TREE["token_ids"])
    assert first.rounds[0].tree.parents == (None, 0)
    assert first.rounds[-1].start_ns < second.rounds[0].start_ns


def test_the_raw_series_is_kept_as_it_came(bench: Bench) -> None:
    bench.run(play="say('a library says hello')")
    series = sorted(path.name for path in bench.raw.iterdir())
    assert series == ["00-A.jsonl", "01-A.jsonl"]
    lines = (bench.raw / "00-A.jsonl").read_text().splitlines()
    assert lines[2] == "a library says hello"
    assert [next(iter(json.loads(line))) for line in lines if line.startswith("{")] == [
        "runner",
        "load",
        *["round"] * 3,
        "end",
    ]


def test_the_runner_is_called_in_its_own_folder(bench: Bench) -> None:
    bench.run(replace(OPTIONS, blocks=1, threads=2, cpu_mask="c0"))
    (call,) = calls(bench.root)
    arguments = call["argv"]
    assert arguments[0] == "bench"
    assert dict(zip(arguments[1::2], arguments[2::2], strict=True)) == {
        "--provider": "cpu",
        "--ort": "./libonnxruntime.so",
        "--mtp": "../mtp",
        "--slm": "../slm",
        "--rounds": "../rounds.safetensors",
        "--count": "3",
        "--threads": "2",
        "--cpu-mask": "c0",
    }
    assert call["cwd"] == f"{bench.root}/hyco-npu/bench/runner"
    assert (call["libraries"], call["dsp"]) == (".", ".")


def test_on_the_npu_the_libraries_the_chip_and_the_mode_are_named(bench: Bench) -> None:
    bench.chip = TARGETS["sm8850"]
    bench.facts = {"qnn_build": "v2.51.0", "providers": ("cpu", "htp"), "htp_archs": ("v81",)}
    bench.run(BenchOptions("htp", rounds=1, blocks=1, perf_modes=("burst",)))
    (call,) = calls(bench.root)
    named = dict(zip(call["argv"][1::2], call["argv"][2::2], strict=True))
    assert named["--qnn-provider"] == "./libonnxruntime_providers_qnn.so"
    assert named["--qnn-backend"] == "./libQnnHtp.so"
    assert (named["--soc-model"], named["--htp-arch"], named["--perf-mode"]) == ("87", "81", "burst")


def test_pairs_and_modes_are_interleaved_and_the_order_turned_round() -> None:
    options = BenchOptions("htp", rounds=1, blocks=2, perf_modes=("burst", "balanced"), profile=True)
    assert block_order(["A", "B"], options) == [
        Variant("A", "burst"),
        Variant("A", "balanced"),
        Variant("B", "burst"),
        Variant("B", "balanced"),
        Variant("B", "balanced"),
        Variant("B", "burst"),
        Variant("A", "balanced"),
        Variant("A", "burst"),
        Variant("A", "burst", profiled=True),
        Variant("B", "burst", profiled=True),
    ]
    assert [variant.name for variant in block_order(["A", "B"], OPTIONS)] == ["A", "B", "B", "A"]


def test_two_pairs_run_their_own_bundles(bench: Bench) -> None:
    bench.labels = ("A", "B")
    blocks = bench.run()
    assert [block.bundle for block in blocks] == ["A", "B", "B", "A"]
    heads = [call["argv"][call["argv"].index("--mtp") + 1] for call in calls(bench.root)]
    assert heads == ["../mtp", "../mtp-b", "../mtp-b", "../mtp"]


def test_a_profiled_block_is_apart_and_its_csv_comes_back(bench: Bench) -> None:
    bench.chip = TARGETS["sm8850"]
    bench.facts = {"qnn_build": "v2.51.0", "providers": ("cpu", "simulator")}
    play = "if '--profile' in arguments: open(arguments['--profile'], 'w').write('Msg Timestamp,Message')"
    blocks = bench.run(BenchOptions("simulator", rounds=1, blocks=1, profile=True), play)
    assert [block.profiled for block in blocks] == [False, True]
    assert (bench.raw / "01-A-profiled.csv").read_text() == "Msg Timestamp,Message"


@pytest.mark.parametrize("keep", [False, True])
def test_the_folder_is_removed_unless_it_is_kept(bench: Bench, keep: bool) -> None:
    bench.run(replace(OPTIONS, keep=keep))
    assert (bench.root / "hyco-npu/bench/runner/hyco_runner").exists() is keep


@pytest.mark.parametrize(
    ("play", "kind", "message"),
    [
        (
            "say({'error': 'graph mtp_step: bad magic'}); say({'end': True, 'exit': 1}); sys.exit(1)",
            RunnerError,
            "bad mag",
        ),
        ("say({'error': 'no such file'}); sys.exit(0)", RunnerError, "no such file"),
        ("print('Segmentation fault', file=sys.stderr); sys.exit(139)", CommandError, "139.*Segmentation"),
        ("say(round_line(0)); sys.exit(0)", RunnerError, "without its end marker after 1 of 3"),
        ("say({'end': True, 'exit': 0}); sys.exit(0)", RunnerError, "0 rounds where 3 were asked for"),
        ("say({'end': True, 'exit': 1}); sys.exit(0)", RunnerError, "it ended with 1"),
        ("say(round_line(1))", RunnerError, "round 1 comes where 0 is due"),
        ('say(\'{"round": {"num\')', RunnerError, "cannot be read"),
        ("say({'round': {'number': 0}})", RunnerError, r"text: Field required"),
        ("say({'surprise': 1})", RunnerError, "none of runner, load"),
        ("time.sleep(60)", CallTimeoutError, "printed nothing for 2 s"),
    ],
    ids=["error", "error-exit-0", "crash", "cut", "short", "end-1", "order", "torn", "fields", "unknown", "hang"],
)
def test_what_is_not_whole_is_no_result(bench: Bench, play: str, kind: type[DeviceError], message: str) -> None:
    started = time.monotonic()
    with pytest.raises(kind, match=message):
        bench.run(replace(OPTIONS, silence_s=2.0 if kind is CallTimeoutError else 30.0), play)
    assert time.monotonic() - started < 30
    assert not (bench.root / "hyco-npu/bench").exists()


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"parents": [None, 1]}, "row 1 of a tree follows row 1"),
        ({"parents": [0, 0]}, "row 0 of a tree follows row 0"),
        ({"scores": [0.0]}, "rows are not all there"),
        ({"scores": [0.0, float("nan")]}, "finite"),
    ],
)
def test_a_tree_that_is_none_is_refused(bench: Bench, tree: dict[str, Any], message: str) -> None:
    broken = {**TREE, **tree}
    play = f"nan = float('nan'); line = round_line(0); line['round']['tree'] = {broken!r}; say(line)"
    with pytest.raises(RunnerError, match=message):
        bench.run(play=play)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"perf_modes": ("burst",)}, "performance modes are the NPU's"),
        ({"provider": "htp", "perf_modes": ("fast",)}, "'fast' is unknown; use burst"),
        ({"profile": True}, "--profile is QNN's"),
        ({"cpu_mask": "cores"}, "--cpu-mask 'cores'"),
        ({"cpu_mask": "0"}, "--cpu-mask '0'"),
        ({"rounds": 0}, "2 blocks of 0 rounds"),
    ],
)
def test_options_that_contradict_are_wrong_use(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(OPTIONS, **changes)


def _cool(phone: Phone) -> None:
    phone.set_dumpsys("thermalservice", thermal_text(0, 27.3))
    phone.set_dumpsys("battery", BATTERY_TEXT)


@pytest.mark.adb
def test_a_phone_is_kept_awake_and_looked_at(
    bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport]
) -> None:
    _cool(phone)
    log = phone.root / "settings.log"
    for name in ("svc", "settings"):
        phone.set_command(name, f'#!/bin/sh\necho "{name} $*" >> {log}\n[ "$1" != get ] || echo 2\n')
    bench.device = BenchDevice(connect(phone), PHONE)
    blocks = bench.run(replace(OPTIONS, gate=ThermalGate(timeout_s=0.0)))
    assert log.read_text().splitlines() == [
        "settings get global stay_on_while_plugged_in",
        "svc power stayon usb",
        "settings put global stay_on_while_plugged_in 2",
    ]
    for block in blocks:
        assert block.cool_down is not None
        assert [reading.status for reading in block.cool_down.readings] == [0]
        assert block.before is not None
        assert block.before.thermal is not None
        assert block.before.thermal.hottest_c("skin") == 27.3
        assert block.after is not None
        assert block.after.battery is not None
        assert block.after.battery.level_percent == 84
    assert usb_powered(blocks) is True
    assert not phone.path("/data/local/tmp/hyco-npu/bench").exists()


@pytest.mark.adb
def test_a_phone_without_settings_may_sleep_again(
    bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport]
) -> None:
    _cool(phone)
    log = phone.root / "settings.log"
    phone.set_command("svc", f'#!/bin/sh\necho "svc $*" >> {log}\n')
    phone.set_command("settings", "#!/bin/sh\nexit 1\n")
    bench.device = BenchDevice(connect(phone), PHONE)
    with pytest.raises(RunnerError):
        bench.run(play="say({'error': 'no'}); sys.exit(1)")
    assert log.read_text().splitlines() == ["svc power stayon usb", "svc power stayon false"]


@pytest.mark.adb
def test_blocks_are_ended_with_the_connection(
    bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport]
) -> None:
    """A runner that hangs is no longer there when the error is told."""
    _cool(phone)
    bench.device = BenchDevice(connect(phone), PHONE)
    with pytest.raises(CallTimeoutError):
        bench.run(replace(OPTIONS, silence_s=2.0), "open('../../../pid', 'w').write(str(os.getpid())); time.sleep(300)")
    pid = phone.path("/data/local/tmp/pid").read_text()
    assert wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_where_nothing_tells_of_heat_a_run_on_the_cpu_has_no_gate(bench: Bench) -> None:
    """A device without `dumpsys`, as this machine is one."""
    bench.device = replace(bench.device, identity=PHONE)
    (block,) = bench.run(replace(OPTIONS, blocks=1, gate=ThermalGate()))
    assert block.cool_down is None
    assert len(block.rounds) == 3


def test_where_nothing_tells_of_heat_no_npu_is_measured(bench: Bench) -> None:
    bench.device, bench.chip = replace(bench.device, identity=PHONE), TARGETS["sm8850"]
    with pytest.raises(FactError, match="tells no thermal status"):
        bench.run(BenchOptions("htp", rounds=1, blocks=1, perf_modes=("burst",), gate=ThermalGate()))
