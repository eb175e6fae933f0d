r"""SQuAD 1.1 and 2.0: find the words of a text that answer a question.

squad (Rajpurkar et al. 2016): the settings of Devlin et al. 2019, section 4.2:
  3 epochs, a peak learning rate of 5e-5 and 32 windows a batch. The example in
  the released code has 2 epochs, 3e-5 and 12 (base) or 24 (large) windows a
  batch. For base, add:
  --config.data.epochs=2.0 --config.schedule.peak=3e-5 --config.batch_size=12.
squad2 (Rajpurkar et al. 2018), which also has questions without an answer: the
  settings of section 4.3: 2 epochs, a peak learning rate of 5e-5 and 48 windows
  a batch. The span at [CLS] stands for no answer.
Both have rows of 384 tokens, a window every 128 tokens, questions of up to 64
  tokens and answers of up to 30 tokens (google-research/bert run_squad.py). The
  warm-up takes 10% of the steps. The learning rate decays as if from step 0, so
  it jumps down at the end of the warm-up. The clipping norm is 1.0, and weight
  decay is 0.01. Adam's bias is corrected. The released program does not correct
  it; for this, add --config.optimizer.name=adamw_bert.

  EM / F1 of BERT on the development set, in % (Devlin et al. 2019):
  name               base         large       source
  squad           80.8/88.5    84.1/90.9      Table 2
  squad2                       78.7/81.9      Table 3
  squad2 is also evaluated at the best threshold for "no answer".

Names of other families, for example `squad,roberta`:
  roberta  Liu et al. 2019, Table 10
  albert   Lan et al. 2020, Table 14; the head's dropout is 0
  electra  google-research/electra configure_finetuning.py: the settings of
    small and base, with rows of 512 tokens. The head is ELECTRA's. In
    squad2, this head has a classifier for unanswerable questions.

Command (TRAIN and DEV are the original files, and PRETRAINED is a model's
folder):
  bert_jax prepare-task --task squad --input train=TRAIN \
    --input validation=DEV --vocab PRETRAINED --output TASK_FOLDER
  bert_jax train --config configs/squad.py:squad --workdir runs/squad \
    --config.init_from=PRETRAINED --config.data.path=TASK_FOLDER
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import (
  ELECTRA,
  TASK,
  check_name,
  merge,
  steps_and_peak,
)
from ml_collections import ConfigDict

SETTINGS_OF_BOTH = dict(
  data=dict(buckets=(128, 192, 256, 320, 384)),
  schedule=dict(peak=5e-5),
  log=dict(every=100),
)
SETTINGS_BY_VERSION = {
  "squad": {},
  "squad2": dict(batch_size=48, data=dict(epochs=2.0)),
}
_ROBERTA = dict(
  batch_size=48,
  data=dict(epochs=2.0),
  schedule=dict(name="linear", peak=1.5e-5, warmup=0.06),
  optimizer=dict(b2=0.98),
)
_ELECTRA = ELECTRA | dict(
  batch_size=32, data=dict(epochs=2.0), objective=dict(span_head="joint")
)
_ALBERT = dict(batch_size=48, objective=dict(head_dropout=0.0))
SETTINGS_OF_FAMILIES = {
  "squad,roberta": _ROBERTA,
  "squad2,roberta": _ROBERTA,
  "squad,albert": _ALBERT | steps_and_peak(3649, 365, peak=5e-5),
  "squad2,albert": _ALBERT | steps_and_peak(8144, 814, peak=3e-5),
  "squad,electra": _ELECTRA,
  "squad2,electra": _ELECTRA,
}


def get_config(name: str = "squad") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  check_name(name, [*SETTINGS_BY_VERSION, *SETTINGS_OF_FAMILIES])
  version = SETTINGS_BY_VERSION[name.partition(",")[0]]
  # `TASK` has the settings of Devlin et al. 2019, section 4.1.
  return merge(
    TASK, SETTINGS_OF_BOTH, version, SETTINGS_OF_FAMILIES.get(name, {})
  )
