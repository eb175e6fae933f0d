"""SentencePiece unigram models (ALBERT) through the `tokenizers` library.

The pieces, scores and normalisation come from the model's file. A model that
`train_vocab` wrote has all of its cleaning in there: its ids are those of
SentencePiece. Around any other one stand the rules of transformers'
AlbertTokenizer: quotes as `"`, compatibility decomposition, accents stripped,
lower case, words apart. Two differences from google-research/albert
tokenization.py follow from that: a comma after a digit is not split off again,
and words are segmented one at a time. In one thing this follows SentencePiece
and the original program, not transformers: letters and marks (and the parts of
Korean syllables) that a model's rules would put together are put together, also
where the library's form of these rules, which looks at one character or a short
cluster at a time, fails to.
"""

import string

import numpy as np
from tokenizers import (
  Regex,
  Tokenizer,
  decoders,
  models,
  normalizers,
  pre_tokenizers,
  processors,
)

from bert_jax.data import bpe, sentencepiece_model
from bert_jax.data.cleaning import (
  FOLDING,
  TRAINED,
  Cleaning,
  check_alike,
  reordered_marks,
)
from bert_jax.data.tokenizer import SPACED, Vocabulary, mark

# google-research/albert: the order of the published model's special pieces is
# <pad> <unk> [CLS] [SEP] [MASK].
ALBERT = dict(pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]")
SPACE = "▁"
LETTERS = string.ascii_lowercase
SIGNS = '!"#$%&()*+,-./:;?@[\\]^_`{|}~'
# By Unicode's definition these are no characters.
_NO_CHARACTER, _APART = "\ufdd0", "\ufdd1"
# Which pieces begin a word. "space": those with a space before them. "albert":
# the released rule, which was written for English.
WORD_STARTS = ("space", "albert")


def begins_word(piece: str, word_starts: str = WORD_STARTS[0]) -> bool:
  """Returns whether a piece begins a word.

  By the rule "albert" also a sign alone does, and a piece with anything but
  English letters and these signs in it: digits, an apostrophe, another script
  (google-research/albert create_pretraining_data.py, _is_start_piece_sp).

  Args:
    piece: as it stands in the vocabulary.
    word_starts: one of `WORD_STARTS`.
  """
  if piece.startswith(SPACE) or piece in ALBERT.values():
    return True
  return word_starts == "albert" and (
    piece.startswith("<")
    or (len(piece) == 1 and piece in SIGNS)
    or not all(c.lower() in LETTERS + SIGNS for c in piece)
  )


def check_word_starts(word_starts: str, source: str) -> None:
  """Raises ValueError if it is none of `WORD_STARTS`."""
  if word_starts not in WORD_STARTS:
    raise ValueError(
      f"{source}: word_starts {word_starts!r}: not one of {list(WORD_STARTS)}."
    )


def normalizer(
  model: sentencepiece_model.Model, cleaning: Cleaning
) -> normalizers.Normalizer:
  """Returns the library's form of a model's normalisation and `cleaning`."""
  chain = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
  own = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
  # The library would apply the rule of a cluster's first character to the whole
  # cluster. So nothing is left to the rules that an earlier step can do.
  if model.normalizer in TRAINED:
    keep = cleaning.keep_accents
    chain.append(normalizers.NFKC() if keep else normalizers.NFKD())
    if cleaning.lower_case:
      chain.append(normalizers.Lowercase())
    return normalizers.Sequence(
      [*chain, *own, *([] if keep else [normalizers.NFC()])]
    )
  if not cleaning.keep_accents:
    chain += [normalizers.NFKD(), normalizers.StripAccents()]
  elif own:
    order = Regex(reordered_marks())
    chain += [normalizers.Replace(order, _APART), normalizers.NFC()]
  if model.normalizer in FOLDING:
    # SentencePiece does not fold this letter.
    chain.append(normalizers.Replace("İ", _NO_CHARACTER))
  if cleaning.lower_case:
    chain.append(normalizers.Lowercase())
  if model.normalizer in FOLDING:
    chain.append(normalizers.Replace(_NO_CHARACTER, "İ"))
  if own:
    chain += [normalizers.NFC(), *own, normalizers.NFC()]
    chain.append(normalizers.Replace(_APART, ""))
  return normalizers.Sequence(chain)


def cleaning_of(
  name: str, lower_case: bool | None, keep_accents: bool | None, source: str
) -> Cleaning:
  """Returns the cleaning before a model's pieces.

  Args:
    name: the model's own normaliser.
    lower_case: what the caller asks for; None for the model's.
    keep_accents: the same.
    source: the model's name, for messages.

  Raises:
    ValueError: the caller asks for another cleaning than the model's own.
  """
  wanted = Cleaning(lower_case, keep_accents)
  if name in TRAINED:
    check_alike(TRAINED[name], wanted, source)
    return TRAINED[name]
  if name in FOLDING:
    check_alike(Cleaning(True, None), Cleaning(lower_case, None), source)
    return Cleaning(True, keep_accents is not False)
  return wanted.filled()


def fixed_cleaning(model: bytes, source: str) -> Cleaning:
  """Returns the cleaning that is among the rules of a SentencePiece file.

  Args:
    model: the content of a `.model` file.
    source: its name, for messages.

  Returns:
    None for what the file leaves to its user.

  Raises:
    ValueError: the file is damaged, or not of a unigram model.
  """
  name = sentencepiece_model.parse(model, source).normalizer
  folds = Cleaning(True, None) if name in FOLDING else Cleaning()
  return TRAINED.get(name, folds)


def unigram(
  model: bytes,
  source: str = "model",
  lower_case: bool | None = None,
  keep_accents: bool | None = None,
  word_starts: str = WORD_STARTS[0],
) -> Vocabulary:
  """Builds ALBERT's tokenizer from a SentencePiece file.

  Args:
    model: content of a `.model` file.
    source: its name, for messages.
    lower_case: None for what the file says, else True, as published.
    keep_accents: None for what the file says, else the contrary of
      `lower_case`.
    word_starts: one of `WORD_STARTS`.

  Raises:
    ValueError: no unigram model, special pieces are missing, or the file says
      that its text was cleaned in another way.
  """
  check_word_starts(word_starts, source)
  parsed = sentencepiece_model.parse(model, source)
  pieces, scores = parsed.pieces, parsed.scores
  ids = {piece: i for i, piece in enumerate(pieces)}
  special = bpe.special_ids(ids, ALBERT, source)
  # No word has a space in it: a piece that ends with one is never matched.
  hidden = [p + " " if p in ALBERT.values() else p for p in pieces]
  cleaning = cleaning_of(parsed.normalizer, lower_case, keep_accents, source)
  chain = normalizer(parsed, cleaning)

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

  begins = [begins_word(piece, word_starts) for piece in pieces]
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
    options=dict(**cleaning._asdict(), word_starts=word_starts),
    files={
      "spiece.model": model,
      "tokenizer.json": adding.to_str().encode("utf-8"),
    },
  )
