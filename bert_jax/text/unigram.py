"""SentencePiece unigram models (ALBERT) through the `tokenizers` library.

The pieces, scores and normalization come from the model's file. A model of
`bert_jax vocab` has all of its cleaning in this file, so its ids are those of
SentencePiece. For any other model, the rules of transformers'
AlbertTokenizer are added: quotes become `"`, compatibility decomposition,
accents stripped, lower case, words segmented separately. Two differences from
google-research/albert tokenization.py follow from that: a comma after a digit
is not split off again, and words are segmented one at a time.

Two rules follow SentencePiece and the original program, not transformers. If a
model's rules compose letters and marks (or the parts of Korean syllables), they
are always composed. The library's form of these rules sometimes does not
compose them, because it looks at one character or a short cluster at a time.
And user-defined pieces are ordinary pieces; transformers 5.24 makes them added
tokens and begins a word after each of them (`il-6`: docs/tokenizers.md).

The file is a protocol buffer (github.com/google/sentencepiece
src/sentencepiece_model.proto; numbers of fields and defaults are from there).
It is read here without the library SentencePiece; docs/design.md says why.
"""

import string
import struct
from collections.abc import Iterator
from typing import NamedTuple

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

from bert_jax.messages import Damaged, UserError
from bert_jax.text import bpe
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
# ModelProto: pieces, trainer_spec, normalizer_spec.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
# SentencePiece: piece, score.
_PIECE, _SCORE = 1, 2
# TrainerSpec.model_type, and its value for a unigram model, the default.
_MODEL_TYPE, _UNIGRAM = 3, 1
# NormalizerSpec: name, precompiled_charsmap.
_NAME, _CHARSMAP = 1, 2
# Wire types: a number, 8 bytes, as many bytes as a number says, 4 bytes.
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


class ModelFile(NamedTuple):
  """The content of a SentencePiece file with a unigram model.

  Attributes:
    pieces: in the order of their ids.
    scores: log probabilities.
    charsmap: compiled rules of normalisation, empty if there are none.
    normalizer: the name of these rules, empty if they have none.
  """

  pieces: list[str]
  scores: list[float]
  charsmap: bytes
  normalizer: str = ""


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
  """Raises UserError if `word_starts` is not in `WORD_STARTS`."""
  if word_starts not in WORD_STARTS:
    raise UserError(
      f"{source}: word_starts {word_starts!r}: not one of {list(WORD_STARTS)}."
    )


def normalizer(model: ModelFile, cleaning: Cleaning) -> normalizers.Normalizer:
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
    UserError: the caller's settings contradict the model's.
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
    UserError: the file is damaged, or not of a unigram model.
  """
  name = parse_model(model, source).normalizer
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
    UserError: the file is not a unigram model, special pieces are missing, or
      its text was cleaned in a different way.
  """
  check_word_starts(word_starts, source)
  parsed = parse_model(model, source)
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


def parse_model(content: bytes, source: str) -> ModelFile:
  """Reads a SentencePiece file.

  Args:
    content: the content of the file.
    source: the name of the file, for messages.

  Raises:
    UserError: damaged, not a unigram model, or a piece occurs twice.
  """
  pieces, scores, charsmap, kind = [], [], b"", _UNIGRAM
  normalizer = ""
  try:
    for number, value in _fields(content):
      if number == _PIECES:
        piece = dict(_fields(value))
        pieces.append(piece[_PIECE].decode("utf-8"))
        scores.append(struct.unpack("<f", piece.get(_SCORE, bytes(4)))[0])
      elif number == _TRAINER:
        kind = dict(_fields(value)).get(_MODEL_TYPE, _UNIGRAM)
      elif number == _NORMALIZER:
        fields = dict(_fields(value))
        charsmap = fields.get(_CHARSMAP, b"")
        normalizer = fields.get(_NAME, b"").decode("utf-8")
  except (KeyError, ValueError, TypeError, AttributeError, struct.error) as e:
    raise UserError(f"{source}: not a SentencePiece model ({e}).") from e
  if not pieces or kind != _UNIGRAM or not isinstance(charsmap, bytes):
    raise UserError(f"{source}: not a unigram model of SentencePiece.")
  check_charsmap(charsmap, source)
  seen: dict[str, int] = {}
  for i, piece in enumerate(pieces):
    if seen.setdefault(piece, i) != i:
      raise UserError(
        f"{source}: {piece!r} is piece {seen[piece]} and piece {i} as well."
      )
  return ModelFile(pieces, scores, charsmap, normalizer)


def check_charsmap(charsmap: bytes, source: str) -> None:
  """Checks compiled rules: the size of a trie, the trie, text in UTF-8.

  Raises:
    UserError: cut off or not such rules; the library would panic over them.
  """
  if not charsmap:
    return
  size = int.from_bytes(charsmap[:4], "little")
  try:
    if size % 4 or len(charsmap) < 4 + size:
      raise ValueError(f"{len(charsmap)} bytes, a trie of {size}")
    charsmap[4 + size :].decode("utf-8")
  except ValueError as e:
    raise Damaged(f"{source}: its charsmap is damaged ({e}).") from e


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
  """Yields (number, value) of a message; UserError if it is cut off."""
  at = 0
  while at < len(data):
    key, at = _varint(data, at)
    number, wire = key >> 3, key & 7
    if wire == _VARINT:
      value, at = _varint(data, at)
      yield number, value
      continue
    if wire not in (_EIGHT, _BYTES, _FOUR):
      raise ValueError(f"no field can begin before byte {at}")
    size = 8 if wire == _EIGHT else 4
    if wire == _BYTES:
      size, at = _varint(data, at)
    if at + size > len(data):
      raise ValueError(f"cut off at byte {len(data)}")
    yield number, data[at : at + size]
    at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
  """Returns the number at a place, and the place after it."""
  value = shift = 0
  while at < len(data) and shift < 64:
    value |= (data[at] & 127) << shift
    at, shift = at + 1, shift + 7
    if data[at - 1] < 128:
      return value, at
  raise ValueError(f"no number ends at byte {at}")
