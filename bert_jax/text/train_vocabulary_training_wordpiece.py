"""Trains a WordPiece vocabulary with the `tokenizers` library.

The library's trainer gives other pieces in every run: it numbers the
continuation characters in the order of a randomly seeded hash table, and ties
between merges go by those numbers. Here the words are counted first and the
alphabet is given to the trainer in sorted order, which leaves nothing to
chance, whatever the number of threads.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from bert_jax.corpus import sources
from bert_jax.text.cleaning import Cleaning
from bert_jax.text.train_vocabulary_word_counts import (
  MIN_FREQUENCY,
  cut,
  repeat,
)
from bert_jax.text.vocabulary import SPECIAL_TOKENS
from bert_jax.text.wordpiece import CONTINUATION, MAX_WORD_CHARS, normalizer

# The most frequent characters become pieces, as many as in Hugging Face's
# BertWordPieceTokenizer; rarer ones are [UNK]. If a text has many others, as in
# Chinese and Korean, further characters become pieces: up to the share of the
# text that ALBERT's SentencePiece covers, in at most 3/4 of the vocabulary.
MAX_ALPHABET = 1000
COVERAGE = 0.99995


def count_words(
  records: Iterable[sources.Record], wanted: Cleaning
) -> dict[str, int]:
  """Counts the words as BERT's basic tokenizer splits them.

  Args:
    records: the text, which is read once.
    wanted: how capitals and accents are treated.
  """
  strip = not wanted.keep_accents
  normalize = normalizer(wanted.lower_case, strip).normalize_str
  chunks: Counter[str] = Counter()
  for record in records:
    for text in cut(record.text):
      chunks.update(normalize(text).split())
  # Punctuation is split off once a distinct chunk, not once an occurrence.
  split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
  words: Counter[str] = Counter()
  for chunk, count in chunks.items():
    for word, _ in split(chunk):
      words[word] += count
  return words


def train(counts: dict[str, int], size: int) -> list[str]:
  """Returns at most `size` pieces for words that occur `counts` times."""
  characters: Counter[str] = Counter()
  for word, count in counts.items():
    for character in word:
      characters[character] += count
  ranked = sorted(characters, key=lambda c: (-characters[c], c))
  alphabet = _alphabet(ranked, characters, counts, size)
  words = sorted(
    word
    for word in counts
    if len(word) <= MAX_WORD_CHARS["huggingface"] and alphabet.issuperset(word)
  )
  inner = {character for word in words for character in word[1:]}
  first = [
    *SPECIAL_TOKENS,
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
  tokenizer.train_from_iterator(repeat(words, counts), trainer)
  vocab = tokenizer.get_vocab()
  return sorted(vocab, key=vocab.__getitem__)


def warning(counts: Mapping[str, int]) -> str | None:
  """Returns a warning if over 1% of the text are words that are too long."""
  limit = MAX_WORD_CHARS["huggingface"]
  lost = total = 0
  for word, count in counts.items():
    total += len(word) * count
    lost += len(word) * count * (len(word) > limit)
  if lost <= 0.01 * total:
    return None
  return (
    f"warning: {lost / total:.0%} of the text are words of more than {limit}"
    " characters, each of which is one [UNK]; for a language that is written"
    " without spaces use --tokenizer=unigram or bytelevel."
  )


def _alphabet(
  ranked: list[str],
  characters: Mapping[str, int],
  counts: Mapping[str, int],
  size: int,
) -> set[str]:
  """Returns the characters that become pieces.

  Args:
    ranked: all characters, the most frequent first.
    characters: character -> number of times that it occurs.
    counts: word -> number of times that it occurs.
    size: the number of pieces of the vocabulary.
  """
  inside = {character for word in counts for character in word[1:]}
  wanted = COVERAGE * sum(characters.values())
  covered = pieces = number = 0
  for character in ranked:
    pieces += 1 + (character in inside)
    if covered >= wanted or pieces > size * 3 // 4:
      break
    covered += characters[character]
    number += 1
  return set(ranked[: max(number, min(MAX_ALPHABET, size // 4))])
