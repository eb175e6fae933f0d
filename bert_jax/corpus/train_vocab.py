"""Trains a vocabulary on the text of inputs and writes its files."""

import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence

from bert_jax import files
from bert_jax.corpus import sources
from bert_jax.files import PathLike
from bert_jax.messages import Progress, UserError, by_caller, note
from bert_jax.text import (
  cleaning,
  open_vocabulary,
  train_vocabulary,
  wordpiece,
  words,
)
from bert_jax.text.cleaning import Cleaning
from bert_jax.text.train_vocabulary import ALGORITHMS, MIN_FREQUENCY
from bert_jax.text.vocabulary import Vocabulary

# If a vocabulary has too few pieces, and there are more than this many
# characters between two spaces on average, a warning says that the text has few
# spaces. German and Finnish have about 8 characters between two spaces.
MAX_SPACE_DISTANCE = 30
# The largest number of pieces. The largest published vocabulary has 793,471
# pieces, which are words.
MAX_SIZE = 2**20


def train_vocab(
  inputs: str | Sequence[str],
  size: int,
  output: PathLike,
  algorithm: str = "wordpiece",
  format: str = "auto",
  errors: str = "strict",
  lower_case: bool | None = None,
  keep_accents: bool | None = None,
  rules: str | None = None,
) -> Sequence[str]:
  """Trains a vocabulary on all text of `inputs` and writes it.

  Special tokens have the published order. If the text is too small for `size`
  pieces, there are fewer, and a note on stderr says so. Every call with the
  same text and options gives the same pieces. The files get their names only
  when they are complete.

  Args:
    inputs: see `sources.find_sources`.
    size: the number of pieces.
    output: the file or folder to write. For WordPiece and words it is a file
      with a piece on each line; for unigram a SentencePiece model, whose name
      ends with .model; for byte-level BPE a new folder. The vocabulary's
      settings and digest are written into a file beside the output, or in the
      new folder.
    algorithm: one of `train_vocabulary.ALGORITHMS`, which are, in this order,
      the algorithms of BERT, RoBERTa, ALBERT and ELMo.
    format: see `sources.find_sources`.
    errors: see `sources.find_sources`.
    lower_case: True to change the text to lower case; None means True.
      Byte-level BPE and words always keep capitals and accents.
    keep_accents: True to keep accents; None means the opposite of `lower_case`.
    rules: one of `words.RULES`, for the algorithm "words"; None means the first
      of them.

  Returns:
    The pieces.

  Raises:
    UserError: an input is bad or has no text, `size` is far too small, the name
      of `output` is wrong for the algorithm, or a file that would be written
      exists already.
  """
  output = os.fspath(output)
  if size < 100:
    raise UserError(
      f"{_size_name()}={size} is too small; give 100 or more (BERT has 30522)."
    )
  if size > MAX_SIZE:
    raise UserError(
      f"{_size_name()}={size} is too large; give at most {MAX_SIZE} (BERT has"
      " 30522)."
    )
  if rules is not None and algorithm != "words":
    raise UserError(
      f"--rules={rules} is only for --tokenizer=words; leave it out."
    )
  _check_output(output, algorithm)
  text_sources = sources.find_sources(inputs, format, errors)
  space_counter = _SpaceCounter()
  progress = Progress("training a vocabulary")
  records = sources.read_records(text_sources)
  texts = space_counter.count_while_read(_read_texts(records, progress))
  chosen_cleaning = Cleaning(lower_case, keep_accents).with_defaults()
  strips_accents = (
    algorithm in ("wordpiece", "unigram") and not chosen_cleaning.keep_accents
  )
  mark_counter = (
    cleaning.MarkCounter(algorithm == "unigram") if strips_accents else None
  )
  if mark_counter:
    texts = _count_marks_while_read(texts, mark_counter)
  with progress:
    vocabulary = train_vocabulary.train(
      algorithm, texts, size, chosen_cleaning, rules or words.RULES[0]
    )
  if vocabulary is None:
    source_names = ", ".join(source.name for source in text_sources[:3])
    raise UserError(f"{source_names}: there is no text in it.")
  _write_files(vocabulary, output)
  note(f"{output}: {vocabulary.vocab_size:,} pieces.")
  if vocabulary.vocab_size < size:
    reason = _reason_for_fewer_pieces(
      algorithm, size, vocabulary.vocab_size, space_counter
    )
    note(f"warning: {reason}")
  if mark_counter and (warning := mark_counter.warning()):
    note(warning)
  return vocabulary.pieces


def _read_texts(
  records: Iterable[sources.Record], progress: Progress
) -> Iterator[str]:
  """Yields the texts; tells the progress what share has been read."""
  for record in records:
    yield record.text
    progress.describe(f"{record.share:.0%} of the text read")
  progress.describe("all text read")


# How a Python function that trains a model asks for a unigram vocabulary.
UNIGRAM_FAMILY = "family='albert'"


def _size_name() -> str:
  """Returns the name of the option for the number of pieces."""
  return by_caller("--size", "vocab_size")


class _SpaceCounter:
  """Counts the characters of texts, and their spaces and newlines."""

  def __init__(self) -> None:
    """Begins without any text."""
    self.num_characters = self.num_spaces = 0

  def count_while_read(self, texts: Iterable[str]) -> Iterator[str]:
    """Yields the texts, and counts; the end of a text counts as a space."""
    for text in texts:
      self.num_characters += len(text)
      self.num_spaces += text.count(" ") + text.count("\n") + 1
      yield text

  @property
  def mean_distance(self) -> float:
    """The mean number of characters from one space to the next."""
    return self.num_characters / max(self.num_spaces, 1)


def _count_marks_while_read(
  texts: Iterable[str], marks: cleaning.MarkCounter
) -> Iterator[str]:
  """Yields the texts; `marks` counts the combining marks in each text."""
  for text in texts:
    marks.add(text)
    yield text


def _reason_for_fewer_pieces(
  algorithm: str, size: int, num_pieces: int, space_counter: _SpaceCounter
) -> str:
  """Returns the reason why a vocabulary has fewer pieces than `size`."""
  if (
    algorithm in ("wordpiece", "words")
    and space_counter.mean_distance > MAX_SPACE_DISTANCE
  ):
    rule = (
      "a word is the text between two spaces"
      if algorithm == "words"
      else "WordPiece learns only from words between spaces that have at most"
      f" {wordpiece.MAX_WORD_CHARS['huggingface']} characters"
    )
    remedy = by_caller("--tokenizer=unigram", UNIGRAM_FAMILY)
    return (
      f"{num_pieces:,} pieces are fewer than {_size_name()}={size}: the text"
      f" has a space every {space_counter.mean_distance:.0f} characters only,"
      f" and {rule}. Use {remedy}, or put spaces between the words."
    )
  if algorithm == "words":
    return (
      f"{_size_name()}={size} is too large: only {num_pieces:,} words of the"
      f" text occur {MIN_FREQUENCY} times. A model predicts these words, and"
      " reads all other words by their characters."
    )
  return (
    f"the text is too small for {_size_name()}={size}: no further piece occurs"
    f" {MIN_FREQUENCY} times."
  )


def _check_output(output: str, algorithm: str) -> None:
  """Raises UserError if the files of a vocabulary cannot be written."""
  path = pathlib.Path(output)
  if algorithm not in ALGORITHMS:
    raise UserError(
      f"algorithm={algorithm!r} is not one of {', '.join(ALGORITHMS)}."
    )
  if not output:
    raise UserError("the output is empty; name what to write.")
  if algorithm == "bytelevel":
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
      raise UserError(
        f"{output} is in the way; name a new folder for vocab.json and"
        " merges.txt."
      )
  elif path.is_dir():
    raise UserError(f"{output} is a folder; name a file.")
  elif (algorithm == "unigram") != output.endswith(".model"):
    raise UserError(
      f"{output}: the name of a unigram model, and of no other vocabulary, ends"
      " with .model."
    )
  elif os.path.lexists(output):
    raise UserError(f"{output} exists; delete it or choose another output.")
  elif (settings := _settings_path(path)).exists():
    raise UserError(
      f"{settings} is in the way: it says how another vocabulary is used;"
      " choose another name or folder, or remove it."
    )


def _settings_path(output: pathlib.Path) -> pathlib.Path:
  """Returns the file with the settings of a vocabulary's file."""
  return output.parent / open_vocabulary.settings_name_for(output)


def _write_files(vocabulary: Vocabulary, output: str) -> None:
  """Writes the files of a vocabulary; after an error nothing is left."""
  path = pathlib.Path(output)
  if vocabulary.algorithm == "bytelevel":
    with files.atomic_folder(path) as folder:
      open_vocabulary.save(vocabulary, folder)
    return
  contents = open_vocabulary.to_files(vocabulary)
  vocabulary_content = contents[next(iter(vocabulary.files))]
  settings = contents[open_vocabulary.SETTINGS_FILE]
  if vocabulary.algorithm == "unigram":
    # The model has all settings except its digest.
    settings = open_vocabulary.digest_settings({path.name: vocabulary_content})
  path.parent.mkdir(parents=True, exist_ok=True)
  # Both files are written before either gets its name. The file of settings
  # gets its name first: without it, the vocabulary would be read with default
  # rules.
  with (
    files.atomic_file(path) as new_vocabulary,
    files.atomic_file(_settings_path(path)) as new_settings,
  ):
    files.write_durably(new_vocabulary, vocabulary_content)
    files.write_durably(new_settings, settings)
