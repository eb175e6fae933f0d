"""What the trainers of vocabularies share: text in pieces, words by count."""

from collections.abc import Iterator, Sequence

# Hugging Face's trainers have the same; rarer pairs are not merged.
MIN_FREQUENCY = 2
_BATCH_CHARS = 2**18


def cut(text: str) -> Iterator[str]:
  """Cuts long text, of which the normaliser would keep every offset."""
  if len(text) <= _BATCH_CHARS:
    yield text
  else:
    yield from text.split("\n")


def repeat(words: Sequence[str], counts: dict[str, int]) -> Iterator[str]:
  """Yields text in which each word occurs as often as it was counted.

  The trainer takes text only, no counts.
  """
  batch: list[str] = []
  size = 0
  for word in words:
    left = counts[word]
    while left:
      n = min(left, max(1, _BATCH_CHARS // (len(word) + 1)))
      batch.append((word + " ") * n)
      size += n * (len(word) + 1)
      left -= n
      if size >= _BATCH_CHARS:
        yield "".join(batch)
        batch, size = [], 0
  if batch:
    yield "".join(batch)
