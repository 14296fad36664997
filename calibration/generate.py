"""The verifier answers prompts, many at a time: the tokens that keep sets, ranges and QAT are made from.

An answer does not depend on the batch it was made in. Prompts of a batch are padded on the left, which changes sums in
their last bits only; a row where that could matter, because two tokens or two experts of a router are nearly equal, is
answered again alone. Sampling adds Gumbel noise (argmax(logits / T + g) is a draw from softmax(logits / T)) seeded by
the seed and the prompt's tokens, so it is as repeatable as greedy decoding.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from calibration.errors import ResponseFileError
from calibration.jsonfile import replace_file
from calibration.responses import Response, write_responses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from transformers import Gemma4ForCausalLM, PreTrainedTokenizerBase

    from calibration.prompts import Prompt

# Batched and single passes of the embedded verifier differ by up to 1e-5 in logits, 1.5e-7 in router probabilities.
_TOKEN_MARGIN = 1e-4
_EXPERT_MARGIN = 1e-6
_ROUTER = "Gemma4TextRouter"


@dataclass(frozen=True)
class GenerationOptions:
    """Length of an answer in tokens at most, temperature (0: greedy), seed of the sampling."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Answerer:
    """A verifier with its tokenizer, the hash of its checkpoint and how it answers: `batch` prompts at a time."""

    verifier: Gemma4ForCausalLM
    tokenizer: PreTrainedTokenizerBase
    verifier_sha256: str
    options: GenerationOptions
    batch: int = 16


def generate_responses(
    answerer: Answerer,
    prompts: Sequence[tuple[Prompt, Sequence[int]]],
    out: Path,
    origin: Mapping[str, Any],
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Answer `prompts` (each with its token ids) into the file `out`, in their order; returns its description.

    Finished answers are kept beside `out`: a run that was broken off goes on there and gives the same file.
    `origin` goes into the description, and it decides what may be continued. `progress` hears how many are done.
    Raises ResponseFileError where an unfinished file of another run lies there.
    """
    token_lists = [list(ids) for _, ids in prompts]
    origin = {"verifier_sha256": answerer.verifier_sha256, **asdict(answerer.options), **origin}
    unfinished = _UnfinishedFile(unfinished_path(out), {**origin, "prompt_token_ids": _digest(token_lists)})
    answers = unfinished.read()
    progress(len(answers))
    # near-equal lengths together: little is padding
    order = sorted(range(len(prompts)), key=lambda index: (len(token_lists[index]), index))
    for start in range(0, len(order), answerer.batch):
        rows = order[start : start + answerer.batch]
        if answers.keys() >= set(rows):
            continue
        found = answer_batch(answerer.verifier, [token_lists[index] for index in rows], answerer.options)
        unfinished.add(dict(zip(rows, found, strict=True)))
        answers |= zip(rows, found, strict=True)
        progress(len(answers))
    responses = [
        _response(answerer, prompt, token_lists[index], answers[index]) for index, (prompt, _) in enumerate(prompts)
    ]
    described = write_responses(out, responses, origin)
    unfinished.remove()
    return described


def unfinished_path(out: Path) -> Path:
    """Where the finished answers of a run to `out` lie until it ends."""
    return out.with_name(f"{out.name}.unfinished")


def answer_batch(
    verifier: Gemma4ForCausalLM, prompts: Sequence[Sequence[int]], options: GenerationOptions
) -> list[list[int]]:
    """New tokens for each prompt, up to and including a stop token: those of decoding each prompt alone."""
    answers = _decode(verifier, prompts, options)
    return [
        answer if answer is not None else _alone(verifier, prompt, options)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


def sampling_noise(prompt: Sequence[int], options: GenerationOptions, vocab_size: int) -> Iterator[np.ndarray]:
    """Gumbel noise [vocab_size] for one new token after the other."""
    rng = np.random.default_rng(int(_digest([options.seed, list(prompt)]), 16))
    while True:
        yield rng.gumbel(size=vocab_size).astype(np.float32)


def _alone(verifier: Gemma4ForCausalLM, prompt: Sequence[int], options: GenerationOptions) -> list[int]:
    (answer,) = _decode(verifier, [prompt], options)
    assert answer is not None  # only a batch has close calls
    return answer


@torch.no_grad()
def _decode(
    verifier: Gemma4ForCausalLM, prompts: Sequence[Sequence[int]], options: GenerationOptions
) -> list[list[int] | None]:
    """Answers; None for a row whose choice might be another one alone. Rows leave the batch when they are finished."""
    stops = _stop_ids(verifier)
    noise = [sampling_noise(prompt, options, verifier.config.vocab_size) for prompt in prompts]
    answers: list[list[int] | None] = [[] for _ in prompts]
    rows = list(range(len(prompts)))
    ids, mask = _left_padded(prompts)
    cache = None
    with _watched_routers(verifier) as close_experts:
        for _ in range(options.max_new_tokens):
            out = verifier(
                ids,
                attention_mask=None if bool(mask.all()) else mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :],
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.cache
            scores = _scores(out.logits[:, -1], [noise[row] for row in rows], options)
            tokens = scores.argmax(-1)
            close = _close_tokens(scores, options) | close_experts(mask[:, -ids.shape[1] :])
            going = []
            for place, row in enumerate(rows):
                if len(prompts) > 1 and close[place]:
                    answers[row] = None
                    continue
                answer = answers[row]
                assert answer is not None
                answer.append(int(tokens[place]))
                if answer[-1] not in stops:
                    going.append(place)
            if not going:
                break
            rows = [rows[place] for place in going]
            if len(going) < len(mask):
                cache.batch_select_indices(torch.tensor(going))
            ids = tokens[going][:, None]
            mask = torch.cat([mask[going], torch.ones_like(ids)], 1)
    return answers


def _left_padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of real tokens, int64 [batch, longest]; the padding's id does not matter."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


def _scores(logits: torch.Tensor, noise: Sequence[Iterator[np.ndarray]], options: GenerationOptions) -> torch.Tensor:
    """What the next token is the greatest of, [batch, vocab_size]."""
    if options.temperature == 0:
        return logits
    return logits / options.temperature + torch.from_numpy(np.stack([next(stream) for stream in noise]))


def _close_tokens(scores: torch.Tensor, options: GenerationOptions) -> torch.Tensor:
    # bool [batch]; the margin is one of logits
    best = scores.topk(2).values
    return (best[:, 0] - best[:, 1]) * (options.temperature or 1.0) < _TOKEN_MARGIN


@contextmanager
def _watched_routers(verifier: Gemma4ForCausalLM) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Yield a function from the last forward's mask of real tokens [batch, length] to rows with experts too close."""
    gaps: list[torch.Tensor] = []

    def record(module: torch.nn.Module, inputs: object, output: tuple[torch.Tensor, ...]) -> None:
        probabilities, _, chosen = output  # [batch * rows, experts], _, [batch * rows, top_k]
        if chosen.shape[-1] < probabilities.shape[-1]:
            best = probabilities.topk(chosen.shape[-1] + 1).values
            gaps.append(best[:, -2] - best[:, -1])

    def close(real: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(len(real), dtype=torch.bool)
        for gap in gaps:
            found |= ((gap.view(real.shape) < _EXPERT_MARGIN) & (real == 1)).any(1)
        gaps.clear()
        return found

    hooks = [module.register_forward_hook(record) for module in verifier.modules() if type(module).__name__ == _ROUTER]
    try:
        yield close
    finally:
        for hook in hooks:
            hook.remove()


def _stop_ids(verifier: Gemma4ForCausalLM) -> frozenset[int]:
    stop = verifier.generation_config.eos_token_id
    return frozenset(stop if isinstance(stop, list) else [stop])


def _response(answerer: Answerer, prompt: Prompt, prompt_ids: Sequence[int], ids: Sequence[int]) -> Response:
    return Response(
        id=prompt.id,
        category=prompt.category,
        turns=prompt.turns,
        prompt_token_ids=tuple(prompt_ids),
        response_token_ids=tuple(ids),
        response=str(answerer.tokenizer.decode(list(ids), skip_special_tokens=True)),
        verifier_sha256=answerer.verifier_sha256,
    )


class _UnfinishedFile:
    """Finished answers of a run, appended batch by batch behind a first line that says which run it is."""

    def __init__(self, path: Path, run: Mapping[str, Any]) -> None:
        self._path = path
        self._head = json.dumps(run, sort_keys=True)

    def read(self) -> dict[int, list[int]]:
        """The answers by the prompt's number; a line that was cut off is dropped from the file."""
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        lines = whole.splitlines()
        if lines and lines[0] != self._head:
            raise ResponseFileError(
                f"{self._path} holds answers to other prompts, of another verifier or with other options; finish that "
                "run, or start over with --force"
            )
        replace_file(self._path, (whole or self._head + "\n").encode())
        return {entry["prompt"]: entry["token_ids"] for entry in map(json.loads, lines[1:])}

    def add(self, answers: Mapping[int, Sequence[int]]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            for prompt, token_ids in answers.items():
                file.write(json.dumps({"prompt": prompt, "token_ids": list(token_ids)}) + "\n")

    def remove(self) -> None:
        self._path.unlink()


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
