"""Tokens that are added to a vocabulary at its end."""

from collections.abc import Callable

from bert_jax.data.tokenizer import Vocabulary


def old_ids(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
  """Returns the function from a new piece to the old pieces of its text.

  Args:
    vocabulary: the tokenizer before it had the new pieces.

  Returns:
    Text -> ids, without the id of the unknown piece; [] where nothing is left.
  """
  # In running text a word has a space before it, which byte-level pieces hold.
  space = " " if vocabulary.kind == "bytelevel" else ""

  def ids(piece: str) -> list[int]:
    encoded = vocabulary.encode_batch([space + piece.strip()])[0]
    return [i for i in encoded if i != vocabulary.special.unk]

  return ids
