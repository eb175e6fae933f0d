"""The recipes: one file a family or kind of task, one name a size.

  --config configs/bert.py:base   a file, and a name of its table
  --config bert:base              the same of the installed package, anywhere

Each file's docstring has the table of its names with paper, hardware, cost and
scores. `get_config(name)` returns an `ml_collections.ConfigDict` that is
complete: every value can be changed by a flag, --config.key=value. A file of
your own imports what it shares from here:

  from bert_jax.configs.common import recipe
"""
