"""SentencePiece unigram models (ALBERT) through the `tokenizers` library.

The pieces, scores and normalization come from the model's file. A model of
`bert_jax vocab` has all of its cleaning in this file, so its ids are those of
SentencePiece. For any other model, the rules of transformers'
AlbertTokenizer are added: quotes become `"`, compatibility decomposition,
accents stripped, lower case, words segmented separately. Two differences from
google-research/albert tokenization.py follow from that: a comma after a digit
is not split off again, and words are segmented one at a time.

One rule follows SentencePiece and the original program, not transformers: if a
model's rules compose letters and marks (or the parts of Korean syllables), they
are always composed. The library's form of these rules sometimes does not
compose them, because it looks at one character or a short cluster at a time.
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

from bert_jax.text import bpe
from bert_jax.text import unigram_sentencepiece_model as sentencepiece_model
from bert_jax.text.cleaning import (
  FOLDING,
  TRAINED,
  Cleaning,
  check_alike,
  reordered_marks,
)
from bert_jax.text.vocabulary import SPACED, Vocabulary, mark

# google-research/albert: the order of the published model's special pieces is
# <pad> <unk> [CLS] [SEP] [MASK].
ALBERT = dict(pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]")
SPACE = "▁"
LETTERS = string.ascii_lowercase
SIGNS = '!"#$%&()*+,-./:;?@[\\]^_`{|}~'
# Two code points that Unicode defines as noncharacters, so no text has them.
_NO_CHARACTER, _APART = "\ufdd0", "\ufdd1"
# The rules for which pieces begin a word. "space": pieces with a space before
# them. "albert": the published rule, which was written for English.
WORD_STARTS = ("space", "albert")


def begins_word(piece: str, word_starts: str = WORD_STARTS[0]) -> bool:
  """Returns whether a piece begins a word.

  By the rule "albert" a single sign begins a word too, and so does a piece with
  a character that is neither an English letter nor such a sign: a digit, an
  apostrophe, a letter of another script (google-research/albert
  create_pretraining_data.py, _is_start_piece_sp).

  Args:
    piece: the piece as it is in the vocabulary.
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
  """Raises ValueError if `word_starts` is not in `WORD_STARTS`."""
  if word_starts not in WORD_STARTS:
    raise ValueError(
      f"{source}: word_starts {word_starts!r}: not one of {list(WORD_STARTS)}."
    )


def normalizer(
  model: sentencepiece_model.Model, cleaning: Cleaning
) -> normalizers.Normalizer:
  """Builds the library's normalizer from a model's rules and a cleaning."""
  chain = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
  rules = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
  # The library applies the rule of a cluster's first character to the whole
  # cluster. So earlier steps do as much as possible, and leave little to rules.
  if model.normalizer in TRAINED:
    keep = cleaning.keep_accents
    chain.append(normalizers.NFKC() if keep else normalizers.NFKD())
    if cleaning.lower_case:
      chain.append(normalizers.Lowercase())
    return normalizers.Sequence(
      [*chain, *rules, *([] if keep else [normalizers.NFC()])]
    )
  if not cleaning.keep_accents:
    chain += [normalizers.NFKD(), normalizers.StripAccents()]
  elif rules:
    order = Regex(reordered_marks())
    chain += [normalizers.Replace(order, _APART), normalizers.NFC()]
  if model.normalizer in FOLDING:
    # SentencePiece does not fold this letter.
    chain.append(normalizers.Replace("İ", _NO_CHARACTER))
  if cleaning.lower_case:
    chain.append(normalizers.Lowercase())
  if model.normalizer in FOLDING:
    chain.append(normalizers.Replace(_NO_CHARACTER, "İ"))
  if rules:
    chain += [normalizers.NFC(), *rules, normalizers.NFC()]
    chain.append(normalizers.Replace(_APART, ""))
  return normalizers.Sequence(chain)


def cleaning_of(
  name: str, lower_case: bool | None, keep_accents: bool | None, source: str
) -> Cleaning:
  """Returns the cleaning of text for a model.

  Args:
    name: the name of the normalizer in the model's file.
    lower_case: the caller's setting; None takes that of the model.
    keep_accents: the caller's setting; None takes that of the model.
    source: the model's name, for messages.

  Raises:
    ValueError: the caller's settings contradict the model's.
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
  """Returns the cleaning that the rules of a SentencePiece file do.

  Args:
    model: the content of a `.model` file.
    source: the name of the file, for messages.

  Returns:
    The cleaning. A field is None if the file leaves it to the user.

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
    lower_case: None takes the setting of the file, or else True, as published.
    keep_accents: None takes the setting of the file, or else the opposite of
      `lower_case`.
    word_starts: one of `WORD_STARTS`.

  Raises:
    ValueError: the file is not a unigram model, special pieces are missing, or
      its text was cleaned in a different way.
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
