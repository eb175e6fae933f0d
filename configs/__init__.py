"""The published configs: a file for each family and for each kind of task.

  --config configs/bert.py:base   a file, and a name from the file's table
  --config bert:base              the same config of the installed package

The docstring of a file has a table of its names with paper, hardware, cost and
scores. `get_config(name)` returns a complete `ml_collections.ConfigDict`. A
flag --config.KEY=VALUE changes the value of any key. This folder is installed
as `bert_jax.configs`, so your own config file can import parts of these
configs:

  from bert_jax.configs.common import PRETRAIN, merge
"""
