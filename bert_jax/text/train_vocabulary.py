"""Trains vocabularies: reads text, learns pieces, writes a file or a folder."""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from bert_jax import files
from bert_jax.corpus import sources
from bert_jax.text import cleaning, wordpiece, words
from bert_jax.text import open_vocabulary as vocabulary_files
from bert_jax.text import train_vocabulary_training_bpe as training_bpe
from bert_jax.text import train_vocabulary_training_unigram as training_unigram
from bert_jax.text import (
  train_vocabulary_training_wordpiece as training_wordpiece,
)
from bert_jax.text.cleaning import Cleaning
from bert_jax.text.train_vocabulary_word_counts import MIN_FREQUENCY
from bert_jax.text.vocabulary import Vocabulary

KINDS = ("wordpiece", "bytelevel", "unigram", "words")
# Characters between two spaces; German and Finnish have about 8.
UNSPACED = 30
# Of ids; the largest published vocabulary, of words, has 793,471.
MAX_SIZE = 2**20


def train_vocab(
  inputs: str | Sequence[str],
  size: int,
  output: str,
  kind: str = "wordpiece",
  format: str = "auto",
  errors: str = "strict",
  lower_case: bool | None = None,
  keep_accents: bool | None = None,
  rules: str | None = None,
) -> Sequence[str]:
  """Trains a vocabulary on all text of `inputs` and writes it.

  Special tokens have the published order. There are `size` pieces; fewer
  (which is said) if the text is too small. The result is the same in every run
  and appears only when it is complete.

  Args:
    inputs, format, errors: see `sources.find_sources`.
    size: number of pieces.
    output: path of a file (WordPiece, words: one a line; unigram: a
      SentencePiece model, its name ends with .model), beside which stand the
      settings that it is used with and its digest; or of a new folder for the
      files of byte-level BPE.
    kind: one of `KINDS`: BERT's, RoBERTa's, ALBERT's, ELMo's.
    lower_case: lower-case the text; None is True. Byte-level BPE and words
      never do, nor do they strip accents.
    keep_accents: keep accents; None is the contrary of `lower_case`.
    rules: of `words.RULES`, if `kind` is "words"; None for the first.

  Returns:
    The pieces.

  Raises:
    ValueError: an input is bad or has no text, `size` is far too small, or
      `output` does not fit the kind or is in the way.
  """
  if size < 100:
    raise ValueError(f"--size={size} is too small: 100 or more (BERT: 30522).")
  if size > MAX_SIZE:
    raise ValueError(f"--size={size} is over {MAX_SIZE}; BERT has 30522.")
  if rules is not None and kind != "words":
    raise ValueError(
      f"--rules={rules}: only of --tokenizer=words; leave it out."
    )
  _check_output(output, kind)
  found = sources.find_sources(inputs, format, errors)
  spaces = Spaces()
  records = spaces.counted(_progress(sources.read_records(found)))
  wanted = Cleaning(lower_case, keep_accents).filled()
  strips = kind in ("wordpiece", "unigram") and not wanted.keep_accents
  marks = cleaning.Marks(kind == "unigram") if strips else None
  records = _counted(records, marks) if marks else records
  vocabulary = _train(kind, records, size, wanted, rules or words.RULES[0])
  if vocabulary is None:
    raise ValueError(f"{', '.join(s.name for s in found[:3])}: no text in it.")
  _write(vocabulary, output)
  _log(f"{output}: {vocabulary.vocab_size:,} pieces.")
  if vocabulary.vocab_size < size:
    _log(f"warning: {_why_fewer(kind, size, vocabulary.vocab_size, spaces)}")
  if marks and (line := marks.warning()):
    _log(line)
  return vocabulary.pieces


class Spaces:
  """Counts characters and white space of the text that is read."""

  def __init__(self) -> None:
    self.characters = self.spaces = 0

  def counted(
    self, records: Iterable[sources.Record]
  ) -> Iterator[sources.Record]:
    """Yields the records."""
    for record in records:
      self.characters += len(record.text)
      self.spaces += record.text.count(" ") + record.text.count("\n") + 1
      yield record

  @property
  def distance(self) -> float:
    """Characters from one space to the next, on average."""
    return self.characters / max(self.spaces, 1)


def _why_fewer(kind: str, size: int, count: int, spaces: Spaces) -> str:
  """Says why a vocabulary has fewer pieces than were asked for."""
  if kind in ("wordpiece", "words") and spaces.distance > UNSPACED:
    rule = (
      "a word is what stands between spaces"
      if kind == "words"
      else "WordPiece learns from what stands between spaces, if that has no"
      f" more than {wordpiece.MAX_WORD_CHARS['huggingface']} characters"
    )
    return (
      f"{count:,} pieces are fewer than --size={size}: the text has a space"
      f" every {spaces.distance:.0f} characters only, and {rule}. Use"
      " --tokenizer=unigram, or put spaces between the words."
    )
  if kind == "words":
    return (
      f"--size={size} is more than the text has words that occur"
      f" {MIN_FREQUENCY} times; a model predicts the {count:,} of the"
      " vocabulary, and reads all others by their characters."
    )
  return (
    f"the text is too small for --size={size}: no further piece occurs"
    f" {MIN_FREQUENCY} times."
  )


def _train(
  kind: str,
  records: Iterable[sources.Record],
  size: int,
  wanted: Cleaning,
  rules: str,
) -> Vocabulary | None:
  """Returns the tokenizer, None without text."""
  if kind == "words":
    return words.train(records, size, rules)
  if kind == "unigram":
    return training_unigram.train(records, size, wanted)
  if kind == "bytelevel":
    counts = training_bpe.count_words(records)
    return training_bpe.train(counts, size) if counts else None
  counts = training_wordpiece.count_words(records, wanted)
  if not counts:
    return None
  if line := training_wordpiece.warning(counts):
    _log(line)
  return wordpiece.build(
    training_wordpiece.train(counts, size),
    wanted.lower_case,
    strip_accents=not wanted.keep_accents,
  )


def _check_output(output: str, kind: str) -> None:
  if kind not in KINDS:
    raise ValueError(f"kind {kind!r}: not one of {list(KINDS)}.")
  if not output:
    raise ValueError("--output is empty; name what to write.")
  if kind == "bytelevel":
    if os.path.isfile(output) or (os.path.isdir(output) and os.listdir(output)):
      raise ValueError(
        f"{output} is in the way; name a new folder for vocab.json and"
        " merges.txt."
      )
  elif os.path.isdir(output):
    raise ValueError(f"{output} is a folder; name a file.")
  elif (kind == "unigram") != output.endswith(".model"):
    raise ValueError(
      f"{output}: the name of a unigram model, and of no other vocabulary, ends"
      " with .model."
    )
  elif os.path.lexists(output):
    raise ValueError(f"{output} exists; delete it or choose another --output.")
  elif os.path.exists(settings := _settings_path(output)):
    raise ValueError(
      f"{settings} is in the way: it says how another vocabulary is used;"
      " choose another name or folder, or remove it."
    )


def _settings_path(output: str) -> str:
  name = vocabulary_files.settings_beside(output)
  return os.path.join(os.path.dirname(output), name)


def _write(vocabulary: Vocabulary, output: str) -> None:
  """Writes beside and renames."""
  output = os.path.normpath(output)
  if vocabulary.kind == "bytelevel":
    with files.whole_folder(output) as new:
      vocabulary_files.save(vocabulary, new)
    return
  with files.temporary_folder(output) as new:
    vocabulary_files.save(vocabulary, new)
    name = next(iter(vocabulary.files))
    settings = os.path.join(new, vocabulary_files.SETTINGS)
    if vocabulary.kind == "unigram":
      # The model itself says all but its digest.
      content = {os.path.basename(output): vocabulary.files[name]}
      os.remove(settings)
      files.write_durably(settings, vocabulary_files.digest_settings(content))
    os.replace(settings, _settings_path(output))
    os.replace(os.path.join(new, name), output)
  files.sync_folder(os.path.dirname(output))


def _progress(records: Iterable[sources.Record]) -> Iterator[sources.Record]:
  """The records; says every five seconds how many have been read."""
  start = shown = time.monotonic()
  for record in records:
    yield record
    if time.monotonic() > shown + 5:
      shown = time.monotonic()
      _log(f"reading: {record.share:.0%}, {shown - start:.0f} s")


def _counted(
  records: Iterable[sources.Record], marks: cleaning.Marks
) -> Iterator[sources.Record]:
  for record in records:
    marks.add(record.text)
    yield record


def _log(line: str) -> None:
  print(line, file=sys.stderr, flush=True)
