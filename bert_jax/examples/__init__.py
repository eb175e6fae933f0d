"""A prepared folder to rows and batches, by pure numpy functions.

A recipe cuts documents into examples and turns any of them into a batch.
Everything that is drawn depends on a key and on the number of an example, so a
row is the same whatever was read before it. This room imports numpy, the root's
files, `text` and `corpus`; no file of it imports jax.

Start with `recipes.py`: it names every recipe and its options. A batch comes
about in this order:

  loader.py: a path to this host's batches, made ahead in a thread
  streams.py: examples in order: endless, mixed, held out
  portions.py: the portions of an epoch that are shuffled as a whole
  plain_text.py: text that is tokenised on the way, without a folder
  stateful_streams.py: ELMo's streams of text that go on from batch to batch
  recipes.py: the recipes by name, and the options of their rows
  pairs.py: pairs for next-sentence and sentence-order prediction
  sentences.py: whole sentences, ELECTRA's segments, plain tokens
  elmo_windows.py: windows of words, with the words around each
  assembly.py: examples to a batch: which share a row, masks, labels
  rows.py: sequences laid out in rows, with special tokens
  masking.py: masked-LM predictions, as published
  masked_units.py: which tokens to hide: single ones, words, n-grams, spans
  batch_keys.py: the one table of batch keys, their shapes and dtypes
  coverage.py: which share of a text the rows of an epoch hold
"""
