r"""A small BERT, which `make quickstart` trains on two CPU cores in minutes.

Paper: Devlin et al. 2019 for the objective and the data. The size is BERT-Tiny,
  2 layers with a width of 128 (Turc et al. 2019).
Settings: these were chosen here for little text and time. A row has 32 tokens,
  because in a few thousand steps on longer rows this model learns hardly more
  than the frequencies of words (experiments/quickstart). The optimizer is Adam
  with bias correction, and the learning rate is high. The initial parameters
  have a larger standard deviation than BERT's 0.02, which is meant for a width
  of 768. There is no dropout. The model computes in float32.
Original hardware: these settings were not published, so there is none. The
  README has measured figures.
Command: make quickstart, or
  bert_jax train --config configs/quickstart.py --workdir runs/quickstart \
    --config.data.path=PREPARED_FOLDER
The config quickstart:sentences has no pairs of sentences. Its rows are
  RoBERTa's full sentences (Liu et al. 2019). `bert_jax.pretrain` takes this
  config for a model that has no head for pairs.
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.bert import PAIR_ROWS
from bert_jax.configs.common import MASKED, PRETRAIN, check_name, merge
from bert_jax.configs.small import CPU
from ml_collections import ConfigDict

SHORT_ROWS = dict(batch_size=64, data=dict(length=32, max_predictions=5))
CHANGES = dict(
  total_steps=4200,
  model=dict(family="bert", variant="tiny", max_positions=128),
  log=dict(every=50),
)
# Name -> what the rows hold.
ROWS = {
  "pairs": PAIR_ROWS | dict(objective=dict(pairs=True)),
  "sentences": dict(
    data=dict(builder="full_sentences", replacement="bert", count="stochastic"),
    objective=dict(pairs=False),
  ),
}


def get_config(name: str = "pairs") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  rows = ROWS[check_name(name, tuple(ROWS))]
  return merge(PRETRAIN, MASKED, rows, CPU, SHORT_ROWS, CHANGES)
