"""Whole words as pieces, for ELMo: a vocabulary by count, and all others.

A vocabulary file has a word a line: `<S>`, `</S>`, `<UNK>`, then words by their
count (allenai/bilm-tf README.md). Its words are those that a softmax predicts.
A prepared folder has ids for all other words of its text as well, from the size
of the vocabulary on: what is predicted is `<UNK>`, but what is read are
characters, and these must be right for every word.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from bert_jax.messages import UserError
from bert_jax.text.vocabulary import SpecialIds, Vocabulary, mark

SPECIAL = ("<S>", "</S>", "<UNK>")
BEGIN, END, UNKNOWN = range(3)
# How text becomes words. "words": between white space, runs of letters and
# digits, in which joiners, the accents of Armenian and single marks ' . , - may
# stand, and those of Catalan and Hebrew; every other character alone.
# "spaces": what stands between white space, for text that was split before.
RULES = ("words", "spaces")
_LETTERS = (
  r"[\p{L}\p{M}\p{N}_][\p{L}\p{M}\p{N}_\u200c\u200d\u055b\u055c\u055e]*"
)
_PATTERN = rf"{_LETTERS}(?:['’.,·״׳-]{_LETTERS})*|[^\s]"
_CHUNKS = re.compile(r"\S+")


def _splitter(rules: str) -> pre_tokenizers.PreTokenizer:
  if rules not in RULES:
    raise UserError(f"rules {rules!r}: of words there are {list(RULES)}.")
  spaces = pre_tokenizers.WhitespaceSplit()
  if rules == "spaces":
    return spaces
  split = pre_tokenizers.Split(Regex(_PATTERN), "removed", invert=True)
  return pre_tokenizers.Sequence([spaces, split])


def build(
  pieces: Sequence[str],
  others: Sequence[str] = (),
  source: str = "vocabulary",
  rules: str = "words",
) -> Vocabulary:
  """Builds the tokenizer; it keeps capitals and accents.

  Args:
    pieces: `SPECIAL` and the words.
    others: words that have ids beyond those.
    source: the file that the pieces come from, for messages.
    rules: one of `RULES`.

  Raises:
    UserError: `rules` is unknown, or the first pieces are others.
  """
  if tuple(pieces[: len(SPECIAL)]) != SPECIAL:
    raise UserError(
      f"{source}: a vocabulary of words begins with {', '.join(SPECIAL)};"
      " put these lines first, in this order."
    )
  # No word of a text can be equal to one of these, since they have a space.
  names = [f" {piece}" for piece in SPECIAL]
  ids = {w: i for i, w in enumerate([*names, *pieces[3:], *others])}
  tokenizer = Tokenizer(models.WordLevel(ids, unk_token=names[UNKNOWN]))
  tokenizer.pre_tokenizer = _splitter(rules)
  tokenizer.decoder = decoders.WordPiece(prefix=" ", cleanup=False)
  return Vocabulary(
    kind="words",
    pieces=list(pieces),
    special=SpecialIds(None, UNKNOWN, BEGIN, END, None),
    plain=tokenizer,
    marked=mark(tokenizer, ()),
    boundary=np.ones(len(pieces) + len(others), bool),
    options=dict(rules=rules),
    files={"vocab.txt": "".join(f"{p}\n" for p in pieces).encode("utf-8")},
    atoms=_CHUNKS,
    others=list(others),
    around=((BEGIN,), (END,)),
  )


def split_counts(
  chunks: Mapping[str, int],
  split: Callable[[str], Iterable[tuple[str, Any]]],
) -> Counter[str]:
  """Counts the words in chunks of text; splits each distinct chunk once.

  Args:
    chunks: chunk -> number of times that it occurs.
    split: a function from a chunk to (word, offsets) of its words.
  """
  counts: Counter[str] = Counter()
  for chunk, times in chunks.items():
    for word, _ in split(chunk):
      counts[word] += times
  return counts


def count(texts: Iterable[str], rules: str) -> Counter[str]:
  """Counts the words of texts.

  Args:
    texts: the texts, which are read once.
    rules: one of `RULES`.
  """
  chunks: Counter[str] = Counter()
  for text in texts:
    chunks.update(text.split())
  if rules == "spaces":
    return chunks
  return split_counts(chunks, _splitter(rules).pre_tokenize_str)


def by_count(counts: dict[str, int]) -> list[str]:
  """The most frequent first, equals in the order of the alphabet."""
  return sorted(counts, key=lambda word: (-counts[word], word))


def cover(vocabulary: Vocabulary, texts: Iterable[str]) -> Vocabulary:
  """Returns the vocabulary with ids for all other words of texts, by count."""
  rules = vocabulary.options["rules"]
  counts = count(texts, rules)
  for word in vocabulary.pieces[len(SPECIAL) :]:
    counts.pop(word, None)
  return build(vocabulary.pieces, by_count(counts), rules=rules)
