"""Trains a SentencePiece unigram model with ALBERT's settings.

google-research/albert README, the `spm_train` command: pad 0, unk 1, then
[CLS], [SEP], [MASK]; punctuation that is always a piece; 99.995% of the
characters covered; at most 10 million lines, drawn at random.
"""

import io
from collections.abc import Iterable, Iterator

from bert_jax.data import sources, unigram
from bert_jax.data.tokenizer import Vocabulary, valid
from bert_jax.data.word_counts import cut

CONTROLS = ("[CLS]", "[SEP]", "[MASK]")
ALWAYS = ("(", ")", '"', "-", ".", "–", "£", "€")
COVERAGE = 0.99995
MAX_LINES = 10_000_000
# One thread: with several, sums over sentences are rounded in another order.
THREADS = 1


def train(
  records: Iterable[sources.Record], size: int, lower_case: bool
) -> Vocabulary | None:
  """Returns a tokenizer with `size` pieces, ALBERT's special ones first.

  None if there is no text.

  Args:
    records: text; read once.
    size: number of pieces (ALBERT: 30,000).
    lower_case: lower-case and strip accents before.

  Raises:
    ValueError: the text is too small for `size`, or the library is not
      installed.
  """
  try:
    import sentencepiece
  except ImportError as e:
    raise ValueError(
      "SentencePiece models need the package sentencepiece: pip install"
      " 'bert_jax[data]'."
    ) from e
  clean = unigram.cleaning(lower_case, keep_accents=not lower_case)
  model, seen = io.BytesIO(), []

  def lines() -> Iterator[str]:
    for record in records:
      for text in cut(record.text):
        for line in text.split("\n"):
          if line.strip():
            seen[:] = [True]
            yield clean.normalize_str(valid(line.replace("\0", " ")))

  sentencepiece.set_random_generator_seed(0)
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=lines(),
      model_writer=model,
      model_type="unigram",
      vocab_size=size,
      pad_id=0,
      unk_id=1,
      bos_id=-1,
      eos_id=-1,
      pad_piece="<pad>",
      unk_piece="<unk>",
      control_symbols=list(CONTROLS),
      user_defined_symbols=list(ALWAYS),
      character_coverage=COVERAGE,
      input_sentence_size=MAX_LINES,
      shuffle_input_sentence=True,
      num_threads=THREADS,
      minloglevel=2,
    )
  except RuntimeError as e:
    if not seen:
      return None
    raise ValueError(f"--size={size}: SentencePiece says: {e}") from e
  return unigram.unigram(
    model.getvalue(), "the new model", lower_case, not lower_case
  )
