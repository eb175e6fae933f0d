"""Makes a prepared folder from text: sources, sentences, filters, token ids.

This room imports text/, and the single files `files.py`, `messages.py` and
`hashing.py` of bert_jax. It needs the packages etils and numpy. Some functions
also import tensorflow_datasets, pyarrow, datasketch or sentencex.

Start with `prepare.prepare`, which goes from inputs to a finished folder, and
`reader.py`, whose docstring describes the folder's format.

* `sources.py`: inputs (files, TFDS, docstrings) to documents of sentences.
* `lines.py`: lines of text files, compressed or not, with bounded memory.
* `parquet.py`: texts of Parquet files.
* `docstrings.py`: prose in the docstrings of installed packages.
* `filters.py`: drops bad documents, such as short ones and copies.
* `tokenize.py`: documents to token ids, in several processes.
* `writer.py`: writes a prepared folder, safe against any interruption.
* `reader.py`: the folder's format; opens and checks it; `Corpus`.
* `prepare.py`: runs the modules above, for `bert_jax prepare`.
* `sizes.py`: lengths of sentences and documents, with warnings.
* `train_vocab.py`: trains a vocabulary on inputs, for `bert_jax vocab`.
* `split_text.py`: writes any text with a sentence on each line.
"""
