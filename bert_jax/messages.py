"""What to say where a name is not known."""

import difflib
from collections.abc import Iterable

_MANY = 12


def nearest(name: str, known: Iterable[str]) -> str:
  """Returns how a sentence about an unknown name ends.

  "; did you mean X?" for a misspelt name, else "; choose A, B, C." of a few,
  else ".".
  """
  known = sorted(known)
  if close := difflib.get_close_matches(name, known, 1):
    return f"; did you mean {close[0]}?"
  if 0 < len(known) <= _MANY:
    return f"; choose {', '.join(known)}."
  return "."
