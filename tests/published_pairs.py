"""Makes pairs as the published program does, in simple loops.

It follows the description of create_pretraining_data.py (google-research/bert),
one token and one draw at a time, with Python's random numbers. Tests compare
the vectorised recipe with these loops. The two share no code.
"""

import random
from typing import NamedTuple


class Row(NamedTuple):
  """Holds the two segments of an example, and how they were made."""

  a: list
  b: list
  is_random: bool  # True if B begins at a random sentence of any document
  removed_front: int  # tokens removed from the fronts of both segments
  removed_back: int  # tokens removed from the ends of both segments
  num_masks: int  # tokens to hide


def truncate(a, b, max_tokens, rng):
  """Removes tokens from the longer list until both lists fit in `max_tokens`.

  Returns:
    How many tokens were removed from the fronts, and how many from the ends.
  """
  num_front = num_back = 0
  while len(a) + len(b) > max_tokens:
    longer = a if len(a) > len(b) else b
    if rng.random() < 0.5:
      del longer[0]
      num_front += 1
    else:
      longer.pop()
      num_back += 1
  return num_front, num_back


def rows_of_document(
  documents,
  document_index,
  length,
  rng,
  short_probability=0.1,
  max_predictions=20,
):
  """Returns the rows of one pass over one of the documents."""
  document = documents[document_index]
  max_tokens = length - 3
  target = max_tokens
  if rng.random() < short_probability:
    target = rng.randint(2, max_tokens)
  rows, chunk, sentence_index = [], [], 0
  while sentence_index < len(document):
    chunk.append(document[sentence_index])
    is_full = sum(map(len, chunk)) >= target
    if not is_full and sentence_index < len(document) - 1:
      sentence_index += 1
      continue
    first_count = 1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
    a = [token for sentence in chunk[:first_count] for token in sentence]
    is_random = len(chunk) == 1 or rng.random() < 0.5
    if is_random:
      other_index = document_index
      for _ in range(10):
        other_index = rng.randint(0, len(documents) - 1)
        if other_index != document_index:
          break
      b, start = [], rng.randint(0, len(documents[other_index]) - 1)
      for sentence in documents[other_index][start:]:
        b.extend(sentence)
        if len(b) >= target - len(a):
          break
      sentence_index -= len(chunk) - first_count
    else:
      b = [token for sentence in chunk[first_count:] for token in sentence]
    num_front, num_back = truncate(a, b, max_tokens, rng)
    num_masks = max(1, round((len(a) + len(b) + 3) * 0.15))
    rows.append(
      Row(a, b, is_random, num_front, num_back, min(max_predictions, num_masks))
    )
    chunk = []
    sentence_index += 1
  return rows


def published_rows(documents, length, count, seed):
  """Passes over all documents until there are at least `count` rows."""
  rng = random.Random(seed)
  rows = []
  while len(rows) < count:
    for document_index in range(len(documents)):
      rows += rows_of_document(documents, document_index, length, rng)
  return rows
