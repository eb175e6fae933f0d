"""Rows of a word table for pieces that its model has not been trained with.

A model that goes on with a longer vocabulary (`prepare --add_tokens`) needs a
row for each piece at its end: drawn as the first rows were, or the mean of the
rows of the pieces that the model's own tokenizer cuts the new one into.
"""

from collections.abc import Callable, Sequence

import numpy as np

HOW = ("mean", "drawn")
# Names that a line writes out; the others are counted.
_NAMED = 6


def check_how(how: str) -> None:
  """Raises ValueError for a value of `init_new_rows` that is not in `HOW`."""
  if how not in HOW:
    raise ValueError(f"init_new_rows={how!r}: not one of {', '.join(HOW)}.")


def new_word_rows(
  table: np.ndarray,
  new_pieces: Sequence[str],
  old_ids_of: Callable[[str], list[int]],
  how: str,
  drawn: np.ndarray,
) -> np.ndarray:
  """Makes the rows of new pieces, of a word table or of an output bias.

  Args:
    table: [old, ...] the trained rows, without rows of padding.
    new_pieces: the pieces at the vocabulary's end that have no row yet.
    old_ids_of: text -> ids of `table`; see `data.added_tokens.old_ids`.
    how: one of `HOW`. A piece that `old_ids_of` knows no ids for is drawn.
    drawn: [new, ...] rows as a new model begins with.

  Returns:
    [new, ...] rows of the dtype of `table`.

  Raises:
    ValueError: `how` is unknown, or there is not one drawn row for each piece.
  """
  check_how(how)
  if drawn.shape != (len(new_pieces), *table.shape[1:]):
    raise ValueError(
      f"drawn rows of shape {list(drawn.shape)} for {len(new_pieces)} pieces"
      f" beside a table of shape {list(table.shape)}."
    )
  rows = np.array(drawn, table.dtype)
  if how == "mean":
    for row, piece in enumerate(new_pieces):
      ids = [i for i in old_ids_of(piece) if i < len(table)]
      if ids:
        rows[row] = table[ids].mean(0)
  return rows


def line(new_pieces: Sequence[str], how: str) -> str:
  """Says how many rows are new, of which pieces, and how they were made."""
  names = ", ".join(repr(piece) for piece in new_pieces[:_NAMED])
  more = len(new_pieces) - _NAMED
  if more > 0:
    names += f" and {more} more"
  made = "each the mean of its old pieces' rows" if how == "mean" else "drawn"
  return f"new rows of the word table: {len(new_pieces)} ({names}), {made}"
