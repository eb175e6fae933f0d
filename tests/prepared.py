"""Writes small prepared folders for tests from token ids."""

import pathlib

import numpy as np

from bert_jax.corpus import reader, writer
from bert_jax.text.vocabulary import SPECIAL_TOKENS


def write_prepared(path, documents, heldout, vocab_size=64):
  """Writes a prepared folder; returns its path.

  Args:
    path: the folder to write.
    documents: training documents, which are lists of sentences of token ids.
    heldout: the documents of the split `validation`.
    vocab_size: the number of pieces in the vocabulary.
  """
  partial_folder = str(path) + ".partial"
  pathlib.Path(partial_folder).mkdir(parents=True)
  pieces = list(SPECIAL_TOKENS)
  pieces += [f"w{i}" for i in range(len(pieces), vocab_size)]
  (pathlib.Path(partial_folder) / "vocab.txt").write_text(
    "\n".join(pieces) + "\n"
  )
  dtype = reader.token_dtype(vocab_size)
  split_writer = writer.SplitWriter(partial_folder, dtype, {"files": {}})
  for split, split_documents in (("train", documents), ("validation", heldout)):
    tokens = [
      token
      for document in split_documents
      for sentence in document
      for token in sentence
    ]
    encoded_documents = writer.EncodedDocuments(
      np.array(tokens, dtype),
      np.array(
        [
          len(sentence) for document in split_documents for sentence in document
        ],
        np.int64,
      ),
      np.array([len(document) for document in split_documents], np.int64),
    )
    split_writer.append(split, encoded_documents)
  split_writer.save({})
  sizes = split_writer.sizes()
  split_writer.close()
  writer.write_derived_files(
    partial_folder, vocab_size, np.ones(vocab_size, bool)
  )
  options = {"lower_case": True}
  meta = {
    "format_version": reader.FORMAT_VERSION,
    "vocab_size": vocab_size,
    "splits": sizes,
    "lower_case": True,
    "options": options,
    "fingerprint": reader.compute_fingerprint(partial_folder, options),
  }
  writer.finish_folder(partial_folder, str(path), meta)
  return str(path)


def random_documents(count, seed, vocab_size=64, max_sentences=8, max_words=9):
  """Returns random documents, which are lists of sentences.

  The ids of a sentence count up. After the last id of the vocabulary comes the
  first id that is not special.
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
