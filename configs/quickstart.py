r"""A small BERT, which `make quickstart` trains on two CPU cores in minutes.

Paper: Devlin et al. 2019 for objective and data. The size is BERT-Tiny, 2
  layers of 128 (Turc et al. 2019). These settings were chosen here for little
  text and time: Adam with bias correction, a high learning rate, larger initial
  values (0.02 is meant for a width of 768), no dropout, float32.
Original hardware: none; measured figures are in the README.
Command: make quickstart, or
  bert_jax train --config configs/quickstart.py --workdir runs/quickstart \
    --config.data.path=PREPARED_FOLDER
"""

from bert_jax.configs.bert import PAIRS
from bert_jax.configs.common import MASKED, PRETRAIN, merge
from bert_jax.configs.small import CPU, LENGTH, MASKS
from ml_collections import ConfigDict

MODEL = dict(
  model=dict(family="bert", variant="tiny"), objective=dict(pairs=True)
)


def get_config() -> ConfigDict:
  """Returns the config that the docstring of this file describes."""
  return merge(PRETRAIN, MASKED, PAIRS, MODEL, LENGTH, MASKS, CPU)
