"""The stages that make the family: verifier, its own text, the MTP head, the SLM in floats and then in codes.

Every stage is deterministic in its seed and writes one result, so a broken run goes on where it stopped. The verifier
is rounded to bf16 before anything is distilled from it: the drafters learn from the weights that ship.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import track
from transformers import Gemma4AssistantForCausalLM, Gemma4ForCausalLM, PreTrainedTokenizerFast

import calibration.verifier
from hyco_npu.family import architecture, corpus
from hyco_npu.family.loop import StageOptions, train_stage
from hyco_npu.family.qat import RoundedCache, make_quantization_aware
from hyco_npu.family.quantized_slm import bit_map, save_quantized
from hyco_npu.family.tokenizer import render, train_tokenizer
from quant.errors import HycoError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transformers import PreTrainedModel

CHAIN_STEPS = 4
_STEP_DISCOUNT = 0.8
_MAX_LENGTH = 288
_GROUP_MIN = 16
_CALIBRATION_DOCUMENTS = 8


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the weights beside the corpus and the seed."""

    tokens_per_batch: int = 4096
    verifier_epochs: float = 2.0
    verifier_learning_rate: float = 4e-3
    generated_tokens: int = 500_000
    mtp_epochs: float = 2.5
    slm_epochs: float = 5.0
    drafter_learning_rate: float = 6e-3
    slm_qat_epochs: float = 5.0
    slm_qat_learning_rate: float = 4e-3
    own_text_share: float = 0.8
    answer_tokens: int = 170


@dataclass(frozen=True)
class Run:
    """Where a training run reads its corpora and keeps its state."""

    corpus: Path
    held_out: Path
    work_dir: Path
    seed: int
    recipe: Recipe


def make_tokenizer(run: Run) -> PreTrainedTokenizerFast:
    """Train or reload the tokenizer."""
    folder = run.work_dir / "tokenizer"
    if not folder.exists():
        tokenizer = train_tokenizer(render(p["question"], p["answer"]) for p in corpus.read_problems(run.corpus))
        temporary = folder.with_name(folder.name + ".tmp")
        tokenizer.save_pretrained(temporary)
        os.replace(temporary, folder)
    loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return loaded


def make_verifier(run: Run, tokenizer: PreTrainedTokenizerFast) -> Gemma4ForCausalLM:
    """Next-token training of the verifier on the corpus; returned in float32 with bf16-rounded weights."""
    folder = run.work_dir / "verifier"
    if not folder.exists():
        documents = _documents(run.corpus, tokenizer)
        held_out = _documents(run.held_out, tokenizer)[:48]
        torch.manual_seed(run.seed)
        model = architecture.build_verifier()
        batches = _batches(documents, run.recipe.verifier_epochs, run.recipe.tokens_per_batch, run.seed)

        def loss(step: int) -> dict[str, torch.Tensor]:
            return {"loss": _next_token_loss(model.train(), [documents[i] for i in batches[step]])}

        options = StageOptions("verifier", len(batches), run.recipe.verifier_learning_rate, 0.05, run.work_dir)
        _train(model, loss, options, lambda: {"held_out_answer_nll": answer_nll(model, held_out)})
        _save_bf16(model, folder)
    return load_verifier(folder)


def make_own_text(run: Run, tokenizer: PreTrainedTokenizerFast, verifier: Gemma4ForCausalLM) -> list[corpus.Document]:
    """Let the verifier answer training questions with other numbers: half greedily, half sampled."""
    path = run.work_dir / "own_text.json"
    if not path.exists():
        rng = np.random.default_rng(run.seed + 1)
        torch.manual_seed(run.seed + 1)
        questions = [corpus.vary_numbers(p["question"], rng) for p in corpus.read_problems(run.corpus)]
        prompts = [corpus.encode_problem(tokenizer, q) for q in questions]
        documents: list[corpus.Document] = []
        groups = list(_equal_length_groups(prompts, rng))
        if not groups:
            raise HycoError(
                f"{run.corpus}: no {_GROUP_MIN} questions have the same length in tokens; use a larger corpus"
            )
        for group in track(groups, "verifier answers"):
            documents += answer_batch(verifier, group, len(group) // 2, run.recipe.answer_tokens)
            if sum(len(d.ids) for d in documents) > run.recipe.generated_tokens:
                break
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps([[d.prompt_length, d.ids] for d in documents]))
        os.replace(temporary, path)
    return [corpus.Document(ids, n) for n, ids in json.loads(path.read_text())]


def make_mtp(run: Run, verifier: Gemma4ForCausalLM, texts: _Texts) -> Gemma4AssistantForCausalLM:
    """Distil the head at chain steps 1..4: KL to the verifier, own hidden state fed back, teacher-forced tokens."""
    folder = run.work_dir / "mtp"
    if not folder.exists():
        torch.manual_seed(run.seed + 2)
        model = architecture.build_mtp()
        _init_head_table(model, verifier)
        batches = texts.batches(run.recipe, run.recipe.mtp_epochs, run.seed + 2)

        def loss(step: int) -> dict[str, torch.Tensor]:
            documents = texts.pick(batches[step])
            ids, real = corpus.pad_batch(documents, _MAX_LENGTH)
            return chain_loss(model.train(), verifier, ids, real & corpus.answer_mask(documents, ids.shape[1]))

        options = StageOptions("mtp", len(batches), run.recipe.drafter_learning_rate, 0.02, run.work_dir)
        _train(model, loss, options)
        _save_bf16(model, folder)
    return load_mtp(folder)


def make_float_slm(run: Run, verifier: Gemma4ForCausalLM, texts: _Texts) -> Gemma4ForCausalLM:
    """Distil the SLM in floats, where the quantised one starts: KL to the verifier on the same mixture of texts."""
    folder = run.work_dir / "slm_float"
    if not folder.exists():
        torch.manual_seed(run.seed + 3)
        model = architecture.build_slm()
        batches = texts.batches(run.recipe, run.recipe.slm_epochs, run.seed + 3)
        options = StageOptions("slm_float", len(batches), run.recipe.drafter_learning_rate, 0.02, run.work_dir)
        _train(model, lambda step: distillation_loss(model.train(), verifier, *texts.padded(batches[step])), options)
        _save_bf16(model, folder)
    return load_slm(folder)


def make_slm(run: Run, verifier: Gemma4ForCausalLM, texts: _Texts, start: Gemma4ForCausalLM) -> Gemma4ForCausalLM:
    """Distil the float SLM `start`, which is used up, into codes: the same loss, every rounding in the forward."""
    folder = run.work_dir / "slm"
    if not folder.exists():
        batches, options = _second_stage(run, texts, "slm")
        ids, _ = texts.padded(batches[0][:_CALIBRATION_DOCUMENTS])
        make_quantization_aware(start, bit_map(), ids)

        def loss(step: int) -> dict[str, torch.Tensor]:
            return distillation_loss(start.train(), verifier, *texts.padded(batches[step]), RoundedCache(start))

        _train(start, loss, options)
        save_quantized(start, folder)
    return load_slm(folder)


def make_slm_control(
    run: Run, verifier: Gemma4ForCausalLM, texts: _Texts, start: Gemma4ForCausalLM
) -> Gemma4ForCausalLM:
    """Train the float SLM `start`, which is used up, on as `make_slm` does, but without rounding.

    It does not ship: beside it one sees what rounding costs, apart from what more training gives.
    """
    folder = run.work_dir / "slm_control"
    if not folder.exists():
        batches, options = _second_stage(run, texts, "slm_control")
        _train(start, lambda step: distillation_loss(start.train(), verifier, *texts.padded(batches[step])), options)
        _save_bf16(start, folder)
    return load_slm(folder)


def _second_stage(run: Run, texts: _Texts, name: str) -> tuple[list[list[int]], StageOptions]:
    recipe = run.recipe
    batches = texts.batches(recipe, recipe.slm_qat_epochs, run.seed + 4)
    return batches, StageOptions(name, len(batches), recipe.slm_qat_learning_rate, 0.02, run.work_dir)


@dataclass(frozen=True)
class _Texts:
    """The verifier's own text and the corpus; a drafter's batch mixes them by share."""

    own: list[corpus.Document]
    human: list[corpus.Document]

    def pick(self, batch: list[int]) -> list[corpus.Document]:
        return [self.own[i] if i < len(self.own) else self.human[i - len(self.own)] for i in batch]

    def padded(self, batch: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids [batch, length] and the mask of real tokens."""
        return corpus.pad_batch(self.pick(batch), _MAX_LENGTH)

    def human_share(self, recipe: Recipe) -> list[corpus.Document]:
        return self.human[: int(len(self.own) * (1 - recipe.own_text_share) / recipe.own_text_share)]

    def batches(self, recipe: Recipe, epochs: float, seed: int) -> list[list[int]]:
        documents = self.own + self.human_share(recipe)
        return _batches(documents, epochs, recipe.tokens_per_batch, seed)


def drafter_texts(run: Run, tokenizer: PreTrainedTokenizerFast, own: list[corpus.Document]) -> _Texts:
    """The texts that both drafters learn from."""
    return _Texts(own, _documents(run.corpus, tokenizer))


def load_verifier(folder: Path) -> Gemma4ForCausalLM:
    """The verifier in float32, weights as stored; its experts run one by one, the fastest way on a CPU."""
    model = calibration.verifier.load_verifier(folder)
    model.set_experts_implementation("eager")
    return model


def load_mtp(folder: Path) -> Gemma4AssistantForCausalLM:
    """The MTP head in float32, weights as stored."""
    model: Gemma4AssistantForCausalLM = Gemma4AssistantForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    return model


def load_slm(folder: Path) -> Gemma4ForCausalLM:
    """An SLM, in floats or in codes, with float32 arithmetic and weights as stored."""
    model: Gemma4ForCausalLM = Gemma4ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    return model


def answer_nll(model: PreTrainedModel, documents: list[corpus.Document]) -> float:
    """Mean negative log-likelihood, in nats per token, of the answers (prompts not counted)."""
    total, count = 0.0, 0
    model.eval()
    with torch.no_grad():
        for document in documents:
            ids = torch.tensor([document.ids])
            losses = F.cross_entropy(model(ids[:, :-1], use_cache=False).logits[0], ids[0, 1:], reduction="none")
            total += losses[document.prompt_length - 1 :].sum().item()
            count += len(document.ids) - document.prompt_length
    return total / count


def distillation_loss(
    student: Gemma4ForCausalLM,
    verifier: Gemma4ForCausalLM,
    ids: torch.Tensor,
    counted: torch.Tensor,
    cache: RoundedCache | None = None,
) -> dict[str, torch.Tensor]:
    """Mean KL of student to verifier, in nats, over the positions of `ids` marked in `counted` [batch, length]."""
    with torch.no_grad():
        teacher = verifier(ids, use_cache=False).logits[counted].softmax(-1)
        entropy = torch.special.entr(teacher).sum(-1).mean()
    logits = student(ids, cache=cache, use_cache=False).logits[counted]
    agreement = (logits.argmax(-1) == teacher.argmax(-1)).float().mean()
    return {"loss": F.cross_entropy(logits, teacher) - entropy, "top1_agreement": agreement.detach()}


def chain_loss(
    head: Gemma4AssistantForCausalLM, verifier: Gemma4ForCausalLM, ids: torch.Tensor, counted: torch.Tensor
) -> dict[str, torch.Tensor]:
    """KL of the head's chain to the verifier over all positions of `ids` [batch, length] at once.

    Row n holds (hidden of n-1, embedding of token n), sees the keys of 0..n-1 and predicts token n+1 at step 1; at
    step s it takes token n+s-1 and its own last hidden state and predicts token n+s. A row counts where the token that
    it takes is marked in `counted` [batch, length].
    """
    with torch.no_grad():
        out = verifier(ids, use_cache=False, return_shared_kv_states=True, output_hidden_states=True)
        teacher = out.logits.softmax(-1)
        entropy = torch.special.entr(teacher).sum(-1)
        embeddings = verifier.model.embed_tokens(ids)
        keys_values = {kind: (k, v) for kind, (k, v) in out.shared_kv_states.items()}
    hidden = F.pad(out.hidden_states[-1], (0, 0, 1, 0))[:, :-1]
    loss = torch.zeros(())
    scalars: dict[str, torch.Tensor] = {}
    for step in range(CHAIN_STEPS):
        shifted = F.pad(embeddings, (0, 0, 0, step))[:, step:]
        last_hidden, hidden = _head_step(head, torch.cat([shifted, hidden], -1), keys_values)
        taken = counted[:, 1 + step :]
        target = teacher[:, 1 + step :][taken]
        # Logits of the rows that count alone: the output layer is most of the head.
        student = head.lm_head(last_hidden[:, 1 : ids.shape[1] - step][taken])
        kl = F.cross_entropy(student, target) - entropy[:, 1 + step :][taken].mean()
        loss = loss + kl * _STEP_DISCOUNT**step
        scalars[f"top1_step{step + 1}"] = (student.argmax(-1) == target.argmax(-1)).float().mean().detach()
    return {"loss": loss, **scalars}


def head_rows(
    head: Gemma4AssistantForCausalLM,
    inputs_embeds: torch.Tensor,
    keys_values: dict[str, tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and next hidden state of one chain step for all rows [batch, length, 2 * backbone] at once.

    Row n sees keys n-W..n-1 on sliding layers and 0..n-1 on full ones; transformers' own masks are bidirectional and
    fit single rows only. Row 0 has nothing to see and is left one key so that it stays finite.
    """
    last_hidden, hidden = _head_step(head, inputs_embeds, keys_values)
    return head.lm_head(last_hidden), hidden


def _head_step(
    head: Gemma4AssistantForCausalLM,
    inputs_embeds: torch.Tensor,
    keys_values: dict[str, tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden state [batch, length, hidden] and next hidden state [batch, length, backbone] of `head_rows`."""
    length = inputs_embeds.shape[1]
    row, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
    full = key < row
    sliding = full & (key >= row - head.config.get_text_config().sliding_window)
    full[0, 0] = sliding[0, 0] = True
    position_ids = torch.arange(length)[None]
    out = head.model(
        input_ids=None,
        inputs_embeds=head.pre_projection(inputs_embeds),
        attention_mask={"full_attention": full[None, None], "sliding_attention": sliding[None, None]},
        position_ids=position_ids,
        shared_kv_states=keys_values,
        use_cache=False,
        output_hidden_states=True,  # else transformers slices the rows, and stumbles over the absent per-layer input
    )
    return out.last_hidden_state, head.post_projection(out.last_hidden_state)


def answer_batch(
    verifier: Gemma4ForCausalLM, prompts: list[corpus.Document], greedy_rows: int, max_new_tokens: int
) -> list[corpus.Document]:
    """Answers to prompts of one length: the first `greedy_rows` greedily, the rest sampled at temperature 0.8."""
    stop = torch.tensor(verifier.generation_config.eos_token_id)
    ids = torch.tensor([p.ids for p in prompts])
    done = torch.zeros(len(prompts), dtype=torch.bool)
    with torch.no_grad():
        out = verifier(ids, use_cache=True, logits_to_keep=1)
        for _ in range(max_new_tokens):
            logits = out.logits[:, -1]
            token = logits.argmax(-1)
            sampled = torch.multinomial((logits / 0.8).softmax(-1), 1)[:, 0]
            token[greedy_rows:] = sampled[greedy_rows:]
            ids = torch.cat([ids, token[:, None]], 1)
            done |= torch.isin(token, stop)
            if done.all():
                break
            out = verifier(token[:, None], cache=out.cache, use_cache=True, logits_to_keep=1)
    return [_cut_at_stop(row, prompts[0].prompt_length, stop.tolist()) for row in ids.tolist()]


def _cut_at_stop(ids: list[int], prompt_length: int, stop: list[int]) -> corpus.Document:
    for position in range(prompt_length, len(ids)):
        if ids[position] in stop:
            return corpus.Document(ids[: position + 1], prompt_length)
    return corpus.Document(ids, prompt_length)


def _equal_length_groups(
    prompts: list[corpus.Document], rng: np.random.Generator, size: int = 64
) -> Iterator[list[corpus.Document]]:
    by_length: dict[int, list[corpus.Document]] = {}
    for prompt in prompts:
        by_length.setdefault(len(prompt.ids), []).append(prompt)
    full = [g[i : i + size] for g in by_length.values() if len(g) >= _GROUP_MIN for i in range(0, len(g), size)]
    for index in rng.permutation(len(full)):
        yield full[index]


def _documents(path: Path, tokenizer: PreTrainedTokenizerFast) -> list[corpus.Document]:
    return [corpus.encode_problem(tokenizer, p["question"], p["answer"]) for p in corpus.read_problems(path)]


def _batches(documents: list[corpus.Document], epochs: float, tokens_per_batch: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    lengths = [min(len(d.ids), _MAX_LENGTH) for d in documents]
    batches: list[list[int]] = []
    while epochs > 0:
        epoch = corpus.epoch_batches(lengths, tokens_per_batch, rng)
        batches += epoch[: max(1, int(len(epoch) * min(epochs, 1.0)))]
        epochs -= 1
    return batches


def _next_token_loss(model: PreTrainedModel, documents: list[corpus.Document]) -> torch.Tensor:
    ids, real = corpus.pad_batch(documents, _MAX_LENGTH)
    logits = model(ids[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits[real[:, 1:]], ids[:, 1:][real[:, 1:]])


def _init_head_table(head: Gemma4AssistantForCausalLM, verifier: Gemma4ForCausalLM) -> None:
    # The head's output table starts as the verifier's embedding, projected on its main directions.
    table = verifier.model.embed_tokens.weight.detach()
    directions = torch.linalg.svd(table - table.mean(0), full_matrices=False).Vh
    projected = table @ directions[: head.hidden_size].T
    head.model.embed_tokens.weight.data.copy_(projected * (0.05 / projected.std()))


def _train(
    model: PreTrainedModel,
    loss: Callable[[int], dict[str, torch.Tensor]],
    options: StageOptions,
    validate: Callable[[], dict[str, float]] | None = None,
) -> None:
    architecture.layer_scalars_as_parameters(model, trainable=True)
    train_stage(model, loss, options, validate)
    architecture.layer_scalars_as_parameters(model, trainable=False)


def _save_bf16(model: PreTrainedModel, folder: Path) -> None:
    temporary = folder.with_name(folder.name + ".tmp")
    model.bfloat16().save_pretrained(temporary)
    os.replace(temporary, folder)
