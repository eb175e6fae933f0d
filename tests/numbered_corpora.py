"""Makes documents in which every token has a different id."""

import numpy as np

from bert_jax.text.vocabulary import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)

FIRST_ID = 5


def numbered_documents(sizes):
  """Returns documents with sentences of these sizes, and the next free id."""
  documents, next_id = [], FIRST_ID
  for sentence_sizes in sizes:
    documents.append([])
    for sentence_size in sentence_sizes:
      documents[-1].append(list(range(next_id, next_id + sentence_size)))
      next_id += sentence_size
  return documents, next_id


def realistic_sizes(count, seed):
  """Returns sizes like Wikipedia's: many short documents, a few long ones."""
  rng = np.random.default_rng(seed)
  sentence_counts = np.ceil(rng.lognormal(2.3, 1.0, count)).astype(int)
  return [
    np.ceil(rng.lognormal(3.1, 0.65, num_sentences)).astype(int).tolist()
    for num_sentences in sentence_counts
  ]


def document_of(corpus, tokens):
  """Returns for each token the index of its document.

  The corpus is made of the documents of `numbered_documents`.
  """
  starts = corpus.sentences[corpus.documents]
  return np.searchsorted(starts, np.asarray(tokens) - FIRST_ID, "right") - 1
