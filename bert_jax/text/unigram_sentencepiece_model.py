"""Reads a SentencePiece `.model`, without the library that writes it.

The file is a protocol buffer, github.com/google/sentencepiece
src/sentencepiece_model.proto; numbers of fields and defaults are from there.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

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


class Model(NamedTuple):
  """A unigram model.

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


def parse(content: bytes, source: str) -> Model:
  """Reads the content of a file.

  Args:
    content: of the file.
    source: its name, for messages.

  Raises:
    ValueError: damaged, not a unigram model, or a piece occurs twice.
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
    raise ValueError(f"{source}: not a SentencePiece model ({e}).") from e
  if not pieces or kind != _UNIGRAM or not isinstance(charsmap, bytes):
    raise ValueError(f"{source}: not a unigram model of SentencePiece.")
  check_charsmap(charsmap, source)
  seen: dict[str, int] = {}
  for i, piece in enumerate(pieces):
    if seen.setdefault(piece, i) != i:
      raise ValueError(
        f"{source}: {piece!r} is piece {seen[piece]} and piece {i} as well."
      )
  return Model(pieces, scores, charsmap, normalizer)


def check_charsmap(charsmap: bytes, source: str) -> None:
  """Checks compiled rules: the size of a trie, the trie, text in UTF-8.

  Raises:
    ValueError: cut off or not such rules; the library would panic over them.
  """
  if not charsmap:
    return
  size = int.from_bytes(charsmap[:4], "little")
  try:
    if size % 4 or len(charsmap) < 4 + size:
      raise ValueError(f"{len(charsmap)} bytes, a trie of {size}")
    charsmap[4 + size :].decode("utf-8")
  except ValueError as e:
    raise ValueError(f"{source}: its charsmap is damaged ({e}).") from e


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
  """Yields (number, value) of a message; ValueError if it is cut off."""
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
