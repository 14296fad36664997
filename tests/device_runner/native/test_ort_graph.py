"""Graphs on ONNX Runtime's C interface against the same graphs through its Python one.

Every function of the interface that is used shows here by what it does: outputs that are Python's, boundaries that are
read and compared, settings that take effect, memory that is given back.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from export.bundle import open_bundle
from export.bundle.boundary import boundary_of, tensor_info
from export.engines.cpu import cpu_session
from export.engines.graph_io import Boundary, BoundaryTensor
from export.engines.htp import TARGETS, compile_graph, simulator_session

from .conftest import RefusedError
from .real_bundles import ORT, alter, make_pair
from .test_replay import CONFIGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .conftest import Native
    from .recorded import Session

pytestmark = pytest.mark.native
OTHER_LIBRARY = ORT.with_name("libonnxruntime_providers_shared.so")
GRAPHS = {"mtp": ("mtp_step",), "slm": ("draft", "prefill")}


@dataclass(frozen=True)
class Described:
    """A graph of a bundle."""

    bundle: Path
    name: str

    @property
    def model(self) -> Path:
        return open_bundle(self.bundle).graph_file(self.name, "qdq")

    @property
    def boundary(self) -> Boundary:
        return boundary_of(open_bundle(self.bundle).graph(self.name))

    def arguments(self, **more: Any) -> dict[str, Any]:
        plain = {"bundle": str(self.bundle), "graph": self.name, "ort": str(ORT), "model": str(self.model)}
        return {**plain, "entries": {}, **more}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return make_pair(tmp_path_factory.mktemp("pair"), CONFIGS["one-pass"])


@pytest.fixture(params=[(kind, name) for kind, names in GRAPHS.items() for name in names], ids="-".join)
def graph(request: pytest.FixtureRequest, session: Session) -> Described:
    kind, name = request.param
    return Described(getattr(session, kind), name)


@pytest.fixture
def head(session: Session, tmp_path: Path) -> Described:
    """The head's graph in a bundle of its own, to be changed."""
    return Described(Path(shutil.copytree(session.mtp, tmp_path / "mtp")), "mtp_step")


def random_codes(boundary: Boundary, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def codes(tensor: BoundaryTensor) -> np.ndarray:
        low, high = tensor.integer.qmin, tensor.integer.qmax + 1
        return rng.integers(low, high, tensor.shape).astype(tensor.dtype)

    return {tensor.name: codes(tensor) for tensor in boundary.inputs}


def hashes(session: Any, boundary: Boundary, codes: dict[str, np.ndarray]) -> list[str]:
    outputs = session.run([tensor.name for tensor in boundary.outputs], codes)
    return [hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in outputs]


def run_probe(native: Native, graph: Described, **more: Any) -> tuple[dict[str, Any], list[dict[str, np.ndarray]]]:
    """The probe's answer and what it was given: first, second, first again."""
    first, second = (random_codes(graph.boundary, seed) for seed in (1, 2))
    arrays = {f"first.{name}": array for name, array in first.items()}
    arrays |= {f"second.{name}": array for name, array in second.items()}
    return native.probe("graph", arrays, **graph.arguments(**more)), [first, second, first]


def test_outputs_are_those_of_python(native: Native, graph: Described) -> None:
    """Bit for bit, in memory that stays (bound once) and in memory that moves (bound anew)."""
    found, given = run_probe(native, graph)
    reference = cpu_session(graph.model, threads=1)
    assert found["runs"] == [hashes(reference, graph.boundary, codes) for codes in given]
    assert found["runs"][0] != found["runs"][1]


def test_a_run_takes_no_memory_where_nothing_has_moved(native: Native, graph: Described) -> None:
    taken = run_probe(native, graph)[0]["taken"]
    assert taken["unmoved"] == 0


def test_the_graph_is_not_optimised(builds: Callable[[str], Native], tmp_path: Path, head: Described) -> None:
    """A product of 8-bit codes is one integer operator where graphs are optimised, and rounds otherwise."""
    model = _eight_bit_product(head.model)
    boundary = Boundary(
        (BoundaryTensor("x", "uint8", (64, 64), 0.02, 128),), (BoundaryTensor("y", "uint8", (64, 64), 0.11, 128),)
    )
    _describe(head, boundary)
    codes = random_codes(boundary, 1)
    fused = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    plain = hashes(cpu_session(model), boundary, codes)
    assert hashes(fused, boundary, codes) != plain
    assert run_probe(builds("release"), head)[0]["runs"][0] == plain


def _eight_bit_product(path: Path) -> Path:
    helper, rng = onnx.helper, np.random.default_rng(0)
    types, shape = onnx.TensorProto, (64, 64)
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(128), "w": rng.integers(-127, 128, shape).astype(np.int8),
        "ws": np.float32(0.01), "wz": np.int8(0), "ys": np.float32(0.11), "yz": np.uint8(128),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["y"]),
    ]
    ends = [[helper.make_tensor_value_info(name, types.UINT8, shape)] for name in ("x", "y")]
    tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    opset = [helper.make_opsetid("", 21)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", *ends, tensors), opset_imports=opset, ir_version=10), path
    )
    return path


def _describe(graph: Described, boundary: Boundary) -> None:
    """Write another boundary into the manifest."""
    entry = open_bundle(graph.bundle).graph(graph.name)
    sides = {"inputs": boundary.inputs, "outputs": boundary.outputs}
    described = {side: tuple(map(tensor_info, tensors)) for side, tensors in sides.items()}
    alter(graph.bundle, graphs=(entry.model_copy(update=described),))


def changed(tensor: str, **changes: Any) -> Callable[[Boundary], Boundary]:
    """A boundary in which one tensor is another; without changes it is left out."""

    def one(tensors: tuple[BoundaryTensor, ...]) -> tuple[BoundaryTensor, ...]:
        kept = [t if t.name != tensor else BoundaryTensor(**{**t.__dict__, **changes}) for t in tensors]
        return tuple(t for t in kept if changes or t.name != tensor)

    return lambda boundary: Boundary(one(boundary.inputs), one(boundary.outputs))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("hidden", name="state"), ("input hidden", "lacks")),
        (changed("hidden"), ("12 inputs, its manifest 11",)),
        (changed("logits_1"), ("3 outputs, its manifest 2",)),
        (changed("next_hidden", name="state"), ("output next_hidden", "lacks")),
        (changed("keys_full", dtype="uint16"), ("input keys_full is int16 [1, 1, 16, 20]", "manifest uint16")),
        (changed("mask_full", shape=(1, 1, 1, 21)), ("mask_full is uint16 [1, 1, 1, 20]", "uint16 [1, 1, 1, 21]")),
        (changed("embedding", shape=(1, 1, 24)), ("embedding is uint16 [1, 1, 1, 24]", "uint16 [1, 1, 24]")),
        (changed("logits_0", dtype="int8"), ("output logits_0 is uint16 [1, 1, 1, 90]", "int8 [1, 1, 1, 90]")),
    ],
)
def test_a_model_of_another_boundary_is_refused(
    native: Native, head: Described, change: Callable[[Boundary], Boundary], words: tuple[str, ...]
) -> None:
    _describe(head, change(head.boundary))
    with pytest.raises(RefusedError) as refused:
        native.probe("graph", **head.arguments())
    for word in ("mtp_step", *words, "of different exports"):
        assert word in str(refused.value)


def test_what_sessions_take_they_give_back(builds: Callable[[str], Native], graph: Described) -> None:
    """Threads come and go with a session, a setting of the log counts, and many sessions hold no more than one."""
    found = builds("release").probe("sessions", sessions=40, **graph.arguments())
    assert found["version"] == ort.__version__
    before, with_four, after = found["threads"]
    assert (with_four - before, after) == (3, before)
    verbose, errors_alone = found["logged"]
    assert verbose > errors_alone == 0
    # thirty sessions' tensors would be more; the build with sanitizers looks for single objects
    held = found["held"]
    assert abs(held[-1] - held[9]) < 1 << 15


def test_settings_of_a_session_count(native: Native, graph: Described) -> None:
    with pytest.raises(RefusedError, match="fallback to CPU EP has been explicitly disabled"):
        native.probe("graph", **graph.arguments(entries={"session.disable_cpu_ep_fallback": "1"}))


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot be opened"), (b"text", "cannot be loaded"), (OTHER_LIBRARY.read_bytes(), "no OrtGetApiBase")],
    ids=["absent", "text", "another"],
)
def test_a_library_that_is_none_is_named(native: Native, head: Described, content: bytes | None, words: str) -> None:
    library = head.bundle / "libonnxruntime.so"
    if content is not None:
        library.write_bytes(content)
    with pytest.raises(RefusedError, match=words) as refused:
        native.probe("graph", **head.arguments(ort=str(library)))
    assert library.name in str(refused.value)


def test_a_damaged_model_is_named(native: Native, head: Described) -> None:
    model = head.model
    model.write_bytes(model.read_bytes()[:-100])
    with pytest.raises(RefusedError, match=r"mtp_step.*does not load"):
        native.probe("graph", **head.arguments())


@pytest.fixture(scope="module")
def compiled(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Path:
    context = tmp_path_factory.mktemp("compiled") / "draft.onnx"
    compile_graph(Described(session.slm, "draft").model, context, TARGETS["sm8850"])
    return context


def _on_simulator(session: Session, context: Path, **options: str) -> tuple[Described, dict[str, Any]]:
    import onnxruntime_qnn

    chip = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": "87", "htp_arch": "81"}
    plan = {"qnn_plugin": onnxruntime_qnn.get_library_path(), "provider_options": chip | options}
    return Described(session.slm, "draft"), {"model": str(context), **plan}


@pytest.mark.htp
def test_outputs_on_the_simulator_are_those_of_python(
    builds: Callable[[str], Native], session: Session, compiled: Path
) -> None:
    graph, plan = _on_simulator(session, compiled)
    found, given = run_probe(builds("release"), graph, **plan)
    reference = simulator_session(compiled, TARGETS["sm8850"])
    assert found["runs"] == [hashes(reference, graph.boundary, codes) for codes in given]
    assert found["taken"]["unmoved"] == 0


@pytest.mark.htp
@pytest.mark.parametrize("what", ["plugin", "chip", "binary", "fallback"])
def test_what_the_simulator_refuses_is_named(
    builds: Callable[[str], Native], session: Session, compiled: Path, tmp_path: Path, what: str
) -> None:
    context = Path(shutil.copytree(compiled.parent, tmp_path / "copy")) / compiled.name
    graph, plan = _on_simulator(session, context)
    if what == "plugin":
        plan["qnn_plugin"] = str(ORT)
    elif what == "chip":
        plan["provider_options"] |= {"soc_model": "57", "htp_arch": "75"}
    elif what == "binary":
        (binary,) = context.parent.glob("*.bin")
        binary.write_bytes(binary.read_bytes()[:1000])
    else:
        plan["model"] = str(_with_a_node_for_the_cpu(graph.model, tmp_path))
    words = {"plugin": ORT.name, "fallback": "fallback to CPU EP"}.get(what, "does not load")
    with pytest.raises(RefusedError, match=words):
        builds("release").probe("graph", **graph.arguments(**plan))


def _with_a_node_for_the_cpu(path: Path, folder: Path) -> Path:
    """The same model with an operator that QNN does not have."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "Tanh":
            node.op_type = "Erf"
    onnx.save(model, folder / "erf.onnx")
    return folder / "erf.onnx"
