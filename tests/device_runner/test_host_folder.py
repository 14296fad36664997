"""The host's folder: what the wheels' libraries need lies in it, the simulator runs out of it, and it is built once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import device_runner.host_folder as host_folder
from device_runner.host_folder import build_host_runner, cached_host_runner
from device_runner.native_errors import NativeBuildError, PieceError, RunnerFolderError
from device_runner.runner_folder import RunnerFolder
from export.engines.htp import TARGETS, compile_graph

from .aars import BUILD
from .made_up_elf import X86_64, elf

if TYPE_CHECKING:
    from collections.abc import Sequence

OF_THE_SYSTEM = re.compile(
    r"(libc|libm|libdl|librt|libpthread|libgcc_s|libatomic|libstdc\+\+|ld-linux-x86-64)\.so\.\d+"
)
ON_THE_SIMULATOR = """
import json, sys
import numpy as np, onnxruntime as ort
folder, model, codes = sys.argv[1:]
ort.register_execution_provider_library("QNNExecutionProvider", f"{folder}/libonnxruntime_providers_qnn.so")
(device,) = [one for one in ort.get_ep_devices() if one.ep_name == "QNNExecutionProvider"][:1]
options = ort.SessionOptions()
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
backend = {"backend_path": f"{folder}/libQnnHtp.so", "soc_model": "87", "htp_arch": "81"}
options.add_provider_for_devices([device], backend)
made = ort.InferenceSession(model, options).run(None, {"x": np.array([json.loads(codes)], np.uint16)})[0]
loaded = {line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith((".so", ".so.1.0"))}
print(json.dumps({"codes": made[0].tolist(), "loaded": sorted(loaded)}))
"""


@pytest.fixture(scope="module")
def runner() -> RunnerFolder:
    """Out of the cache where it is there already."""
    return cached_host_runner()


def needed(path: Path) -> Sequence[str]:
    said = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\)\s+Shared library: \[([^]]+)\]", said)


@pytest.mark.native
@pytest.mark.htp
class TestBuilt:
    def test_its_libraries_are_the_wheels(self, runner: RunnerFolder) -> None:
        runner.verify()
        facts = runner.description
        assert (facts.abi, facts.providers) == ("x86_64-linux", ("cpu", "simulator"))
        assert facts.ort_version == ort.__version__
        capi = Path(ort.__file__).parent / "capi"
        assert runner.ort.read_bytes() == (capi / f"libonnxruntime.so.{ort.__version__}").read_bytes()
        import onnxruntime_qnn

        assert runner.qnn_backend is not None
        assert runner.qnn_backend.read_bytes() == Path(onnxruntime_qnn.get_qnn_htp_path()).read_bytes()
        assert facts.qnn_build is not None
        assert facts.qnn_build.startswith(f"v{onnxruntime_qnn.build_and_package_info.qnn_version}.")

    def test_what_they_need_lies_beside_them(self, runner: RunnerFolder) -> None:
        for file in runner.description.files:
            foreign = [name for name in needed(runner.folder / file.path) if not OF_THE_SYSTEM.fullmatch(name)]
            assert [name for name in foreign if not (runner.folder / name).is_file()] == [], file.path

    def test_the_runner_takes_the_c_plus_plus_library_with_it(self, runner: RunnerFolder) -> None:
        assert {name.split(".")[0] for name in needed(runner.executable)} <= {"libc", "libm", "ld-linux-x86-64"}
        done = subprocess.run([runner.executable], capture_output=True, text=True, check=False, env={})
        assert (done.returncode, json.loads(done.stdout.splitlines()[-1])) == (2, {"end": True, "exit": 2})

    def test_the_simulator_runs_out_of_the_folder_alone(self, runner: RunnerFolder, tmp_path: Path) -> None:
        rng = np.random.default_rng(3)
        model = write_matmul(tmp_path / "model.onnx", rng)
        codes = rng.integers(20000, 45000, 32).tolist()
        wanted = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(
            None, {"x": np.array([codes], np.uint16)}
        )[0]
        compiled = compile_graph(model, tmp_path / "context.onnx", TARGETS["sm8850"])
        done = subprocess.run(
            [sys.executable, "-c", ON_THE_SIMULATOR, str(runner.folder), str(compiled.context), json.dumps(codes)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "LD_LIBRARY_PATH": ""},
        )
        said = json.loads(done.stdout.splitlines()[-1])
        signal, error = wanted[0] - 32768.0, np.array(said["codes"]) - wanted[0].astype(float)
        assert np.sqrt(np.mean(error**2)) <= 0.01 * np.sqrt(np.mean(signal**2))
        loaded = {Path(path).name: Path(path).parent for path in said["loaded"]}
        listed = {file.path for file in runner.description.files} - {"hyco_runner", "libonnxruntime.so"}
        assert {name: loaded.get(name) for name in listed} == dict.fromkeys(listed, runner.folder)


def write_matmul(path: Path, rng: np.random.Generator) -> Path:
    """uint16 codes [1, 32] times 8-bit weights [32, 32], as the exporter writes it."""
    constants = {
        "w": rng.integers(-7, 8, (32, 32)).astype(np.int8),
        "w_scale": np.full(32, 0.05, np.float32),
        "w_zero": np.zeros(32, np.int8),
        "x_scale": np.float32(0.001),
        "zero": np.uint16(32768),
        "y_scale": np.float32(0.01),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "zero"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wf"], axis=1),
        helper.make_node("MatMul", ["xf", "wf"], ["yf"]),
        helper.make_node("QuantizeLinear", ["yf", "y_scale", "zero"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.UINT16, [1, 32]) for name in "xy"]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "matmul", ends[:1], ends[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


class TestCache:
    @pytest.fixture(autouse=True)
    def _small(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Made-up wheels and sources; the compiler is a counter."""
        wheel, self.sources, self.builds = tmp_path / "wheel", tmp_path / "sources", 0
        wheel.mkdir()
        self.sources.mkdir()
        (self.sources / "main.cpp").write_text("int main() {}")
        content = {name: elf(X86_64) for name in ("libonnxruntime.so", "libonnxruntime_providers_qnn.so")}
        content |= {
            "libQnnHtp.so": elf(X86_64, texts=(BUILD,)),
            "libQnnSystem.so": elf(X86_64, texts=("260929181845",)),
        }
        for name, data in content.items():
            (wheel / name).write_bytes(data)
        monkeypatch.setattr(host_folder, "_wheel_pieces", lambda: {name: (wheel / name, "wheel") for name in content})
        monkeypatch.setattr(host_folder, "NATIVE_SOURCES", self.sources)
        monkeypatch.setattr(host_folder, "build_host", self._build)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        self.cache = tmp_path / "cache" / "hyco-npu" / "runner"

    def _build(self, build_dir: Path) -> Path:
        self.builds += 1
        (build_dir / "hyco_runner").write_bytes(elf(X86_64))
        return build_dir / "hyco_runner"

    def folders(self) -> list[Path]:
        return sorted(path for path in self.cache.iterdir() if path.is_dir())

    def test_one_build_for_the_same_sources(self) -> None:
        first = cached_host_runner()
        assert first.description.qnn_build == BUILD
        assert cached_host_runner() == first
        assert self.builds == 1
        assert self.folders() == [first.folder]

    def test_other_sources_are_another_build(self) -> None:
        first = cached_host_runner()
        (self.sources / "main.cpp").write_text("int main() { return 1; }")
        second = cached_host_runner()
        assert self.builds == 2
        assert first.folder != second.folder
        (self.sources / "probe").mkdir()
        (self.sources / "probe" / "probe.cpp").write_text("not of the runner")
        assert cached_host_runner().folder == second.folder

    def test_a_damaged_folder_is_built_again(self) -> None:
        first = cached_host_runner()
        first.executable.unlink()
        assert cached_host_runner().executable.is_file()
        (first.folder / "runner.json").write_text("{")
        cached_host_runner().verify()
        assert self.builds == 3
        assert self.folders() == [first.folder]

    def test_few_old_builds_are_kept(self) -> None:
        for number in range(5):
            (self.sources / "main.cpp").write_text(f"int main() {{ return {number}; }}")
            newest = cached_host_runner().folder
            os.utime(newest, (number, number))
        assert len(self.folders()) == 3
        assert newest in self.folders()

    def test_a_build_that_fails_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(build_dir: Path) -> Path:
            raise NativeBuildError("no compiler")

        monkeypatch.setattr(host_folder, "build_host", fail)
        with pytest.raises(NativeBuildError):
            cached_host_runner()
        assert [path.name for path in self.cache.iterdir()] == ["lock"]

    def test_another_machine_is_refused(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(host_folder.platform, "machine", lambda: "aarch64")
        with pytest.raises(NativeBuildError, match="this is aarch64 Linux"):
            build_host_runner(tmp_path / "out")
        with pytest.raises(RunnerFolderError):
            RunnerFolder.load(tmp_path / "out")


def test_a_wheel_without_a_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packages = {"onnxruntime": tmp_path / "onnxruntime", "onnxruntime_qnn": tmp_path / "onnxruntime_qnn"}
    (packages["onnxruntime"] / "capi").mkdir(parents=True)
    packages["onnxruntime_qnn"].mkdir()
    monkeypatch.setattr(host_folder, "_package", packages.__getitem__)
    with pytest.raises(PieceError, match=r"holds 0 files libonnxruntime\.so\.\*"):
        build_host_runner(tmp_path / "out")
    (packages["onnxruntime"] / "capi" / "libonnxruntime.so.1.32.0").write_bytes(elf(X86_64))
    with pytest.raises(PieceError, match=r"has no libonnxruntime_providers_qnn\.so"):
        build_host_runner(tmp_path / "out")
