r"""Your own task: one class, several labels, a number, or tags of words.

Settings: those of BERT for GLUE (Devlin et al. 2019, section 4.1): 32 examples
  a batch, 3 epochs and dropout 0.1. The paper tries the peak learning rates
  5e-5, 4e-5, 3e-5 and 2e-5; here the rate is 2e-5. The warm-up takes 10% of the
  steps. The learning rate decays as if from step 0, so it jumps down at the end
  of the warm-up. The clipping norm is 1.0, and weight decay is 0.01. Adam's
  bias is corrected, because then fewer runs on small sets fail (Mosbach et al.
  2021). Try several seeds with `bert_jax sweep`.
Metric: the task's first metric, which `bert_jax prepare-task` prints.
Command, for a TSV file with the columns "message" and "verdict" (PRETRAINED is
a model's folder):
  bert_jax prepare-task --task spam --columns text=message,label=verdict \
    --input train=train.tsv --input validation=dev.tsv --vocab PRETRAINED \
    --output TASK_FOLDER
  bert_jax train --config configs/own.py --workdir runs/spam \
    --config.init_from=PRETRAINED --config.data.path=TASK_FOLDER
  bert_jax predict --model runs/spam --input new.jsonl \
    --output predicted.jsonl
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import TASK, merge
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """Returns the config that the docstring of this file describes."""
  # `TASK` has the settings of Devlin et al. 2019, section 4.1.
  return merge(TASK)
