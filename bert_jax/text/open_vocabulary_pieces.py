"""Reads a vocabulary file: a piece on each line, in the order of the ids."""

from collections.abc import Sequence


def parse(content: bytes, source: str) -> list[str]:
  """Reads a vocabulary file with a piece on each line.

  Args:
    content: the content of the file.
    source: the name of the file, for messages.

  Raises:
    ValueError: the file is not UTF-8 or is empty, or a piece occurs twice; the
      message names the lines.
  """
  try:
    lines = content.decode("utf-8").split("\n")
  except UnicodeDecodeError as e:
    raise ValueError(f"{source}: not UTF-8 (byte {e.start}).") from e
  pieces = [line.rstrip("\r") for line in lines]
  while pieces and not pieces[-1]:
    pieces.pop()
  if not pieces:
    raise ValueError(f"{source}: the vocabulary is empty.")
  seen: dict[str, int] = {}
  for i, piece in enumerate(pieces):
    if seen.setdefault(piece, i) != i:
      raise ValueError(
        f"{source}: {piece!r:.40} stands in line {seen[piece] + 1} and again in"
        f" line {i + 1}; every piece needs one id. Remove one of them."
      )
  return pieces


class OtherVocabulary(ValueError):
  """Two vocabularies have different pieces."""


def check_begins(
  pieces: Sequence[str],
  longer: Sequence[str],
  name: str,
  longer_name: str,
  remedy: str = "",
) -> None:
  """Raises OtherVocabulary unless `longer` begins with all of `pieces`.

  Args:
    pieces: the pieces of the first vocabulary.
    longer: the pieces of the second one, which may have more at its end.
    name: the owner of the first vocabulary, for the message.
    longer_name: the owner of the second one, for the message.
    remedy: the end of the message.
  """
  end = f"; {remedy}." if remedy else "."
  for number, (old, new) in enumerate(zip(pieces, longer, strict=False)):
    if old != new:
      raise OtherVocabulary(
        f"{name}: its piece {number} is {old!r}, that of {longer_name} is"
        f" {new!r}{end}"
      )
  if len(pieces) > len(longer):
    raise OtherVocabulary(
      f"{name}: its piece {len(longer)} is {pieces[len(longer)]!r}, and"
      f" {longer_name} has only {len(longer):,} pieces{end}"
    )
