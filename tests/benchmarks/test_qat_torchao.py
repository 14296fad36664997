"""`hyco-npu qat` against torchao's QAT flow on the embedded head: same data, batches, teacher, optimiser and steps.

torchao's flow is what its documentation shows: `quantize_(model, QATConfig(step="prepare"))` puts fake-quantised linear
layers (int4, symmetric, per channel) into the model, and an ordinary loop with torch's own KL trains it. Both get the
teacher's cached rows, and the output layer runs on the rows that count alone. Steps alternate, and CPU seconds are
compared, so that other work on the machine does not decide. Needs the `bench` extra (torchao) and about ten minutes.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from export.checkpoint.mtp import read_mtp_checkpoint
from export.graphs.mtp import MtpHead, load_mtp_head
from hyco_npu.family import CALIBRATION_PROMPTS, HELD_OUT_PROMPTS, MTP_DIR, VERIFIER_DIR
from hyco_npu.family.evaluate import bootstrap_interval
from hyco_npu.qat.chain import OUTPUT_LAYER
from hyco_npu.qat.evaluate import Form
from hyco_npu.qat.options import QatOptions, Recipe
from hyco_npu.qat.processes import Processes
from hyco_npu.qat.run import prepare
from hyco_npu.qat.table import difference, quantized_form
from hyco_npu.qat.train import Trainer, draw, schedule

if TYPE_CHECKING:
    from hyco_npu.qat.evaluate import Ruler

pytest.importorskip("torchao", reason="torchao is not installed: pip install hyco-npu[bench]")

STEPS = 100
WARM_UP = 5
SPEED_GOAL = 1.2


class TorchaoTrainer:
    """The ordinary loop over a head that torchao prepared."""

    def __init__(self, ours: Trainer) -> None:
        from torchao.quantization import quantize_
        from torchao.quantization.granularity import PerAxis
        from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

        checkpoint = read_mtp_checkpoint(MTP_DIR)
        head: MtpHead = load_mtp_head(checkpoint.config, checkpoint.state_dict())
        weights = IntxFakeQuantizeConfig(torch.int4, granularity=PerAxis(0), is_symmetric=True)
        quantize_(head, QATConfig(weight_config=weights, step="prepare"))
        self.linears = {f"{name}.weight": m for name, m in head.named_modules() if isinstance(m, nn.Linear)}
        for linear in self.linears.values():
            linear.weight = nn.Parameter(linear.weight.detach().clone())
        self.output: Any = head.lm_head
        head.set_submodule("lm_head", nn.Identity())
        self.head, self.ours = head, ours
        parameters = [linear.weight for linear in self.linears.values()]
        self.optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def run_step(self, step: int) -> float:
        """One step on the batch that our trainer draws at `step`."""
        recipe = self.ours.recipe
        part = draw(self.ours.lesson.texts, recipe, step)
        batch = self.ours.batch(part)
        hidden, rows = batch.hidden, []
        for embedding, counted in zip(batch.embeddings, batch.counted, strict=True):
            hidden, last = self.head(embedding=embedding, hidden=hidden, **batch.contexts)
            rows.append(last[:, 0][counted])
        log_student = self.output(torch.cat(rows)).log_softmax(-1)
        with torch.no_grad():
            original = self.ours.lesson.trunk.weights[OUTPUT_LAYER]
            log_teacher = (self.ours.wanted(part, batch) @ original.T).log_softmax(-1)
        loss = nn.functional.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate * schedule(step, recipe.steps)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def form(self) -> Form:
        """The weights as torchao rounds them."""
        with torch.no_grad():
            rounded = {name: m.weight_fake_quantizer(m.weight) for name, m in self.linears.items()}
        return Form("torchao QAT", 4, rounded, 0)


def test_faster_and_not_worse_than_torchao() -> None:
    recipe = Recipe(steps=STEPS)
    with TemporaryDirectory() as folder:
        work = Path(folder)
        options = QatOptions(
            MTP_DIR, VERIFIER_DIR, CALIBRATION_PROMPTS, HELD_OUT_PROMPTS, work / "out", work, recipe, device="cpu"
        )
        ours, ruler = prepare(options, read_mtp_checkpoint(MTP_DIR), Processes.join("cpu"), lambda _: None)
    theirs = TorchaoTrainer(ours)
    for index in range(len(ours.lesson.texts)):
        ours.teacher_rows(index)  # cached before any clock runs
    seconds: dict[str, list[float]] = {"ours": [], "torchao": []}
    losses: dict[str, list[float]] = {"ours": [], "torchao": []}
    for step in range(STEPS):
        for name, run in (("ours", lambda: ours.run_step().loss), ("torchao", lambda: theirs.run_step(step))):  # noqa: B023
            began = time.process_time()
            losses[name].append(run())
            seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(values[WARM_UP:]) for name, values in seconds.items()}
    ratio = medians["torchao"] / medians["ours"]
    measured = compare(ours, theirs, ruler)
    report = {
        "threads": torch.get_num_threads(),
        "cpu_seconds_per_step": medians,
        "steps_per_second_ratio": ratio,
        "loss_last_10": {name: statistics.fmean(values[-10:]) for name, values in losses.items()},
        **measured,
        "series": seconds,
    }
    print(json.dumps(report, indent=2))
    assert ratio >= SPEED_GOAL
    assert measured["ours_minus_torchao_accepted_greedy"][2] >= 0  # the interval's upper end


def compare(ours: Trainer, theirs: TorchaoTrainer, ruler: Ruler) -> dict[str, Any]:
    """Metrics of both, and ours minus theirs with its paired interval."""
    forms = {"ours": quantized_form("ours", ours.student.codes()), "torchao": theirs.form()}
    figures = {name: ruler.measure(form) for name, form in forms.items()}
    report: dict[str, Any] = {}
    for metric in figures["ours"]:
        for name, found in figures.items():
            own = found[metric]
            value = own.accepted.sum() / own.rounds.sum()
            report[f"{name}_{metric}"] = float(value), *bootstrap_interval(own.accepted, own.rounds, 0)
        gap = difference(figures["ours"], figures["torchao"], metric, 0)
        report[f"ours_minus_torchao_{metric}"] = gap.value, gap.low, gap.high
    return report
