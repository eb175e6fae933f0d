r"""A task of one's own: classes, labels, a number, pairs, tags of words.

Recipe: BERT's for GLUE (Devlin et al. 2019, section 4.1): 32 examples a batch,
  3 epochs, 5e-5, 4e-5, 3e-5 or 2e-5 (here 2e-5), dropout 0.1, warm-up over 10%,
  decay from step 0, clip 1.0, weight decay 0.01; Adam's bias is corrected,
  which removes failed runs on small sets (Mosbach et al. 2021). Try several
  seeds: bert_jax sweep.
Metric: the first of the task's; see prepare-task.
Command, for a TSV file with the columns message and verdict:
  bert_jax prepare-task --task spam --columns text=message,label=verdict \
    --input train=train.tsv --input validation=dev.tsv --vocab PRETRAINED \
    --output TASK_FOLDER
  bert_jax train --config configs/own.py --workdir runs/spam \
    --config.init_from=PRETRAINED --config.data.path=TASK_FOLDER
  bert_jax predict --model runs/spam --input new.jsonl \
    --output predicted.jsonl
"""

from bert_jax.configs.common import TASK, recipe
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  return recipe(TASK)
