"""A vocabulary file: a piece a line, in the order of their ids."""


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
