r"""CoNLL-2003 and WNUT17: named entities, a tag for each word.

conll2003 (Tjong Kim Sang 2003): people, places and organisations. The settings
  are those of Devlin et al. 2019, section 5.3 and appendix A.3. The first piece
  of each word is labelled, there is no CRF, and the vocabulary is cased. A row
  has 512 tokens: a sentence, and as much of the document around it as there is
  space for. The appendix gives ranges; this config has 32 sentences a batch, a
  peak learning rate of 5e-5 and 3 epochs. The warm-up takes 10% of the steps.
  The learning rate decays as if from step 0, so it jumps down at the end of the
  warm-up. The clipping norm is 1.0, and weight decay is 0.01. Adam's bias is
  corrected.
wnut17 (Derczynski et al. 2017): rare and new names in posts. The settings are
  those of conll2003, with two differences: a row has one sentence of up to 128
  tokens, without the document around it, and the vocabulary may be uncased.
  The paper of BERT does not have this task.

  BERT's F1 of entities, in % (Devlin et al. 2019), by the rules of conlleval:
  name       set   base  large
  conll2003  dev   96.4   96.6  (Table 7)
  conll2003  test  92.4   92.8  (Table 7)
  wnut17     not published with these settings

Command (TRAIN and DEV are the original files, and PRETRAINED is a model's
folder; for wnut17, write wnut17 for conll2003, and leave out --no-lower-case if
the vocabulary is uncased):
  bert_jax prepare-task --task conll2003 --input train=TRAIN \
    --input validation=DEV --vocab PRETRAINED --no-lower-case \
    --output TASK_FOLDER
  bert_jax train --config configs/ner.py:conll2003 --workdir runs/conll2003 \
    --config.init_from=PRETRAINED --config.data.path=TASK_FOLDER
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import TASK, check_name, merge
from ml_collections import ConfigDict

PEAK_RATE = dict(schedule=dict(peak=5e-5))
SETTINGS_BY_TASK = {
  "conll2003": dict(
    data=dict(buckets=(128, 256, 384, 512)), log=dict(every=50)
  ),
  "wnut17": {},
}


def get_config(name: str = "conll2003") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  # `TASK` has the settings of Devlin et al. 2019, section 4.1.
  return merge(
    TASK, PEAK_RATE, SETTINGS_BY_TASK[check_name(name, SETTINGS_BY_TASK)]
  )
