"""Trains a SentencePiece unigram model with ALBERT's settings.

google-research/albert README, the `spm_train` command: pad 0, unk 1, then
[CLS], [SEP], [MASK]; punctuation that is always a piece; 99.995% of the
characters covered; at most 10 million lines, drawn at random.
"""

import io
import os
import tempfile
from collections.abc import Iterable, Iterator

from bert_jax.corpus import sources
from bert_jax.text import cleaning, unigram
from bert_jax.text.cleaning import Cleaning
from bert_jax.text.train_vocabulary_word_counts import cut
from bert_jax.text.vocabulary import Vocabulary, valid

CONTROLS = ("[CLS]", "[SEP]", "[MASK]")
ALWAYS = ("(", ")", '"', "-", ".", "–", "£", "€")
COVERAGE = 0.99995
MAX_LINES = 10_000_000
# SentencePiece silently drops lines of more than 4,192 bytes. So lines are cut
# to this many characters, which have at most 4 bytes each.
MAX_CHARS = 1_000
# One thread: with several, sums over sentences are rounded in another order.
THREADS = 1


def train(
  records: Iterable[sources.Record], size: int, wanted: Cleaning
) -> Vocabulary | None:
  """Returns a tokenizer of at most `size` pieces, ALBERT's special ones first.

  None if there is no text.

  Args:
    records: text; read once.
    size: number of pieces (ALBERT: 30,000).
    wanted: how capitals and accents are treated. The model's file stores it as
      its normalization rules, so every reader of the file follows it.

  Raises:
    ValueError: `size` has no room for the text's characters, or the library is
      not installed.
  """
  try:
    import sentencepiece
  except ImportError as e:
    raise ValueError(
      "SentencePiece models need the package sentencepiece: pip install"
      " 'bert_jax[data]'."
    ) from e
  from sentencepiece import sentencepiece_model_pb2

  model, seen = io.BytesIO(), []
  errors: list[BaseException] = []

  def lines() -> Iterator[str]:
    for record in records:
      for text in cut(record.text):
        for line in text.split("\n"):
          if line.strip():
            seen[:] = [True]
            yield from _short(valid(line.replace("\0", " ")))

  def noted() -> Iterator[str]:
    """Yields the lines and keeps an error, which the library would replace."""
    try:
      yield from lines()
    except BaseException as e:
      errors.append(e)
      raise

  sentencepiece.set_random_generator_seed(0)
  folder = tempfile.TemporaryDirectory()
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=noted(),
      model_writer=model,
      model_type="unigram",
      vocab_size=size,
      hard_vocab_limit=False,  # A small text gives fewer pieces.
      pad_id=0,
      unk_id=1,
      bos_id=-1,
      eos_id=-1,
      pad_piece="<pad>",
      unk_piece="<unk>",
      control_symbols=list(CONTROLS),
      user_defined_symbols=list(ALWAYS),
      character_coverage=COVERAGE,
      normalization_rule_tsv=_write_rules(folder.name, wanted),
      input_sentence_size=MAX_LINES,
      shuffle_input_sentence=True,
      num_threads=THREADS,
      minloglevel=2,
    )
  except RuntimeError as e:
    if errors:
      raise errors[0] from None
    if not seen:
      return None
    raise ValueError(f"--size={size}: SentencePiece says: {e}") from e
  finally:
    folder.cleanup()
  proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
  proto.normalizer_spec.name = cleaning.NAMES[wanted]
  # Remove the name of the temporary file, which differs in every run.
  proto.normalizer_spec.ClearField("normalization_rule_tsv")
  return unigram.unigram(proto.SerializeToString(), "the new model")


def _write_rules(folder: str, wanted: Cleaning) -> str:
  """Writes normalization rules in SentencePiece's format; returns the path."""
  path = os.path.join(folder, "rules.tsv")
  with open(path, "w", encoding="ascii") as f:
    for pair in cleaning.rules(wanted).items():
      points = (" ".join(f"{ord(c):X}" for c in text) for text in pair)
      f.write("\t".join(points) + "\n")
  return path


def _short(line: str) -> Iterator[str]:
  """Cuts a line to `MAX_CHARS`, at a space if there is one."""
  while len(line) > MAX_CHARS:
    end = line.rfind(" ", 1, MAX_CHARS)
    end = MAX_CHARS if end < 0 else end
    yield line[:end]
    line = line[end:]
  yield line
