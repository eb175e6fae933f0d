r"""A small BERT, which `make quickstart` trains on two CPU cores in minutes.

Paper: Devlin et al. 2019 for objective and data. The size is BERT-Tiny, 2
  layers of 128 (Turc et al. 2019). These settings were chosen here for little
  text and time: rows of 32 tokens, because from a few thousand steps of longer
  rows this model learns hardly more than the frequencies of words
  (experiments/quickstart); Adam with bias correction, a high learning rate,
  larger initial values (0.02 is meant for a width of 768), no dropout, float32.
Original hardware: none; measured figures are in the README.
Command: make quickstart, or
  bert_jax train --config configs/quickstart.py --workdir runs/quickstart \
    --config.data.path=PREPARED_FOLDER
"""

from bert_jax.configs.bert import PAIR_ROWS
from bert_jax.configs.common import MASKED, PRETRAIN, merge
from bert_jax.configs.small import CPU
from ml_collections import ConfigDict

SHORT_ROWS = dict(batch_size=64, data=dict(length=32, max_predictions=5))
CHANGES = dict(
  total_steps=4200,
  model=dict(family="bert", variant="tiny", max_positions=128),
  objective=dict(pairs=True),
  log=dict(every=50),
)


def get_config() -> ConfigDict:
  """Returns the config that the docstring of this file describes."""
  return merge(PRETRAIN, MASKED, PAIR_ROWS, CPU, SHORT_ROWS, CHANGES)
