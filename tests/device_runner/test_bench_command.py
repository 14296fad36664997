"""`hyco-npu bench` as a user runs it: the real adb, a phone on the loopback, the real runner over small bundles."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from device_runner.host_folder import cached_host_runner
from device_runner.runner_folder import RunnerFacts, write_runner_folder
from export.bundle import open_bundle
from export.bundle.manifest import TargetStatus
from hyco_npu.cli import app
from tests.device_runner.native.real_bundles import alter, make_pair, record_texts
from tests.device_runner.phone import Authorization, Phone
from tests.device_runner.samples import BATTERY_TEXT, thermal_text
from tests.device_runner.scripted_runner import scripted_runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.testing import Result

    from device_runner.adb import AdbTransport
    from device_runner.runner_folder import RunnerFolder
    from tests.device_runner.fake_adb import FakeAdb
    from tests.device_runner.native.real_bundles import Texts

pytestmark = [pytest.mark.adb, pytest.mark.native]

CONFIG: dict[str, Any] = {"mtp": {"steps": 3}, "slm": {"children": 3}, "guesses": {}, "tree": {"nodes": 12}}
QUICK = ("--blocks", 2, "--count", 12, "--warm-up-rounds", 1, "--max-drift", 1e6, "--no-estimate")
"""What a busy machine's times would fail on is not what is tested here."""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> RunnerFolder:
    """The host's runner, without QNN: what the CPU needs is small."""
    whole, folder = cached_host_runner(), tmp_path_factory.mktemp("runner")
    for path in (whole.executable, whole.ort):
        shutil.copy2(path, folder / path.name)
    facts = RunnerFacts(
        abi="x86_64-linux",
        ort_version=whole.description.ort_version,
        qnn_build=None,
        providers=("cpu",),
        htp_archs=(),
    )
    return write_runner_folder(folder, {whole.executable.name: "copied", whole.ort.name: "copied"}, facts)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """Small bundles, and rounds over them."""
    folder = tmp_path_factory.mktemp("bundles")
    return record_texts(make_pair(folder, CONFIG), folder / "rounds.safetensors", 6)


@pytest.fixture
def phone(phone: Phone) -> Phone:
    """A cool x86-64 phone on USB that can be kept awake."""
    phone.set_properties(ro_product_cpu_abi="x86_64")
    phone.set_dumpsys("thermalservice", thermal_text(0, 27.3))
    phone.set_dumpsys("battery", BATTERY_TEXT)
    for name in ("svc", "settings"):
        phone.set_command(name, f"#!/bin/sh\necho {name} $* >> {phone.root}/settings.log\n[ $1 != get ] || echo 0\n")
    return phone


class Bench:
    """The command with the small bundles, its report in a folder of the test."""

    def __init__(self, texts: Texts, runner: RunnerFolder, folder: Path) -> None:
        self.mtp, self.slm = texts.session.mtp, texts.session.slm
        self.rounds, self.runner, self.out = texts.path, runner.folder, folder / "report"

    def __call__(self, *arguments: object, quick: tuple[object, ...] = QUICK) -> Result:
        given = {"--mtp-bundle": self.mtp, "--slm-bundle": self.slm, "--rounds": self.rounds, "--runner": self.runner}
        given["--out"] = self.out
        words = [word for pair in given.items() for word in pair]
        return CliRunner().invoke(app, ["bench", *map(str, (*words, *quick, *arguments))], env={"COLUMNS": "200"})

    def result(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.out / "result.json").read_text())
        return told


@pytest.fixture
def bench(texts: Texts, runner: RunnerFolder, tmp_path: Path) -> Bench:
    return Bench(texts, runner, tmp_path)


@pytest.fixture
def scripted(bench: Bench, tmp_path: Path) -> Callable[[str], Bench]:
    """The command with a scripted runner that plays something: small, where nothing real is to come of it."""

    def make(play: str) -> Bench:
        bench.runner = scripted_runner(tmp_path / "scripted", play).folder
        return bench

    return make


def nothing_left(phone: Phone) -> bool:
    return not phone.path("/data/local/tmp/hyco-npu/bench").exists()


def test_a_whole_run(bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport]) -> None:
    device = connect(phone)
    done = bench("--device", device.serial, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.pop("report") == str(bench.out)
    assert told == bench.result()
    assert told["valid"] is True
    assert told["provider"] == "cpu"
    assert told["measured_on_device"] == "not measured"
    assert sorted(path.name for path in bench.out.iterdir()) == ["raw", "report.html", "result.json", "rounds.csv"]
    assert sorted(path.name for path in (bench.out / "raw").iterdir()) == ["00-A.jsonl", "01-A.jsonl"]
    # the trees are those of the Python drafter, and a block of 13 rounds is timed without its first
    lines = [json.loads(line) for line in (bench.out / "raw/01-A.jsonl").read_text().splitlines()]
    drawn = [line["round"]["tree"]["token_ids"] for line in lines if "round" in line]
    assert len(drawn) == 13
    assert lines[-1] == {"end": True, "exit": 0}
    assert nothing_left(phone)
    assert (phone.root / "settings.log").read_text().splitlines()[1:] == [
        "svc power stayon usb",
        "settings put global stay_on_while_plugged_in 0",
    ]


def test_trees_come_before_times(bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport]) -> None:
    """The only phone needs no serial; what is shown says on what it was measured."""
    connect(phone)
    done = bench("--perf-mode", "burst")
    assert done.exit_code == 0, done.output
    assert 0 < done.stdout.index("trees A: 13 trees against the host's (cpu)") < done.stdout.index("median")
    assert "x86 CPU (cpu), not a phone" in done.stdout
    assert "--perf-mode is the NPU's" in done.stderr


def test_kept_files_are_not_sent_again(bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport]) -> None:
    device = connect(phone)
    assert bench("--device", device.serial, "--keep").exit_code == 0
    pushes = sum(name.startswith("sync:") for name in phone.services)
    assert pushes > 5
    assert bench("--device", device.serial, "--force").exit_code == 0
    assert sum(name.startswith("sync:") for name in phone.services) == pushes
    assert nothing_left(phone)


def test_two_heads_in_turns(
    bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport], tmp_path: Path
) -> None:
    other = make_pair(tmp_path / "other", CONFIG)
    device = connect(phone)
    done = bench("--device", device.serial, "--against", other.mtp)
    assert done.exit_code == 0, done.output
    names = sorted(path.name for path in (bench.out / "raw").iterdir())
    assert names == ["00-A.jsonl", "01-B.jsonl", "02-B.jsonl", "03-A.jsonl"]


def test_this_machine_is_a_device_too(bench: Bench, tmp_path: Path) -> None:
    done = bench("--device", "local", "--cpu-mask", "1")
    assert done.exit_code == 0, done.output
    result = bench.result()
    assert result["device"]["name"].startswith("this machine")


@pytest.mark.htp
def test_the_simulator_is_compared_with_itself_and_profiled_apart(bench: Bench, tmp_path: Path) -> None:
    """Compiled graphs; on the host's side the simulator drafts, too."""
    made = make_pair(tmp_path / "compiled", CONFIG, compiled=True)
    bench.mtp, bench.slm, bench.runner = made.mtp, made.slm, cached_host_runner().folder
    quick = ("--blocks", 1, "--count", 3, "--warm-up-rounds", 1, "--min-rounds", 1, "--max-drift", 1e6)
    done = bench("--device", "local", "--provider", "simulator", "--profile", quick=quick)
    assert done.exit_code == 0, done.output
    assert "trees A: 4 trees against the host's (simulator)" in done.stdout
    assert "x86 HTP simulator, not a phone" in done.stdout
    assert bench.result()["provider"] == "simulator"
    names = sorted(path.name for path in (bench.out / "raw").iterdir())
    assert names == ["00-A.jsonl", "01-A-profiled.csv", "01-A-profiled.jsonl"]
    assert "Accelerator" in (bench.out / "raw/01-A-profiled.csv").read_text()


def _wrapped(runner: RunnerFolder, folder: Path, script: str) -> Path:
    """A runner's folder whose runner is a script around the real one."""
    folder.mkdir()
    shutil.copy2(runner.executable, folder / "real")
    shutil.copy2(runner.ort, folder / runner.ort.name)
    (folder / "hyco_runner").write_text(f"#!/bin/bash\n{script}\n")
    facts = RunnerFacts(**{name: getattr(runner.description, name) for name in RunnerFacts.model_fields})
    # only the runner is made executable by the description
    names = dict.fromkeys(("hyco_runner", "real", runner.ort.name), "copied")
    write_runner_folder(folder, names, facts)
    (folder / "real").chmod(0o755)
    return folder


def test_other_trees_make_it_invalid(
    bench: Bench, runner: RunnerFolder, phone: Phone, connect: Callable[[Phone], AdbTransport], tmp_path: Path
) -> None:
    """A runner that draws one other token in each tree: the report is written, the exit code 1."""
    tampered = r'set -o pipefail; ./real "$@" | sed -E "s/(\"token_ids\": ?\[[0-9]+, ?)[0-9]+/\1299/"'
    bench.runner = _wrapped(runner, tmp_path / "wrapped", tampered)
    device = connect(phone)
    done = bench("--device", device.serial, "--keep")
    assert done.exit_code == 1, done.output
    result = bench.result()
    assert result["valid"] is False
    assert any("trees differ from those of the host (cpu)" in str(reason) for reason in result["reasons"])
    assert done.stdout.startswith("INVALID")
    # a user who accepts less says so
    assert bench("--device", device.serial, "--force", "--agreement", 0.01).exit_code == 0


@pytest.mark.parametrize("legacy", [False, True])
def test_a_lost_exit_code_and_line_ends_change_nothing(
    bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport], legacy: bool
) -> None:
    phone.faults.legacy, phone.faults.lose_exit_code = legacy, not legacy
    phone.faults.crlf = legacy
    device = connect(phone)
    done = bench("--device", device.serial, "--keep")
    assert done.exit_code == 0, done.output
    # and a runner that fails is noticed although adb says 0
    missing = bench("--device", device.serial, "--force", "--cpu-mask", "8000000000000000")
    assert missing.exit_code == 1
    assert "the runner on" in missing.stderr


def _fails(done: Result, bench: Bench, pattern: str) -> None:
    assert done.exit_code == 1, done.output
    assert re.search(pattern, done.stderr), done.stderr
    assert not bench.out.exists()


def test_a_link_cut_in_the_middle_of_a_block(
    scripted: Callable[[str], Bench], phone: Phone, connect: Callable[[Phone], AdbTransport]
) -> None:
    bench = scripted("say(round_line(0)); say({'error': 'x' * 9000}); sys.exit(1)")
    device = connect(phone)
    # no other call prints as much as the runner, and the cut goes through a line
    phone.faults.drop_shell_after = 8000
    _fails(
        bench("--device", device.serial), bench, "ended without its exit code.*the link broke|not connected any more"
    )


def test_a_full_phone(scripted: Callable[[str], Bench], phone: Phone, connect: Callable[[Phone], AdbTransport]) -> None:
    bench, device = scripted(""), connect(phone)
    phone.faults.no_space_after = 1000
    _fails(bench("--device", device.serial), bench, "has no space left")
    phone.faults.no_space_after = None
    table = "Filesystem 1K-blocks Used Available Use% Mounted on\n/dev/x 9 5 4 50% /data\n"
    phone.set_command("df", f"#!/bin/sh\nprintf '{table}'\n".replace("50%", "50%%").replace("Use%", "Use%%"))
    _fails(bench("--device", device.serial), bench, "has 4,096 bytes free")


def test_a_runner_that_hangs(
    scripted: Callable[[str], Bench], phone: Phone, connect: Callable[[Phone], AdbTransport]
) -> None:
    bench, device = scripted("say(round_line(0)); time.sleep(300)"), connect(phone)
    started = time.monotonic()
    _fails(bench("--device", device.serial, "--silence", 3), bench, "printed nothing for 3 s")
    assert time.monotonic() - started < 100
    assert nothing_left(phone)


def test_a_runner_that_fails_is_quoted(
    scripted: Callable[[str], Bench], phone: Phone, connect: Callable[[Phone], AdbTransport]
) -> None:
    """adb's own exit code is lost, and says 0."""
    phone.faults.lose_exit_code = True
    bench = scripted("say({'error': 'QNN_DEVICE_ERROR: 14001'}); say({'end': True, 'exit': 1}); sys.exit(1)")
    device = connect(phone)
    _fails(bench("--device", device.serial), bench, "failed after 0 rounds: QNN_DEVICE_ERROR: 14001")


def test_a_warm_phone_is_waited_for_and_not_measured(
    scripted: Callable[[str], Bench], phone: Phone, connect: Callable[[Phone], AdbTransport]
) -> None:
    phone.set_dumpsys("thermalservice", thermal_text(2, 41.0))
    bench, device = scripted(""), connect(phone)
    _fails(bench("--device", device.serial, "--gate-timeout", 0), bench, r"thermal status 2 \(moderate\)")
    assert nothing_left(phone)
    phone.set_dumpsys("thermalservice", thermal_text(0, 41.0))
    _fails(bench("--device", device.serial, "--gate-timeout", 0, "--max-skin", 35), bench, "skin of 35")


def test_a_phone_that_warms_up_in_the_run_makes_it_invalid(
    scripted: Callable[[str], Bench], phone: Phone, connect: Callable[[Phone], AdbTransport]
) -> None:
    table = phone.root / "dumpsys/thermalservice"
    bench, device = scripted(f"open({str(table)!r}, 'w').write({thermal_text(1, 40.0)!r})"), connect(phone)
    done = bench("--device", device.serial, "--no-gate")
    assert done.exit_code == 1, done.output
    found = [str(reason) for reason in bench.result()["reasons"]]
    assert any("thermal status" in reason and "1" in reason for reason in found), found


def test_an_unauthorised_phone(
    scripted: Callable[[str], Bench], phone: Phone, connect: Callable[[Phone], AdbTransport]
) -> None:
    bench = scripted("")
    phone.authorization = Authorization.REFUSES
    device = connect(phone)
    _fails(bench("--device", device.serial), bench, "accept the dialog")


def test_several_phones_without_a_serial(
    bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport], tmp_path: Path
) -> None:
    connect(phone)
    connect(Phone(tmp_path / "second"))
    done = bench()
    assert done.exit_code == 2
    assert "2 devices are connected" in done.stderr


def compiled(texts: Texts, folder: Path, **changes: Any) -> tuple[Path, Path]:
    """Copies of the bundles that claim to be compiled."""
    target = TargetStatus(
        target="sm8850", soc_model=87, htp_arch="v81", qnn_version="v2.51.0", compiled=True, simulated=False
    ).model_copy(update=changes)
    made = []
    for source in (texts.session.mtp, texts.session.slm):
        copy = folder / source.name
        shutil.copytree(source, copy)
        alter(copy, targets=(target,))
        made.append(copy)
    return made[0], made[1]


def test_a_binary_of_a_newer_qnn_is_refused_without_a_push(
    bench: Bench, texts: Texts, phone: Phone, connect: Callable[[Phone], AdbTransport], tmp_path: Path
) -> None:
    phone.set_properties(ro_product_cpu_abi="arm64-v8a")
    facts = {"abi": "arm64-v8a", "qnn_build": "v2.51.0", "providers": ("cpu", "htp"), "htp_archs": ("v79", "v81")}
    bench.runner = scripted_runner(tmp_path / "phone-runner", **facts).folder
    bench.mtp, bench.slm = compiled(texts, tmp_path, qnn_version="v2.99.0")
    device = connect(phone)
    _fails(bench("--device", device.serial), bench, r"compiled by QNN v2\.99\.0")
    assert not any(name.startswith("sync:") for name in phone.services)
    assert not any("mkdir" in name for name in phone.services)


@pytest.mark.parametrize("command", ["bench", "generate"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("architecture", r"soc_model 87 and v79 for sm8850, which is 87 and v81"),
        ("truncated", r"mtp_step\.onnx: \d+ bytes, the manifest says"),
        ("swapped", r"mtp_step\.onnx: sha256"),
    ],
)
def test_what_is_wrong_with_a_bundle_is_told_before_any_call_of_adb(
    texts: Texts, fake_adb: Callable[..., FakeAdb], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    command: str, damage: str, message: str,
) -> None:  # fmt: skip
    """Case 24 of the list of public failures."""
    adb = fake_adb()
    monkeypatch.setenv("PATH", f"{Path(adb.client.binary).parent}:{os.environ['PATH']}")
    mtp, slm = compiled(texts, tmp_path, **({"htp_arch": "v79"} if damage == "architecture" else {}))
    graph = mtp / "graphs/mtp_step.onnx"
    if damage == "truncated":
        graph.write_bytes(graph.read_bytes()[:-1])
    elif damage == "swapped":
        content = bytearray(graph.read_bytes())
        content[-1] ^= 1
        graph.write_bytes(content)
    words = [command, "--device", "R3CT1", "--mtp-bundle", mtp, "--slm-bundle", slm]
    done = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert re.search(message, done.stderr), done.stderr
    assert adb.calls == []


def test_bundles_for_another_phone_are_refused_without_a_push(
    bench: Bench, texts: Texts, phone: Phone, connect: Callable[[Phone], AdbTransport], tmp_path: Path
) -> None:
    phone.set_properties(ro_product_cpu_abi="arm64-v8a", ro_soc_model="SM8750")
    facts = {"abi": "arm64-v8a", "qnn_build": "v2.51.0", "providers": ("cpu", "htp"), "htp_archs": ("v79", "v81")}
    bench.runner = scripted_runner(tmp_path / "phone-runner", **facts).folder
    bench.mtp, bench.slm = compiled(texts, tmp_path)
    device = connect(phone)
    _fails(bench("--device", device.serial), bench, "compiled for sm8850, not for sm8750")
    assert not any(name.startswith("sync:") for name in phone.services)


def test_an_arm_phone_needs_a_runner_built_for_it(
    bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport], texts: Texts
) -> None:
    phone.set_properties(ro_product_cpu_abi="arm64-v8a")
    phone.set_command("uname", "#!/bin/sh\necho aarch64\n")
    device = connect(phone)
    done = bench("--device", device.serial)
    assert done.exit_code == 2
    assert "built for x86_64-linux, the device is arm64-v8a" in done.stderr
    words = ["bench", "--device", device.serial, "--mtp-bundle", texts.session.mtp, "--slm-bundle", texts.session.slm]
    without = CliRunner().invoke(app, [*map(str, words), "--out", str(bench.out)])
    assert without.exit_code == 2
    assert "hyco-npu runner build" in without.stderr


def test_damage_and_wrong_use_are_told_before_the_phone_is_written_to(
    bench: Bench, texts: Texts, phone: Phone, connect: Callable[[Phone], AdbTransport], tmp_path: Path
) -> None:
    device = connect(phone)
    bench.mtp, bench.slm = compiled(texts, tmp_path)
    table = bench.slm / "table.safetensors"
    table.write_bytes(table.read_bytes()[:-1])
    _fails(bench("--device", device.serial), bench, r"table\.safetensors: \d+ bytes, the manifest says")
    bench.slm = texts.session.slm
    for arguments, message in (
        (("--config", "hyco"), "was recorded with a --config of its own"),
        (("--profile",), "QNN's own profiler"),
        (("--provider", "htp"), "has no provider htp"),
        (("--fit-scale", str(tmp_path / "s.json")), "only a phone's NPU"),
        (("--agreement", 2), "--agreement 2"),
        (("--out", str(tmp_path)), "exists; choose another folder"),
    ):
        done = bench("--device", device.serial, *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
    assert not any(name.startswith("sync:") for name in phone.services)


def test_a_bundle_of_its_own_verifier_is_needed(
    bench: Bench, phone: Phone, connect: Callable[[Phone], AdbTransport], tmp_path: Path
) -> None:
    """Without --rounds the family's verifier would record: it is not the small bundles' own."""
    device = connect(phone)
    words = ["bench", "--device", device.serial, "--mtp-bundle", bench.mtp, "--slm-bundle", bench.slm]
    words += ["--runner", bench.runner, "--out", bench.out]
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 1
    assert "the verifier has 2048 tokens" in done.stderr
    assert open_bundle(bench.mtp).manifest.keep_set.vocab_size == 300
    assert not any(name.startswith("sync:") for name in phone.services)
