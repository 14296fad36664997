"""The folder of a QAIRT SDK that the user has: which of its files the phone needs, its host tools, its build.

    bin/aarch64-android/qnn-net-run
    lib/aarch64-android/libQnnHtp.so, libQnnSystem.so, libQnnHtpNetRunExtensions.so, libQnnHtpVXXStub.so
    lib/hexagon-vXX/unsigned/libQnnHtpVXXSkel.so
    bin/x86_64-linux-clang/qnn-profile-viewer, qnn-context-binary-utility

The layout is that of Qualcomm's documentation; no SDK was there when this was written.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from device_runner.graph_errors import NetRunError, SdkError
from device_runner.marked import run_process
from device_runner.qnn_build import one_build, read_stamp
from device_runner.transport import Timeout, excerpt

if TYPE_CHECKING:
    from pathlib import Path

NET_RUN, BACKEND = "qnn-net-run", "libQnnHtp.so"
EXTENSIONS = "libQnnHtpNetRunExtensions.so"
_DEVICE, _HOST = "aarch64-android", "x86_64-linux-clang"
_VIEWER, _UTILITY = "qnn-profile-viewer", "qnn-context-binary-utility"
_TOOL_TIMEOUT = Timeout(300.0)


@dataclass(frozen=True)
class QairtSdk:
    """An SDK whose files were found. device_files lie flat beside each other on the phone. build: the backend's."""

    root: Path
    device_files: tuple[Path, ...]
    build: str

    @classmethod
    def load(cls, root: Path, htp_arch: str) -> QairtSdk:
        """Find the files for a Hexagon architecture such as "v81".

        Raises:
            SdkError: no such folder, a file that is absent (named), or a backend that does not tell its build.
            PieceError: pieces of several builds.
        """
        if not root.is_dir():
            raise SdkError(f"{root} is no folder; --qairt-sdk takes the SDK's own, the one with bin and lib")
        arch = htp_arch.upper()
        device = tuple(
            root / relative
            for relative in (
                f"bin/{_DEVICE}/{NET_RUN}",
                f"lib/{_DEVICE}/{BACKEND}",
                f"lib/{_DEVICE}/libQnnSystem.so",
                f"lib/{_DEVICE}/{EXTENSIONS}",
                f"lib/{_DEVICE}/libQnnHtp{arch}Stub.so",
                f"lib/hexagon-{htp_arch}/unsigned/libQnnHtp{arch}Skel.so",
            )
        )
        tools = tuple(root / "bin" / _HOST / name for name in (_VIEWER, _UTILITY))
        missing = [path for path in (*device, *tools) if not path.is_file()]
        if missing:
            names = ", ".join(str(path.relative_to(root)) for path in missing)
            raise SdkError(f"{root} lacks {names}: is it a QAIRT SDK, and does it know Hexagon {htp_arch}?")
        build = one_build({path.name: read_stamp(path) for path in device})
        if build is None:
            raise SdkError(f"no library of {root} carries its QNN build (a text like v2.51.0.260929181845)")
        return cls(root, device, build)

    def view_profile(self, log: Path, csv: Path) -> None:
        """Turn a profiling log into a CSV file; raises NetRunError where the tool fails or writes none."""
        self._tool(_VIEWER, ["--input_log", str(log), "--output", str(csv)], csv)

    def describe_binary(self, binary: Path, json_file: Path) -> None:
        """Write what a context binary holds as JSON; raises NetRunError where the tool fails or writes none."""
        self._tool(_UTILITY, ["--context_binary", str(binary), "--json_file", str(json_file)], json_file)

    def _tool(self, name: str, arguments: list[str], output: Path) -> None:
        path = self.root / "bin" / _HOST / name
        if not os.access(path, os.X_OK):
            raise SdkError(f"{path} cannot be run: unpack the SDK with its file modes, or `chmod +x` it")
        libraries = f"LD_LIBRARY_PATH={self.root / 'lib' / _HOST}"
        finished = run_process(["env", libraries, str(path), *arguments], _TOOL_TIMEOUT, label=name)
        if finished.exit_code != 0 or not output.is_file():
            raise NetRunError(
                f"{name} of {self.root} ended with {finished.exit_code} and "
                f"{'wrote' if output.is_file() else 'did not write'} its output: "
                f"{excerpt(finished.stderr, finished.stdout)}"
            )
