r"""RACE and SWAG: choose the right one of four answers or endings.

race (Lai et al. 2017): questions about a text. The settings are RoBERTa's (Liu
  et al. 2019, Table 10), because BERT's paper has no RACE: 4 epochs, 1e-5, 16
  examples a batch, weight decay 0.1, rows of 512 tokens, warm-up over 6%, then
  linear decay.
swag (Zellers et al. 2018): the ending that continues a text. The settings are
  those of Devlin et al. 2019, section 4.4: 3 epochs, 2e-5, 16 examples a batch,
  a logit for each ending and a softmax over the four. Warm-up over 10%, decay
  from step 0, clip 1.0, weight decay 0.01 (google-research/bert
  optimization.py). Adam's bias is corrected (not corrected, as released:
  --config.optimizer.name=adamw_bert).

  accuracy
  race  test  83.2 (RoBERTa large; fairseq README)
  swag  dev   81.6 (base), 86.6 (large), Table 4

Other families: `race,albert` (Lan et al. 2020, Table 14; v2: 1e-5, no dropout),
  `race,gpt1` and `swag,gpt1` (Radford et al. 2018, section 4.1;
  openai/finetune-transformer-lm train.py).

Command (TRAIN and DEV: the original files):
  bert_jax prepare-task --task race --input train=TRAIN --input validation=DEV \
    --vocab PRETRAINED --output TASK_FOLDER
  bert_jax train --config configs/choices.py:race --workdir runs/race \
    --config.init_from=PRETRAINED --config.data.path=TASK_FOLDER
"""

from bert_jax.configs.common import (
  ADAM,
  FAIRSEQ,
  GPT1,
  TASK,
  check_name,
  merge,
  steps_and_peak,
)
from ml_collections import ConfigDict

BATCH = dict(batch_size=16, log=dict(every=200))
RACE = dict(
  data=dict(epochs=4.0, buckets=(128, 256, 384, 512)),
  schedule=dict(name="linear", peak=1e-5, warmup=0.06),
)
ADAMW = dict(batch_size=32, optimizer=dict(name="adamw") | ADAM)
ALBERT = dict(schedule=dict(name="bert"), objective=dict(head_dropout=0.1))
NAMES = {
  "race": (FAIRSEQ, RACE),
  "race,albert": (RACE, ADAMW, steps_and_peak(12_000, 1000, peak=2e-5), ALBERT),
  "race,gpt1": (RACE, ADAMW, GPT1),
  "swag": (),
  "swag,gpt1": (GPT1,),
}


def get_config(name: str = "swag") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  return merge(TASK, BATCH, *NAMES[check_name(name, NAMES)])
