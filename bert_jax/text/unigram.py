"""Builds SentencePiece unigram tokenizers (ALBERT) with `tokenizers`.

The pieces, scores and rules of normalization come from the model's file. The
file of a model that `bert_jax vocab` trained has all rules of cleaning, so the
library SentencePiece gives the same ids as this tokenizer. For a published
model, this module adds the rules of transformers' AlbertTokenizer: quotes
become `"`, letters are decomposed, accents are stripped, and text is changed to
lower case. As in transformers, each word is cut into pieces alone, and a comma
after a digit is not split off. google-research/albert tokenization.py differs
in both points.

Two rules follow SentencePiece and the original program, not transformers:
* If a model's rules compose letters and marks (or the parts of Korean
  syllables), these are always composed. The library `tokenizers` alone
  sometimes does not compose them, because it looks at one character or a short
  cluster of characters at a time.
* User-defined pieces are ordinary pieces. transformers 5.24 makes them added
  tokens and begins a word after each of them; docs/tokenizers.md shows this by
  the example `il-6`.

The file is a protocol buffer. The numbers and the defaults of its fields are
from github.com/google/sentencepiece src/sentencepiece_model.proto. This module
reads the file without the library SentencePiece; docs/design.md says why.
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

from bert_jax.messages import DamagedFile, UserError
from bert_jax.text import bpe
from bert_jax.text.cleaning import (
  FOLDING_RULES,
  PACKAGE_RULES,
  Cleaning,
  check_same_cleaning,
  misordered_marks_pattern,
)
from bert_jax.text.vocabulary import SPACED_PATTERN, Vocabulary, copy_that_reads

# Field of `SpecialIds` -> special token, in the order of the published model's
# pieces (google-research/albert).
ALBERT_TOKENS = dict(
  pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]"
)
# The character that stands for a space in a piece.
SPACE = "▁"
# The letters and signs of the rule "albert"; see `begins_word`.
ENGLISH_LETTERS = string.ascii_lowercase
ALBERT_SIGNS = '!"#$%&()*+,-./:;?@[\\]^_`{|}~'
# Two code points that Unicode defines as noncharacters, so no text has them.
_PLACEHOLDER, _SEPARATOR = "\ufdd0", "\ufdd1"
# The names of the rules that say which pieces begin a word; see `begins_word`.
# By the rule "space", these are the pieces that begin with a space. "albert" is
# the published rule, which is for English.
WORD_STARTS = ("space", "albert")
# The numbers of ModelProto's fields pieces, trainer_spec and normalizer_spec.
_PIECES_FIELD, _TRAINER_FIELD, _NORMALIZER_FIELD = 1, 2, 3
# The numbers of the fields piece and score in a message of type SentencePiece.
_PIECE_FIELD, _SCORE_FIELD = 1, 2
# The number of TrainerSpec's field model_type, and the value of this field for
# a unigram model, the default.
_MODEL_TYPE_FIELD, _UNIGRAM_TYPE = 3, 1
# The numbers of NormalizerSpec's fields name and precompiled_charsmap.
_NAME_FIELD, _CHARSMAP_FIELD = 1, 2
# The wire types of fields. A field of type _COUNTED_BYTES holds a number n, and
# then n bytes.
_VARINT, _EIGHT_BYTES, _COUNTED_BYTES, _FOUR_BYTES = 0, 1, 2, 5


class ModelFile(NamedTuple):
  """Holds the content of a SentencePiece file with a unigram model.

  Attributes:
    pieces: the pieces in the order of their ids.
    scores: the log probability of each piece.
    charsmap: compiled rules of normalization; empty if there are none.
    rules_name: the name of the rules; empty if they have no name.
  """

  pieces: list[str]
  scores: list[float]
  charsmap: bytes
  rules_name: str = ""


def begins_word(piece: str, word_starts: str = WORD_STARTS[0]) -> bool:
  """Returns True if a piece begins a word.

  By both rules, special tokens and pieces that begin with a space begin a word.
  By the rule "albert", these pieces also begin a word: a piece of one sign (in
  `ALBERT_SIGNS`), a piece that begins with <, and a piece with a character that
  is neither an English letter nor in `ALBERT_SIGNS`, such as a digit, an
  apostrophe or a Greek letter (google-research/albert
  create_pretraining_data.py, _is_start_piece_sp).

  Args:
    piece: the piece as it is in the vocabulary.
    word_starts: one of `WORD_STARTS`.
  """
  if piece.startswith(SPACE) or piece in ALBERT_TOKENS.values():
    return True
  return word_starts == "albert" and (
    piece.startswith("<")
    or (len(piece) == 1 and piece in ALBERT_SIGNS)
    or not all(
      character.lower() in ENGLISH_LETTERS + ALBERT_SIGNS for character in piece
    )
  )


def check_word_starts(word_starts: str, source: str) -> None:
  """Raises UserError if `word_starts` is not in `WORD_STARTS`."""
  if word_starts not in WORD_STARTS:
    raise UserError(
      f"{source}: word_starts {word_starts!r} is not one of"
      f" {list(WORD_STARTS)}."
    )


def make_normalizer(
  model: ModelFile, cleaning: Cleaning
) -> normalizers.Normalizer:
  """Builds the library's normalizer from a model's rules and a cleaning."""
  steps: list[normalizers.Normalizer] = [
    normalizers.Replace("``", '"'),
    normalizers.Replace("''", '"'),
  ]
  rules = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
  # A cluster is a letter with its marks. The library may apply the rule of a
  # cluster's first character to the whole cluster. So the steps before `rules`
  # clean as much as possible.
  if model.rules_name in PACKAGE_RULES:
    keeps_accents = cleaning.keep_accents
    steps.append(normalizers.NFKC() if keeps_accents else normalizers.NFKD())
    if cleaning.lower_case:
      steps.append(normalizers.Lowercase())
    return normalizers.Sequence(
      [*steps, *rules, *([] if keeps_accents else [normalizers.NFC()])]
    )
  if not cleaning.keep_accents:
    steps += [normalizers.NFKD(), normalizers.StripAccents()]
  elif rules:
    # SentencePiece neither sorts marks nor composes over a mark. The separator
    # keeps NFC from doing so; the last step removes it.
    misordered_marks = Regex(misordered_marks_pattern())
    steps += [
      normalizers.Replace(misordered_marks, _SEPARATOR),
      normalizers.NFC(),
    ]
  if model.rules_name in FOLDING_RULES:
    # Hide İ from `Lowercase`, because SentencePiece does not fold it.
    steps.append(normalizers.Replace("İ", _PLACEHOLDER))
  if cleaning.lower_case:
    steps.append(normalizers.Lowercase())
  if model.rules_name in FOLDING_RULES:
    steps.append(normalizers.Replace(_PLACEHOLDER, "İ"))
  if rules:
    steps += [normalizers.NFC(), *rules, normalizers.NFC()]
    steps.append(normalizers.Replace(_SEPARATOR, ""))
  return normalizers.Sequence(steps)


def choose_cleaning(
  name: str, lower_case: bool | None, keep_accents: bool | None, source: str
) -> Cleaning:
  """Returns the cleaning of text for a model.

  Args:
    name: the name of the normalizer in the model's file.
    lower_case: the caller's setting; None means the setting of the model, or
      True if the model has none.
    keep_accents: the caller's setting; None means the setting of the model, or
      the opposite of `lower_case` if the model has none.
    source: the model's name, for messages.

  Raises:
    UserError: the caller's settings contradict the model's settings.
  """
  requested_cleaning = Cleaning(lower_case, keep_accents)
  if name in PACKAGE_RULES:
    check_same_cleaning(PACKAGE_RULES[name], requested_cleaning, source)
    return PACKAGE_RULES[name]
  if name in FOLDING_RULES:
    check_same_cleaning(
      Cleaning(True, None), Cleaning(lower_case, None), source
    )
    return Cleaning(True, keep_accents is not False)
  return requested_cleaning.with_defaults()


def cleaning_in_rules(model: bytes, source: str) -> Cleaning:
  """Returns the cleaning that the rules of a SentencePiece file apply.

  Args:
    model: the content of a `.model` file.
    source: the name of the file, for messages.

  Returns:
    The cleaning. A field is None if the rules leave it open.

  Raises:
    UserError: the file is damaged, or holds no unigram model.
  """
  rules_name = parse_model(model, source).rules_name
  default_cleaning = (
    Cleaning(True, None) if rules_name in FOLDING_RULES else Cleaning()
  )
  return PACKAGE_RULES.get(rules_name, default_cleaning)


def build(
  model: bytes,
  source: str = "model",
  lower_case: bool | None = None,
  keep_accents: bool | None = None,
  word_starts: str = WORD_STARTS[0],
) -> Vocabulary:
  """Builds ALBERT's tokenizer from a SentencePiece file.

  Args:
    model: the content of a `.model` file.
    source: the name of the file, for messages.
    lower_case: True if text is changed to lower case. None means the setting of
      the file, or True, as published, if the file has no setting.
    keep_accents: True if accents stay. None means the setting of the file, or
      the opposite of `lower_case` if the file has no setting.
    word_starts: one of `WORD_STARTS`.

  Raises:
    UserError: the file is not a unigram model, special pieces are missing,
      `word_starts` is unknown, or the caller's settings contradict the file.
  """
  check_word_starts(word_starts, source)
  model_file = parse_model(model, source)
  pieces, scores = model_file.pieces, model_file.scores
  id_by_piece = {piece: piece_id for piece_id, piece in enumerate(pieces)}
  special = bpe.special_ids(id_by_piece, ALBERT_TOKENS, source)
  # Name the special pieces with a space at the end. No word of a text has a
  # space in it, so a literal `[SEP]` is never read as the special piece.
  unmatched_pieces = [
    piece + " " if piece in ALBERT_TOKENS.values() else piece
    for piece in pieces
  ]
  cleaning = choose_cleaning(
    model_file.rules_name, lower_case, keep_accents, source
  )
  normalizer = make_normalizer(model_file, cleaning)

  def build_tokenizer(names: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(
      models.Unigram(
        list(zip(names, scores, strict=True)),
        unk_id=special.unk,
        byte_fallback=False,
      )
    )
    tokenizer.normalizer = normalizer
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

  at_word_boundary = [begins_word(piece, word_starts) for piece in pieces]
  special_tokenizer = copy_that_reads(
    build_tokenizer(pieces), ALBERT_TOKENS.values()
  )
  # The tokenizer of `tokenizer.json` also adds special tokens around a text.
  tokenizer_with_ends = copy_that_reads(
    special_tokenizer, ALBERT_TOKENS.values()
  )
  sep, cls = (ALBERT_TOKENS[role] for role in ("sep", "cls"))
  tokenizer_with_ends.post_processor = processors.BertProcessing(
    (sep, id_by_piece[sep]), (cls, id_by_piece[cls])
  )
  return Vocabulary(
    algorithm="unigram",
    pieces=pieces,
    special=special,
    plain_text_tokenizer=build_tokenizer(unmatched_pieces),
    special_tokenizer=special_tokenizer,
    at_word_boundary=np.array(at_word_boundary),
    chunk_pattern=SPACED_PATTERN,
    options=dict(**cleaning._asdict(), word_starts=word_starts),
    files={
      "spiece.model": model,
      "tokenizer.json": tokenizer_with_ends.to_str().encode("utf-8"),
    },
  )


def parse_model(content: bytes, source: str) -> ModelFile:
  """Reads a SentencePiece file.

  Args:
    content: the content of the file.
    source: the name of the file, for messages.

  Raises:
    UserError: the file is damaged or is not a unigram model, or a piece occurs
      twice.
  """
  pieces: list[str] = []
  scores: list[float] = []
  charsmap, rules_name = b"", ""
  model_type: int | bytes = _UNIGRAM_TYPE
  try:
    for field_number, message in _read_fields(content):
      if field_number not in (_PIECES_FIELD, _TRAINER_FIELD, _NORMALIZER_FIELD):
        continue
      fields = dict(_read_fields(_as_bytes(message)))
      if field_number == _PIECES_FIELD:
        pieces.append(_as_bytes(fields[_PIECE_FIELD]).decode("utf-8"))
        score_bytes = _as_bytes(fields.get(_SCORE_FIELD, bytes(4)))
        scores.append(struct.unpack("<f", score_bytes)[0])
      elif field_number == _TRAINER_FIELD:
        model_type = fields.get(_MODEL_TYPE_FIELD, _UNIGRAM_TYPE)
      else:
        charsmap = _as_bytes(fields.get(_CHARSMAP_FIELD, b""))
        rules_name = _as_bytes(fields.get(_NAME_FIELD, b"")).decode("utf-8")
  except (KeyError, ValueError, TypeError, struct.error) as e:
    raise UserError(f"{source} is not a SentencePiece model ({e}).") from e
  if not pieces or model_type != _UNIGRAM_TYPE:
    raise UserError(f"{source} is not a unigram model of SentencePiece.")
  check_charsmap(charsmap, source)
  id_by_piece: dict[str, int] = {}
  for i, piece in enumerate(pieces):
    if id_by_piece.setdefault(piece, i) != i:
      raise UserError(
        f"{source}: {piece!r} is piece {id_by_piece[piece]} and also piece {i}."
      )
  return ModelFile(pieces, scores, charsmap, rules_name)


def check_charsmap(charsmap: bytes, source: str) -> None:
  """Checks compiled rules, because damaged rules crash the library.

  Args:
    charsmap: the size of a trie (4 bytes), the trie, and text in UTF-8.
    source: the file of the rules, for messages.

  Raises:
    DamagedFile: the rules are cut off or are no compiled rules.
  """
  if not charsmap:
    return
  trie_size = int.from_bytes(charsmap[:4], "little")
  try:
    if trie_size % 4 or len(charsmap) < 4 + trie_size:
      raise ValueError(
        f"{len(charsmap)} bytes cannot hold a trie of {trie_size}"
      )
    charsmap[4 + trie_size :].decode("utf-8")
  except ValueError as e:
    raise DamagedFile(f"{source}: its charsmap is damaged ({e}).") from e


def _read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
  """Yields (number, content) of each field in a message of a protocol buffer.

  Raises:
    ValueError: the message is damaged or cut off.
  """
  position = 0
  while position < len(message):
    key, position = _read_varint(message, position)
    field_number, wire_type = key >> 3, key & 7
    if wire_type == _VARINT:
      content, position = _read_varint(message, position)
      yield field_number, content
      continue
    if wire_type not in (_EIGHT_BYTES, _COUNTED_BYTES, _FOUR_BYTES):
      raise ValueError(f"no field can begin before byte {position}")
    size = 8 if wire_type == _EIGHT_BYTES else 4
    if wire_type == _COUNTED_BYTES:
      size, position = _read_varint(message, position)
    if position + size > len(message):
      raise ValueError(f"cut off at byte {len(message)}")
    yield field_number, message[position : position + size]
    position += size


def _as_bytes(content: int | bytes) -> bytes:
  """Returns the content of a field; raises TypeError if it is a number."""
  if isinstance(content, int):
    raise TypeError(f"the number {content} is in the place of bytes")
  return content


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
  """Returns the number that begins at a position, and the position after it."""
  number = shift = 0
  while position < len(message) and shift < 64:
    number |= (message[position] & 127) << shift
    position, shift = position + 1, shift + 7
    if message[position - 1] < 128:
      return number, position
  raise ValueError(f"no number ends at byte {position}")
