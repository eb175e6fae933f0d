"""SentencePiece unigram models (ALBERT) through the `tokenizers` library.

The pieces, scores and normalisation come from the model's file; the rules
around them are those of transformers' AlbertTokenizer: quotes as `"`,
compatibility decomposition, accents stripped, lower case, words apart. Two
differences from google-research/albert tokenization.py follow from that: a
comma after a digit is not split off again, and words are segmented one at a
time.
"""

import string

import numpy as np
from tokenizers import (
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
)

from bert_jax.data import bpe, sentencepiece_model
from bert_jax.data.tokenizer import SPACED, Vocabulary, mark

# google-research/albert: the order of the published model's special pieces is
# <pad> <unk> [CLS] [SEP] [MASK].
ALBERT = dict(pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]")
SPACE = "▁"
LETTERS = string.ascii_lowercase
SIGNS = '!"#$%&()*+,-./:;?@[\\]^_`{|}~'


def begins_word(piece: str) -> bool:
  """Whether a piece starts a word, as ALBERT's masks see it.

  One with a space before it, a sign alone, and one with anything but English
  letters and these signs in it: digits, an apostrophe, another script (google-
  research/albert create_pretraining_data.py, _is_start_piece_sp).
  """
  return (
    piece.startswith((SPACE, "<"))
    or (len(piece) == 1 and piece in SIGNS)
    or not all(c.lower() in LETTERS + SIGNS for c in piece)
  )


def cleaning(lower_case: bool, keep_accents: bool) -> normalizers.Normalizer:
  """What happens to text before the model's own normalisation."""
  chain = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
  if not keep_accents:
    chain += [normalizers.NFKD(), normalizers.StripAccents()]
  if lower_case:
    chain.append(normalizers.Lowercase())
  return normalizers.Sequence(chain)


def unigram(
  model: bytes,
  source: str = "model",
  lower_case: bool = True,
  keep_accents: bool = False,
) -> Vocabulary:
  """Builds ALBERT's tokenizer from a SentencePiece file.

  Args:
    model: content of a `.model` file.
    source: its name, for messages.
    lower_case: as the published models do.
    keep_accents: as they do not.

  Raises:
    ValueError: no unigram model, or special pieces are missing.
  """
  pieces, scores, charsmap = sentencepiece_model.parse(model, source)
  ids = {piece: i for i, piece in enumerate(pieces)}
  special = bpe.special_ids(ids, ALBERT, source)
  # No word has a space in it: a piece that ends with one is never matched.
  hidden = [p + " " if p in ALBERT.values() else p for p in pieces]
  chain = cleaning(lower_case, keep_accents)
  if charsmap:
    chain = normalizers.Sequence([chain, normalizers.Precompiled(charsmap)])

  def build(names):
    tokenizer = Tokenizer(
      models.Unigram(
        list(zip(names, scores, strict=True)),
        unk_id=special.unk,
        byte_fallback=False,
      )
    )
    tokenizer.normalizer = chain
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
      [
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
      ]
    )
    tokenizer.decoder = decoders.Metaspace(
      replacement=SPACE, prepend_scheme="always"
    )
    return tokenizer

  begins = [begins_word(p) or p in ALBERT.values() for p in pieces]
  marked = mark(build(pieces), ALBERT.values())
  # transformers' form: it adds the special tokens itself.
  adding = mark(marked, ALBERT.values())
  ends = [(pieces[i], i) for i in (special.sep, special.cls)]
  adding.post_processor = processors.BertProcessing(*ends)
  return Vocabulary(
    kind="unigram",
    pieces=pieces,
    special=special,
    plain=build(hidden),
    marked=marked,
    boundary=np.array(begins),
    atoms=SPACED,
    options=dict(lower_case=lower_case, keep_accents=keep_accents),
    files={
      "spiece.model": model,
      "tokenizer.json": adding.to_str().encode("utf-8"),
    },
  )
