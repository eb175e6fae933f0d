r"""CoNLL-2003 and WNUT17: named entities, a tag for each word.

conll2003 (Tjong Kim Sang 2003): people, places and organisations. The settings
  are those of Devlin et al. 2019, section 5.3 and appendix A.3: the first piece
  of each word is labelled, no CRF, a cased vocabulary. A row has 512 tokens: a
  sentence, and as much of the document around it as there is space for. The
  appendix gives ranges; here are 32 sentences a batch, 5e-5 and 3 epochs.
  Warm-up over 10%, decay from step 0, clip 1.0, weight decay 0.01. Adam's bias
  is corrected.
wnut17 (Derczynski et al. 2017): rare and new names in posts. The same settings
  without documents, and rows of 128 tokens. The paper does not have it.

  F1 of entities, by the rules of conlleval
  conll2003  dev/test  96.4/92.4 (base), 96.6/92.8 (large), Table 7
  wnut17     not published with these settings

Command (TRAIN and DEV: the original files; wnut17 without --no-lower-case):
  bert_jax prepare-task --task conll2003 --input train=TRAIN \
    --input validation=DEV --vocab PRETRAINED --no-lower-case \
    --output TASK_FOLDER
  bert_jax train --config configs/ner.py:conll2003 --workdir runs/conll2003 \
    --config.init_from=PRETRAINED --config.data.path=TASK_FOLDER
"""

from bert_jax.configs.common import TASK, check_name, merge
from ml_collections import ConfigDict

RATE = dict(schedule=dict(peak=5e-5))
NAMES = {
  "conll2003": dict(
    data=dict(buckets=(128, 256, 384, 512)), log=dict(every=50)
  ),
  "wnut17": {},
}


def get_config(name: str = "conll2003") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  return merge(TASK, RATE, NAMES[check_name(name, NAMES)])
