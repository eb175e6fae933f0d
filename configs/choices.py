r"""RACE and SWAG: choose the right one of four answers or endings.

race (Lai et al. 2017): questions about a text. BERT's paper has no RACE, so the
  settings are RoBERTa's (Liu et al. 2019, Table 10): 4 epochs, a peak learning
  rate of 1e-5, 16 examples a batch, weight decay 0.1 and rows of 512 tokens.
  The warm-up takes 6% of the steps, and then the rate decays linearly.
swag (Zellers et al. 2018): the ending that continues a text. The settings are
  those of Devlin et al. 2019, section 4.4: 3 epochs, a peak learning rate of
  2e-5, 16 examples a batch, and a softmax over one logit for each of the four
  endings. The warm-up takes 10% of the steps. The learning rate decays as if
  from step 0, so it jumps down at the end of the warm-up. The clipping norm is
  1.0, and weight decay is 0.01 (google-research/bert optimization.py). Adam's
  bias is corrected. The released program does not correct it; for this, add
  --config.optimizer.name=adamw_bert.

  name  set   accuracy in % (source)
  race  test  83.2 with RoBERTa-large (fairseq README)
  swag  dev   81.6 with BERT-base, 86.6 with BERT-large (Devlin et al., Table 4)

Names of other families:
  race,albert            Lan et al. 2020, Table 14; version 2 has a rate of 1e-5
    and no dropout
  race,gpt1, swag,gpt1   Radford et al. 2018, section 4.1;
    openai/finetune-transformer-lm train.py

Command (TRAIN and DEV are the original files, and PRETRAINED is a model's
folder):
  bert_jax prepare-task --task race --input train=TRAIN --input validation=DEV \
    --vocab PRETRAINED --output TASK_FOLDER
  bert_jax train --config configs/choices.py:race --workdir runs/race \
    --config.init_from=PRETRAINED --config.data.path=TASK_FOLDER
"""

# The folder configs/ is installed as `bert_jax.configs`.
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

BATCH_AND_LOG = dict(batch_size=16, log=dict(every=200))
RACE = dict(
  data=dict(epochs=4.0, buckets=(128, 256, 384, 512)),
  schedule=dict(name="linear", peak=1e-5, warmup=0.06),
)
BATCH_32_AND_ADAMW = dict(batch_size=32, optimizer=dict(name="adamw") | ADAM)
ALBERT = dict(schedule=dict(name="bert"), objective=dict(head_dropout=0.1))
SECTIONS_OF_NAME = {
  "race": (FAIRSEQ, RACE),
  "race,albert": (
    RACE,
    BATCH_32_AND_ADAMW,
    steps_and_peak(12_000, 1000, peak=2e-5),
    ALBERT,
  ),
  "race,gpt1": (RACE, BATCH_32_AND_ADAMW, GPT1),
  "swag": (),
  "swag,gpt1": (GPT1,),
}


def get_config(name: str = "swag") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  sections = SECTIONS_OF_NAME[check_name(name, SECTIONS_OF_NAME)]
  # `TASK` has the settings of Devlin et al. 2019, section 4.1.
  return merge(TASK, BATCH_AND_LOG, *sections)
