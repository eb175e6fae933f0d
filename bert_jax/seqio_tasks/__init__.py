"""The same examples and tasks for seqio; optional.

It needs the packages seqio and tensorflow. It imports `text`, `corpus`,
`examples` and `tasks`, and nothing in the package imports it: a user's module
that registers tasks does, and then `examples.loader` opens them by name.

Start with `pretraining.py`.

  pretraining.py: prepared folders and plain text as seqio tasks
  downstream.py: downstream tasks as seqio tasks
  text_vocabulary.py: tokenizers as a `seqio.Vocabulary`
"""
