"""Rows of a word table for pieces that are new to a trained model.

A model whose training goes on with a longer vocabulary (`prepare --add-tokens`)
needs a row for each new piece. The row is either drawn at random, like the rows
of a new model, or it is a mean: the tokenizer without the new piece cuts its
text into old pieces, and the mean is that of their rows.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.messages import UserError

HOW = ("mean", "drawn")
# A line writes out this many names and counts the others.
_NAMED = 6


def check_how(how: str) -> None:
  """Raises ValueError for a value of `init_new_rows` that is not in `HOW`."""
  if how not in HOW:
    raise UserError(f"init_new_rows={how!r}: not one of {', '.join(HOW)}.")


def new_word_rows(
  table: np.ndarray,
  new_pieces: Sequence[str],
  old_ids_of: Callable[[str], list[int]],
  how: str,
  drawn: np.ndarray,
) -> np.ndarray:
  """Makes the rows of new pieces for a word table or an output bias.

  Args:
    table: [old, ...] the trained rows, without padding rows.
    new_pieces: the pieces at the vocabulary's end that have no row yet.
    old_ids_of: a function from a text to ids of `table`; see
      `data.added_tokens.old_ids`.
    how: one of `HOW`. With "mean", a piece for which `old_ids_of` returns no
      ids keeps its drawn row.
    drawn: [new, ...] randomly drawn rows, as in a new model.

  Returns:
    [new, ...] rows with the dtype of `table`.

  Raises:
    ValueError: `how` is unknown, or `drawn` does not have one row for each
      piece.
  """
  check_how(how)
  if drawn.shape != (len(new_pieces), *table.shape[1:]):
    raise UserError(
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
  """Describes the new rows: their number, their pieces, how they were made."""
  names = ", ".join(repr(piece) for piece in new_pieces[:_NAMED])
  num_hidden = len(new_pieces) - _NAMED
  if num_hidden > 0:
    names += f" and {num_hidden} more"
  origin = "each the mean of its old pieces' rows" if how == "mean" else "drawn"
  return f"new rows of the word table: {len(new_pieces)} ({names}), {origin}"
