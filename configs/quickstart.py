r"""A small BERT in minutes on two CPU cores: what `make quickstart` trains.

Paper: Devlin et al. 2019 for objective and data; the size is BERT-Tiny, 2
  layers of 128 (Turc et al. 2019). Chosen here, for little text and little
  time: Adam with bias correction, a high rate, wider initial values (0.02 is
  made for a width of 768), no dropout, float32.
Original hardware: none; measured figures are in the README.
Command: make quickstart, or
  bert_jax train --config configs/quickstart.py --workdir runs/quickstart \
    --config.data.path=PREPARED_FOLDER
"""

from bert_jax.configs.bert import PAIRS
from bert_jax.configs.common import MASKED, PRETRAIN, recipe
from bert_jax.configs.small import CPU, LENGTH, MASKS
from ml_collections import ConfigDict

MODEL = dict(
  model=dict(family="bert", variant="tiny"), objective=dict(pairs=True)
)


def get_config() -> ConfigDict:
  return recipe(PRETRAIN, MASKED, PAIRS, MODEL, LENGTH, MASKS, CPU)
