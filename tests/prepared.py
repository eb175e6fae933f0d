"""Writes small prepared folders for tests from token ids."""

import pathlib

import numpy as np

from bert_jax.corpus import reader, writer
from bert_jax.text.vocabulary import SPECIAL_TOKENS


def write_prepared(path, documents, heldout, vocab_size=64):
  """Writes a prepared folder.

  Args:
    path: the folder to write.
    documents: training documents, which are lists of sentences of token ids.
    heldout: the documents of the split `validation`.
    vocab_size: the number of pieces in the vocabulary.
  """
  partial = str(path) + ".partial"
  pathlib.Path(partial).mkdir(parents=True)
  pieces = list(SPECIAL_TOKENS)
  pieces += [f"w{i}" for i in range(len(pieces), vocab_size)]
  (pathlib.Path(partial) / "vocab.txt").write_text("\n".join(pieces) + "\n")
  dtype = reader.token_dtype(vocab_size)
  split_writer = writer.SplitWriter(partial, dtype, {"files": {}})
  for split, docs in (("train", documents), ("validation", heldout)):
    tokens = [t for d in docs for s in d for t in s]
    encoded = writer.EncodedDocuments(
      np.array(tokens, dtype),
      np.array([len(s) for d in docs for s in d], np.int64),
      np.array([len(d) for d in docs], np.int64),
    )
    split_writer.append(split, encoded)
  split_writer.save({})
  sizes = split_writer.sizes()
  split_writer.close()
  writer.write_derived_files(partial, vocab_size, np.ones(vocab_size, bool))
  options = {"lower_case": True}
  meta = {
    "format_version": reader.FORMAT_VERSION,
    "vocab_size": vocab_size,
    "splits": sizes,
    "lower_case": True,
    "options": options,
    "fingerprint": reader.compute_fingerprint(partial, options),
  }
  writer.finish_folder(partial, str(path), meta)
  return str(path)


def random_documents(count, seed, vocab_size=64, max_sentences=8, max_words=9):
  """Returns random documents, which are lists of sentences.

  A sentence has consecutive ids. The first id follows the last one.
  """
  rng = np.random.default_rng(seed)
  first_id = len(SPECIAL_TOKENS)
  documents = []
  for _ in range(count):
    document = []
    for _ in range(int(rng.integers(2, max_sentences + 1))):
      length = int(rng.integers(3, max_words + 1))
      start = int(rng.integers(vocab_size - first_id))
      ids = (start + np.arange(length)) % (vocab_size - first_id) + first_id
      document.append(ids.tolist())
    documents.append(document)
  return documents
