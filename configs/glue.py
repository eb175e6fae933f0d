r"""GLUE. `mrpc` has BERT's settings for this task, `mrpc,roberta` RoBERTa's.

Settings: Devlin et al. 2019, section 4.1: 32 examples a batch, 3 epochs and
  dropout 0.1. The paper tries the peak learning rates 5e-5, 4e-5, 3e-5 and 2e-5
  and takes the best on the development set; here the rate is 2e-5. The
  optimizer is Adam. The warm-up takes 10% of the steps. The learning rate
  decays as if from step 0, so it jumps down at the end of the warm-up. The
  clipping norm is 1.0, and weight decay is 0.01 (google-research/bert
  run_classifier.py, optimization.py). One thing differs: Adam's bias is
  corrected, because then fewer runs on small sets fail (Mosbach et al. 2021).
  The released program does not correct it; for this, add
  --config.optimizer.name=adamw_bert.

  name  question (paper)                                         metric
  cola  is a sentence acceptable English (Warstadt et al. 2018)  Matthews corr.
  mnli  does a sentence follow from another (Williams et al. 2018)
                                        accuracy, matched and mismatched
  mrpc  do two sentences say the same (Dolan and Brockett 2005)  F1
  qnli  does a sentence answer a question (Wang et al. 2018)     accuracy
  qqp   do two questions ask the same (Iyer et al. 2017)         F1
  rte   does a sentence follow from a text (Bentivogli et al. 2009)  accuracy
  sst2  is a review good or bad (Socher et al. 2013)             accuracy
  stsb  how alike are two sentences, 0 to 5 (Cer et al. 2017)
              mean of Pearson and Spearman correlation; BERT's score is Spearman
  wnli  does a pronoun mean this noun (Levesque et al. 2012)     accuracy

  Scores of BERT on the test sets, with these metrics times 100 (Devlin et al.
  2019, Table 1; section 4.1 leaves out WNLI):
            cola       mnli  mrpc  qnli   qqp   rte  sst2  stsb
  base      52.1  84.6/83.4  88.9  90.5  71.2  66.4  93.5  85.8
  large     60.5  86.7/85.9  89.3  92.7  72.1  70.1  94.9  86.5

Rows are cut to 128 tokens. In mnli, qnli, qqp and sst2, a batch has rows of
similar length, which is faster. In the other tasks, a batch has random rows.
For rows of similar length in the other tasks too, add
--config.data.group=True.

The settings of other families are in the tables below this text, with these
sources:
  roberta  fairseq config/finetuning/TASK.yaml; TASK is sts_b for stsb and sst_2
    for sst2, and wnli has no file
  albert   Lan et al. 2020, Table 14
  electra  google-research/electra configure_finetuning.py: the settings are
    for small and base. large has a peak rate of 5e-5 and layer_decay 0.9.
    For the settings that the paper describes, add
    --config.optimizer.layer_rule=written --config.optimizer.weight_decay=0.0
  gpt1     Radford et al. 2018, section 4.1; openai/finetune-transformer-lm
    train.py

Command (TRAIN and DEV are the original files, and PRETRAINED is a model's
folder; mnli has two development files:
--input validation_matched=DEV --input validation_mismatched=DEV2):
  bert_jax prepare-task --task mrpc --input train=TRAIN --input validation=DEV \
    --vocab PRETRAINED --output TASK_FOLDER
  bert_jax train --config configs/glue.py:mrpc --workdir runs/mrpc \
    --config.init_from=PRETRAINED --config.data.path=TASK_FOLDER
"""

from typing import Any

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import (
  ELECTRA,
  FAIRSEQ,
  GPT1,
  TASK,
  check_name,
  merge,
  steps_and_peak,
)
from ml_collections import ConfigDict

# Task -> (steps between two log lines, True if the rows of a batch have similar
# lengths).
TASKS = {
  "cola": (50, False),
  "mnli": (500, True),
  "mrpc": (20, False),
  "qnli": (500, True),
  "qqp": (500, True),
  "rte": (20, False),
  "sst2": (200, True),
  "stsb": (50, False),
  "wnli": (20, False),
}
# Task -> (steps, steps of warm-up, batch size, peak learning rate).
ROBERTA = {
  "cola": (5336, 320, 16, 1e-5),
  "mnli": (123_873, 7432, 32, 1e-5),
  "mrpc": (2296, 137, 16, 1e-5),
  "qnli": (33_112, 1986, 32, 1e-5),
  "qqp": (113_272, 28_318, 32, 1e-5),
  "rte": (2036, 122, 16, 2e-5),
  "sst2": (20_935, 1256, 32, 1e-5),
  "stsb": (3598, 214, 16, 2e-5),
}
# Task -> (steps, steps of warm-up, batch size, peak rate, head dropout).
ALBERT = {
  "cola": (5336, 320, 16, 1e-5, 0.0),
  "mnli": (10_000, 1000, 128, 3e-5, 0.0),
  "mrpc": (800, 200, 32, 2e-5, 0.0),
  "qnli": (33_112, 1986, 32, 1e-5, 0.0),
  "qqp": (14_000, 1000, 128, 5e-5, 0.1),
  "rte": (800, 200, 32, 3e-5, 0.1),
  "sst2": (20_935, 1256, 32, 1e-5, 0.0),
  "stsb": (3598, 214, 16, 2e-5, 0.0),
  "wnli": (2000, 250, 16, 2e-5, 0.1),
}


def _roberta_settings(task: str) -> list[dict[str, Any]]:
  total, warmup, batch_size, peak = ROBERTA[check_name(task, ROBERTA)]
  steps_and_rate = steps_and_peak(total, warmup, peak)
  changes = dict(batch_size=batch_size, schedule=dict(name="linear"))
  return [FAIRSEQ, steps_and_rate, changes]


def _albert_settings(task: str) -> list[dict[str, Any]]:
  total, warmup, batch_size, peak, head_dropout = ALBERT[task]
  changes = dict(
    batch_size=batch_size, objective=dict(head_dropout=head_dropout)
  )
  return [steps_and_peak(total, warmup, peak), changes]


def _electra_settings(task: str) -> list[dict[str, Any]]:
  epochs = 10.0 if task in ("rte", "stsb") else 3.0
  return [ELECTRA, dict(data=dict(epochs=epochs))]


SETTINGS_OF_FAMILIES = {
  "roberta": _roberta_settings,
  "albert": _albert_settings,
  "electra": _electra_settings,
  "gpt1": lambda task: [GPT1],
}


def get_config(name: str = "mrpc") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  task, _, family = name.partition(",")
  log_steps, groups_by_length = TASKS[check_name(task, TASKS)]
  changes: dict[str, Any] = dict(
    data=dict(group=groups_by_length), log=dict(every=log_steps)
  )
  if task == "mnli":
    changes["data"]["validation"] = "validation_matched,validation_mismatched"
  # `TASK` has the settings of Devlin et al. 2019, section 4.1.
  if not family:
    return merge(TASK, changes)
  make_settings = SETTINGS_OF_FAMILIES[check_name(family, SETTINGS_OF_FAMILIES)]
  return merge(TASK, changes, *make_settings(task))
