"""Builds the tokenizer of ELMo, whose pieces are whole words.

A vocabulary file has a word on each line. `<S>`, `</S>` and `<UNK>` come first.
The words after them are sorted from the most to the least frequent
(allenai/bilm-tf README.md). ELMo's softmax predicts the words of the file.

A prepared folder also has ids for the words of its text that are not in the
vocabulary; these ids follow the ids of the vocabulary. The model reads the
characters of such a word, but it predicts `<UNK>` in place of the word.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from bert_jax.messages import UserError
from bert_jax.text.vocabulary import SpecialIds, Vocabulary, copy_that_reads

SPECIAL_WORDS = ("<S>", "</S>", "<UNK>")
BEGIN_ID, END_ID, UNKNOWN_ID = range(3)
# How text is split into words.
# "words": a word consists of letters and digits. Between them there may be
# zero-width joiners and the accent signs of Armenian. Between two letters or
# digits there may be one mark: ' ’ . , - or · (Catalan) or ׳ ״ (Hebrew). Each
# remaining character that is no white space is a word by itself.
# "spaces": words are separated by white space, for text that is split already.
RULES = ("words", "spaces")
_LETTERS_PATTERN = (
  r"[\p{L}\p{M}\p{N}_][\p{L}\p{M}\p{N}_\u200c\u200d\u055b\u055c\u055e]*"
)
_WORD_PATTERN = rf"{_LETTERS_PATTERN}(?:['’.,·״׳-]{_LETTERS_PATTERN})*|[^\s]"
_CHUNK_PATTERN = re.compile(r"\S+")


def _make_splitter(rules: str) -> pre_tokenizers.PreTokenizer:
  """Returns the splitter of `tokenizers` for one of `RULES`."""
  if rules not in RULES:
    raise UserError(
      f"rules {rules!r} is not one of {list(RULES)}, the rules for words."
    )
  space_splitter = pre_tokenizers.WhitespaceSplit()
  if rules == "spaces":
    return space_splitter
  word_splitter = pre_tokenizers.Split(
    Regex(_WORD_PATTERN), "removed", invert=True
  )
  return pre_tokenizers.Sequence([space_splitter, word_splitter])


def build(
  pieces: Sequence[str],
  other_words: Sequence[str] = (),
  source: str = "vocabulary",
  rules: str = "words",
) -> Vocabulary:
  """Builds the tokenizer; it keeps capitals and accents.

  Args:
    pieces: `SPECIAL_WORDS`, then the words of the vocabulary.
    other_words: words that are no pieces; their ids follow the ids of `pieces`.
    source: the file of the pieces, for messages.
    rules: one of `RULES`.

  Raises:
    UserError: `rules` is unknown, or the first pieces are not `SPECIAL_WORDS`.
  """
  if tuple(pieces[: len(SPECIAL_WORDS)]) != SPECIAL_WORDS:
    raise UserError(
      f"{source}: a vocabulary of words begins with {', '.join(SPECIAL_WORDS)};"
      " put these lines first, in this order."
    )
  # Name the special words with a space. No word of a text has a space in it, so
  # a literal `<S>` in a text is never read as the special word.
  unmatched_names = [f" {piece}" for piece in SPECIAL_WORDS]
  id_by_word = {
    word: word_id
    for word_id, word in enumerate(
      [*unmatched_names, *pieces[3:], *other_words]
    )
  }
  tokenizer = Tokenizer(
    models.WordLevel(id_by_word, unk_token=unmatched_names[UNKNOWN_ID])
  )
  tokenizer.pre_tokenizer = _make_splitter(rules)
  tokenizer.decoder = decoders.WordPiece(prefix=" ", cleanup=False)
  return Vocabulary(
    algorithm="words",
    pieces=list(pieces),
    special=SpecialIds(
      pad=None, unk=UNKNOWN_ID, cls=BEGIN_ID, sep=END_ID, mask=None
    ),
    plain_text_tokenizer=tokenizer,
    special_tokenizer=copy_that_reads(tokenizer, ()),
    at_word_boundary=np.ones(len(pieces) + len(other_words), bool),
    options=dict(rules=rules),
    files={
      "vocab.txt": "".join(f"{piece}\n" for piece in pieces).encode("utf-8")
    },
    chunk_pattern=_CHUNK_PATTERN,
    other_words=list(other_words),
    ids_around_sentence=((BEGIN_ID,), (END_ID,)),
  )


def count_after_split(
  chunks: Mapping[str, int],
  split: Callable[[str], Iterable[tuple[str, Any]]],
) -> Counter[str]:
  """Counts the words in chunks of text; splits each distinct chunk once.

  Args:
    chunks: chunk -> how often it occurs.
    split: a function from a chunk to (word, offsets) for each word in it.
  """
  counts: Counter[str] = Counter()
  for chunk, chunk_count in chunks.items():
    for word, _ in split(chunk):
      counts[word] += chunk_count
  return counts


def count_words(texts: Iterable[str], rules: str) -> Counter[str]:
  """Counts the words of texts.

  Args:
    texts: the texts, which are read once.
    rules: one of `RULES`.
  """
  count_by_chunk: Counter[str] = Counter()
  for text in texts:
    count_by_chunk.update(text.split())
  if rules == "spaces":
    return count_by_chunk
  return count_after_split(
    count_by_chunk, _make_splitter(rules).pre_tokenize_str
  )


def sort_by_count(counts: dict[str, int]) -> list[str]:
  """Returns the words, the most frequent first; ties in code-point order."""
  return sorted(counts, key=lambda word: (-counts[word], word))


def with_words_from(vocabulary: Vocabulary, texts: Iterable[str]) -> Vocabulary:
  """Returns the tokenizer with ids for all words of texts.

  Words that are no pieces become `Vocabulary.other_words`.

  Args:
    vocabulary: a tokenizer of the algorithm "words".
    texts: the texts, which are read once.
  """
  rules = vocabulary.options["rules"]
  counts = count_words(texts, rules)
  for word in vocabulary.pieces[len(SPECIAL_WORDS) :]:
    counts.pop(word, None)
  return build(vocabulary.pieces, sort_by_count(counts), rules=rules)
