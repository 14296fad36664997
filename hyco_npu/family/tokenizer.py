"""The family's tokenizer: byte-level BPE over the training corpus with Gemma 4's turn markers.

Digits are single tokens, so that no number is outside the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hyco_npu.family.architecture import VOCAB_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

SPECIAL_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\n' }}"
    "{{ message['content'] | trim + '<turn|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train the BPE merges on `texts` (without special tokens) and wrap them for transformers."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        extra_special_tokens=["<|turn>", "<turn|>"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def render(question: str, answer: str | None = None) -> str:
    """One exchange in the chat format; without `answer`, the prompt that the model continues."""
    prompt = f"<bos><|turn>user\n{question.strip()}<turn|>\n<|turn>model\n"
    return prompt if answer is None else f"{prompt}{answer.strip()}<turn|>"
