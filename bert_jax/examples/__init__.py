"""Makes rows and batches from a prepared folder, with pure numpy functions.

A recipe cuts documents into examples, and turns any set of examples into a
batch. Every random draw depends only on a key, the number of an example and a
place in the example. Therefore a row does not depend on the rows that were read
before. This room imports numpy, the root's files, `text` and `corpus`. No file
of this room imports jax.

Start with `recipes.py`: it names every recipe and its options. These files
follow the way from a path to a batch:

  loader.py: opens a path, and makes this host's batches in a thread
  streams.py: endless streams, mixtures, held-out sets, ELMo's stateful streams
  portions.py: reads an epoch in portions, each of which is shuffled as a whole
  plain_text.py: text that is tokenised during training, without a folder
  recipes.py: the recipes by name, and the options of their rows
  pairs.py: makes pairs for next-sentence and sentence-order prediction
  sentences.py: makes rows of whole sentences, ELECTRA's segments, plain tokens
  elmo_windows.py: makes ELMo's windows of words, with the words to predict
  assembly.py: turns examples into a batch: packing, masks, labels
  rows.py: lays sequences out in rows, with special tokens
  masking.py: masked-LM predictions, as published
  masked_units.py: chooses the tokens to hide: tokens, words, n-grams, spans
  batch_keys.py: the table of all batch keys, their shapes and dtypes
  coverage.py: measures the share of the text that the rows of an epoch hold
"""
