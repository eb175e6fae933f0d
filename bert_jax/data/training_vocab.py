"""Trains a WordPiece vocabulary with the `tokenizers` library.

The library's trainer gives other pieces in every run: it numbers the
continuation characters in the order of a randomly seeded hash table, and ties
between merges go by those numbers. Here the words are counted first and the
alphabet is given to the trainer in sorted order, which leaves nothing to
chance, whatever the number of threads.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bert_jax.data import corpus, sources
from bert_jax.data.vocabularies import (
  CONTINUATION,
  MAX_WORD_CHARS,
  normalizer,
)

# As in Hugging Face's BertWordPieceTokenizer: rarer characters are [UNK].
MAX_ALPHABET = 1000
MIN_FREQUENCY = 2
_BATCH_CHARS = 2**18
# Of ids; the largest published vocabularies have a quarter of it.
MAX_SIZE = 2**20


def train_vocab(
  inputs: str | Sequence[str],
  size: int,
  output: str,
  format: str = "auto",
  errors: str = "strict",
  lower_case: bool = True,
) -> list[str]:
  """Trains a vocabulary on all text of `inputs` and writes it to a file.

  The file has `size` lines, special tokens first in the order of
  `corpus.SPECIAL_TOKENS`; fewer (which is said) if the text is too small. It
  is the same in every run and appears only when it is complete.

  Args:
    inputs, format, errors: see `sources.find_sources`.
    size: number of pieces.
    output: path of the file.
    lower_case: True for an uncased vocabulary, without accents.

  Returns:
    The pieces.

  Raises:
    ValueError: an input is bad or has no text, `size` is far too small, or
      `output` is a folder.
  """
  if size < 100:
    raise ValueError(f"--size={size} is too small; BERT has 30522 pieces.")
  if size > MAX_SIZE:
    raise ValueError(f"--size={size} is over {MAX_SIZE}; BERT has 30522.")
  if os.path.isdir(output):
    raise ValueError(f"{output} is a folder; name a file.")
  found = sources.find_sources(inputs, format, errors)
  counts = count_words(sources.read_records(found), lower_case)
  if not counts:
    raise ValueError(f"{', '.join(s.name for s in found[:3])}: no text in it.")
  pieces = train(counts, size)
  os.makedirs(os.path.dirname(output) or ".", exist_ok=True)
  partial = f"{output}.partial"
  with open(partial, "w", encoding="utf-8", newline="\n") as f:
    f.writelines(piece + "\n" for piece in pieces)
    f.flush()
    os.fsync(f.fileno())
  os.replace(partial, output)
  _log(f"{output}: {len(pieces):,} pieces from {len(counts):,} words.")
  if len(pieces) < size:
    _log(
      f"warning: the text is too small for --size={size}: no further piece"
      f" occurs {MIN_FREQUENCY} times."
    )
  return pieces


def count_words(
  records: Iterable[sources.Record], lower_case: bool
) -> dict[str, int]:
  """Counts the words as BERT's basic tokenizer splits them."""
  normalize = normalizer(lower_case).normalize_str
  chunks: Counter[str] = Counter()
  start = shown = time.monotonic()
  for record in records:
    for text in _cut(record.text):
      chunks.update(normalize(text).split())
    if time.monotonic() > shown + 5:
      shown = time.monotonic()
      _log(f"counting words: {record.share:.0%}, {shown - start:.0f} s")
  # Punctuation is split off once a distinct chunk, not once an occurrence.
  split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
  words: Counter[str] = Counter()
  for chunk, count in chunks.items():
    for word, _ in split(chunk):
      words[word] += count
  return words


def _cut(text: str) -> Iterator[str]:
  """Cuts long text, of which the normaliser would keep every offset."""
  if len(text) <= _BATCH_CHARS:
    yield text
  else:
    yield from text.split("\n")


def train(counts: dict[str, int], size: int) -> list[str]:
  """Returns at most `size` pieces for words that occur `counts` times."""
  characters: Counter[str] = Counter()
  for word, count in counts.items():
    for character in word:
      characters[character] += count
  kept = min(MAX_ALPHABET, size // 4)
  ranked = sorted(characters, key=lambda c: (-characters[c], c))
  alphabet = set(ranked[:kept])
  words = sorted(
    word
    for word in counts
    if len(word) <= MAX_WORD_CHARS and alphabet.issuperset(word)
  )
  inner = {character for word in words for character in word[1:]}
  first = [
    *corpus.SPECIAL_TOKENS,
    *sorted(alphabet),
    *(CONTINUATION + character for character in sorted(inner)),
  ]
  trainer = trainers.WordPieceTrainer(
    vocab_size=size,
    min_frequency=MIN_FREQUENCY,
    special_tokens=first,
    continuing_subword_prefix=CONTINUATION,
    show_progress=False,
  )
  tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
  tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  tokenizer.train_from_iterator(_repeat(words, counts), trainer)
  vocab = tokenizer.get_vocab()
  return sorted(vocab, key=vocab.__getitem__)


def _repeat(words: Sequence[str], counts: dict[str, int]) -> Iterator[str]:
  """Yields text in which each word occurs as often as it was counted.

  The trainer takes text only, no counts.
  """
  batch: list[str] = []
  size = 0
  for word in words:
    left = counts[word]
    while left:
      n = min(left, max(1, _BATCH_CHARS // (len(word) + 1)))
      batch.append((word + " ") * n)
      size += n * (len(word) + 1)
      left -= n
      if size >= _BATCH_CHARS:
        yield "".join(batch)
        batch, size = [], 0
  if batch:
    yield "".join(batch)


def _log(line: str) -> None:
  print(line, file=sys.stderr, flush=True)
