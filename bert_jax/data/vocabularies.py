"""WordPiece as in BERT, around the `tokenizers` library.

The rules are those of Hugging Face's `BertTokenizerFast`, with which published
vocabularies are used today: control characters are dropped, accents are
stripped together with lower-casing, Chinese characters and punctuation stand
alone, and a word of more than 100 characters is `[UNK]`. They follow
`tokenization.py` of github.com/google-research/bert (whose limit is 200, and
which keeps private-use characters).
"""

from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import (
  AddedToken,
  Tokenizer,
  models,
  normalizers,
  pre_tokenizers,
)

from bert_jax.data import corpus

CONTINUATION = "##"
MAX_WORD_CHARS = 100


def normalizer(lower_case: bool) -> normalizers.Normalizer:
  """Returns BERT's clean-up of raw text, shared with `train_vocab`."""
  return normalizers.BertNormalizer(
    clean_text=True,
    handle_chinese_chars=True,
    strip_accents=lower_case,
    lowercase=lower_case,
  )


class WordPiece:
  """Text to ids and back; deterministic, and may be pickled.

  Attributes:
    pieces: the vocabulary in the order of the ids.
    special: ids of the special tokens.
    lower_case: whether text is lower-cased and loses its accents.
  """

  def __init__(
    self,
    pieces: Sequence[str],
    lower_case: bool = True,
    source: str = "vocabulary",
  ):
    """Builds the tokenizer.

    Args:
      pieces: from `corpus.read_vocab`, for example.
      lower_case: True for an uncased vocabulary.
      source: where the pieces come from, for messages.

    Raises:
      ValueError: a special token is missing, or `lower_case` is asked of a
        cased vocabulary, most of whose words it could never produce.
    """
    self.pieces = list(pieces)
    self.special = corpus.special_ids(self.pieces, source)
    self.lower_case = lower_case
    if lower_case:
      _check_uncased(self.pieces, source)
    self._starts = np.array(
      [not piece.startswith(CONTINUATION) for piece in self.pieces]
    )
    self._plain = self._build()
    self._special = self._build()
    self._special.add_special_tokens(
      [AddedToken(token, normalized=False) for token in corpus.SPECIAL_TOKENS]
    )

  def _build(self) -> Tokenizer:
    tokenizer = Tokenizer(
      models.WordPiece(
        {piece: i for i, piece in enumerate(self.pieces)},
        unk_token="[UNK]",
        max_input_chars_per_word=MAX_WORD_CHARS,
        continuing_subword_prefix=CONTINUATION,
      )
    )
    tokenizer.normalizer = normalizer(self.lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer

  @property
  def vocab_size(self) -> int:
    return len(self.pieces)

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids of each text, for corpora.

    No special token is added, and a literal `[SEP]` is text like any other:
    a corpus must not be able to write special tokens.
    """
    encodings = self._plain.encode_batch_fast(
      list(texts), add_special_tokens=False
    )
    return [encoding.ids for encoding in encodings]

  def encode_special(self, text: str) -> list[int]:
    """Returns the ids of a text in which `[MASK]` and the like are special.

    Special tokens are known by their exact spelling only: with lower-casing
    too, `[MASK]` is one id and `[mask]` is three. None is added.
    """
    return self._special.encode(text, add_special_tokens=False).ids

  def word_starts(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns a bool array of the shape of `ids`, True where a word starts."""
    return self._starts[np.asarray(ids, np.int64)]

  def decode(self, ids: Iterable[int]) -> str:
    """Returns the pieces joined by spaces, continuations without one."""
    text = " ".join(self.pieces[i] for i in ids)
    return text.replace(" " + CONTINUATION, "")


def _check_uncased(pieces: Sequence[str], source: str) -> None:
  words = [p for p in pieces if not (p.startswith("[") and p.endswith("]"))]
  cased = [p for p in words if p != p.lower()]
  if len(cased) > 0.01 * len(words):
    raise ValueError(
      f"{source}: a cased vocabulary ({len(cased)} pieces with capitals, such"
      f" as {cased[0]!r}) cannot be used with lower-casing; pass"
      " --no-lower-case (lower_case=False)."
    )
