"""Trains a byte-level BPE vocabulary with the `tokenizers` library.

Words are counted first and the bytes get their ids before the training, so
that ties between merges leave nothing to chance; see
`training_wordpiece`.
"""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bert_jax.corpus import sources
from bert_jax.text import bpe
from bert_jax.text.train_vocabulary_word_counts import (
  MIN_FREQUENCY,
  cut,
  repeat,
)
from bert_jax.text.vocabulary import Vocabulary, valid

# fairseq's dictionary begins with these; <mask> is its last.
FIRST = ("<s>", "<pad>", "</s>", "<unk>")
LAST = ("<mask>",)


def count_words(records: Iterable[sources.Record]) -> dict[str, int]:
  """Counts the words, in the letters that stand for bytes, as GPT-2 splits."""
  chunks: Counter[str] = Counter()
  for record in records:
    for text in cut(record.text):
      if text.isprintable() and "  " not in text and text.strip() == text:
        chunks.update(bpe.WORDS.findall(text))
      else:
        chunks[text] += 1
  split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
  words: Counter[str] = Counter()
  for chunk, count in chunks.items():
    for word, _ in split(valid(chunk)):
      words[word] += count
  return words


def train(counts: dict[str, int], size: int) -> Vocabulary:
  """Returns a tokenizer with at most `size` pieces, RoBERTa's special ones.

  Raises:
    ValueError: `size` has no room for the bytes and special tokens.
  """
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  room = size - len(FIRST) - len(LAST)
  if room < len(alphabet):
    raise ValueError(
      f"--size={size} is too small: 256 bytes and {len(FIRST + LAST)} special"
      " tokens come first; RoBERTa has 50265 pieces."
    )
  trainer = trainers.BpeTrainer(
    vocab_size=room,
    min_frequency=MIN_FREQUENCY,
    special_tokens=alphabet,
    show_progress=False,
  )
  tokenizer = Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  tokenizer.train_from_iterator(repeat(sorted(counts), counts), trainer)
  learnt = tokenizer.get_vocab()
  pieces = [*FIRST, *sorted(learnt, key=learnt.__getitem__), *LAST]
  merges = _merges(tokenizer)
  return bpe.bytelevel({p: i for i, p in enumerate(pieces)}, merges)


def _merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
  pairs = bpe.read_json(tokenizer.to_str(), "tokenizer")["model"]["merges"]
  return [tuple(pair) for pair in pairs]
