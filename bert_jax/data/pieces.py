"""A vocabulary file: a piece a line, in the order of their ids."""

from collections.abc import Sequence


def parse(content: bytes, source: str) -> list[str]:
  """Reads a vocabulary file, a piece a line.

  Args:
    content: of the file.
    source: its name, for messages.

  Raises:
    ValueError: not UTF-8, empty, or a piece occurs twice (line numbers named).
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
  """Raises OtherVocabulary unless one vocabulary begins with another.

  Args:
    pieces: of the vocabulary that stands at the beginning.
    longer: of the one that may have more pieces at its end.
    name: what `pieces` are the vocabulary of, for the message.
    longer_name: the same of `longer`.
    remedy: the end of the sentence.
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
