"""Makes documents in which every token has a different id."""

import numpy as np

from bert_jax.text.vocabulary import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)

FIRST_ID = 5


def numbered_documents(sizes):
  """Returns documents with sentences of these sizes, and the next free id."""
  documents, token = [], FIRST_ID
  for document in sizes:
    documents.append([])
    for size in document:
      documents[-1].append(list(range(token, token + size)))
      token += size
  return documents, token


def realistic_sizes(count, seed):
  """Returns sizes like Wikipedia's: many short documents, a few long ones."""
  rng = np.random.default_rng(seed)
  lengths = np.ceil(rng.lognormal(2.3, 1.0, count)).astype(int)
  return [
    np.ceil(rng.lognormal(3.1, 0.65, n)).astype(int).tolist() for n in lengths
  ]


def document_of(corpus, tokens):
  """Returns for each token the number of its document.

  The corpus is made of the documents of `numbered_documents`.
  """
  starts = corpus.sentences[corpus.documents]
  return np.searchsorted(starts, np.asarray(tokens) - FIRST_ID, "right") - 1
