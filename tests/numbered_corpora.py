"""Documents in which every token has an id of its own."""

import numpy as np

from bert_jax.text.vocabulary import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)

FIRST_ID = 5


def numbered(sizes):
  """Documents of sentences of the given sizes; every token has its own id."""
  documents, token = [], FIRST_ID
  for document in sizes:
    documents.append([])
    for size in document:
      documents[-1].append(list(range(token, token + size)))
      token += size
  return documents, token


def realistic(count, seed):
  """Sizes like those of Wikipedia: many short documents, a few long ones."""
  rng = np.random.default_rng(seed)
  lengths = np.ceil(rng.lognormal(2.3, 1.0, count)).astype(int)
  return [
    np.ceil(rng.lognormal(3.1, 0.65, n)).astype(int).tolist() for n in lengths
  ]


def document_of(corpus, tokens):
  """Returns the document in which each token of a `numbered` corpus lies."""
  starts = corpus.sentences[corpus.documents]
  return np.searchsorted(starts, np.asarray(tokens) - FIRST_ID, "right") - 1
