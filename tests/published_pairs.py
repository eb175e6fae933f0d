"""Makes pairs as the published program does, in simple loops.

It implements create_pretraining_data.py (google-research/bert) again: one token
and one random draw at a time, with Python's random numbers. Tests compare the
vectorised recipe with these loops. The two share no code.
"""

import random
from typing import NamedTuple


class Row(NamedTuple):
  """Holds the two segments of an example, and how they were made."""

  a: list
  b: list
  # True if B is the text of a random document. This is another document than
  # A's, unless ten draws in a row gave A's document.
  is_random: bool
  removed_front: int  # how many tokens were removed at the starts of A and B
  removed_back: int  # how many tokens were removed at the ends of A and B
  num_masks: int  # how many tokens are masked


def truncate(a, b, max_tokens, rng):
  """Removes tokens from the longer list until both lists fit in `max_tokens`.

  Returns:
    How many tokens were removed at the starts, and how many at the ends.
  """
  num_removed_front = num_removed_back = 0
  while len(a) + len(b) > max_tokens:
    longer = a if len(a) > len(b) else b
    if rng.random() < 0.5:
      del longer[0]
      num_removed_front += 1
    else:
      longer.pop()
      num_removed_back += 1
  return num_removed_front, num_removed_back


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
  target_num_tokens = max_tokens
  if rng.random() < short_probability:
    target_num_tokens = rng.randint(2, max_tokens)
  rows, chunk, sentence_index = [], [], 0
  while sentence_index < len(document):
    chunk.append(document[sentence_index])
    is_chunk_full = sum(map(len, chunk)) >= target_num_tokens
    if not is_chunk_full and sentence_index < len(document) - 1:
      sentence_index += 1
      continue
    num_sentences_of_a = (
      1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
    )
    a = [token for sentence in chunk[:num_sentences_of_a] for token in sentence]
    is_random = len(chunk) == 1 or rng.random() < 0.5
    if is_random:
      random_index = document_index
      for _ in range(10):
        random_index = rng.randint(0, len(documents) - 1)
        if random_index != document_index:
          break
      b, start_sentence = [], rng.randint(0, len(documents[random_index]) - 1)
      for sentence in documents[random_index][start_sentence:]:
        b.extend(sentence)
        if len(b) >= target_num_tokens - len(a):
          break
      sentence_index -= len(chunk) - num_sentences_of_a
    else:
      b = [
        token for sentence in chunk[num_sentences_of_a:] for token in sentence
      ]
    num_removed_front, num_removed_back = truncate(a, b, max_tokens, rng)
    num_masks = max(1, round((len(a) + len(b) + 3) * 0.15))
    rows.append(
      Row(
        a,
        b,
        is_random,
        num_removed_front,
        num_removed_back,
        min(max_predictions, num_masks),
      )
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
