r"""BERT and Google's miniatures: masked LM and next sentences, in two phases.

Paper: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional
  Transformers for Language Understanding", sections 3 and A.2. Miniatures:
  Turc et al. 2019, "Well-Read Students Learn Better: On the Importance of
  Pre-training Compact Models"; google-research/bert README, "March 11th, 2020:
  Smaller BERT Models". large_wwm: the same README, "May 31st, 2019: Whole Word
  Masking Models". Either all pieces of a word are masked or none, at the same
  rate, and each piece is predicted on its own.
Settings: 256 sequences a batch, 1,000,000 steps, Adam 1e-4 with warm-up over
  10,000 steps and linear decay, weight decay 0.01, dropout 0.1; 128 tokens for
  90% of the steps, then 512 (A.2); 20 and 80 predictions a sequence, 10% short
  sequences (README, create_pretraining_data.py). For the miniatures, the README
  says "the standard BERT recipe", WordPiece masks, uncased. The numbers of the
  miniatures and of large_wwm are not published, so BERT's are used here.

  name       layers x width, heads  parameters  GLUE test, average
  tiny            2 x 128,  2          4.4M        64.2 (README)
  mini            4 x 256,  4         11.3M        65.8 (README)
  small           4 x 512,  8         29.1M        71.2 (README)
  medium          8 x 512,  8         41.7M        73.5 (README)
  base           12 x 768, 12          110M        79.6 (Table 1)
  large          24 x 1024, 16         340M        82.1 (Table 1)
  large_wwm      24 x 1024, 16         340M

  Parameters: section 3. Those of the miniatures include both heads.
  SQuAD 1.1 dev, EM and F1: base 80.8, 88.5; large 84.1, 90.9 (Table 2).
  large_wwm: SQuAD 1.1 dev 86.7, 92.8, MNLI 87.07 (README, uncased; BERT-large
  there: 84.3, 91.0, 86.05).
  Original hardware: base 4 Cloud TPUs (16 chips), 4 days; large 16 (64 chips),
  4 days (A.2); the others: not published.

Command:
  bert_jax train --config configs/bert.py:base --workdir runs/bert_base \
    --config.data.path=PREPARED_FOLDER
Cased: --config.data.cased=True, with text prepared with --no-lower-case and a
  cased vocabulary. Less memory: --config.micro_batches=N. TPU slices and
  several hosts: docs/hosts.md.
"""

from bert_jax.configs.common import (
  MASKED,
  PRETRAIN,
  check_name,
  merge,
  unset,
)
from ml_collections import ConfigDict

NAMES = ("tiny", "mini", "small", "medium", "base", "large", "large_wwm")


def phase_section(fraction: float, length: int, max_predictions: int) -> dict:
  """Returns the settings of a phase with the batch size of the run."""
  return dict(
    fraction=fraction,
    length=length,
    max_predictions=max_predictions,
    batch_scale=1.0,
    micro_scale=1,
  )


PAIR_ROWS = dict(
  data=dict(
    builder="bert_pairs", short_probability=0.1, random_share="published"
  )
)
PUBLISHED_SETTINGS = dict(
  total_steps=1_000_000,
  phases=dict(
    phase1=phase_section(0.9, 128, 20), phase2=phase_section(0.1, 512, 80)
  ),
  model=dict(family="bert"),
  objective=dict(pairs=True),
)


def get_config(name: str = "base") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  variant = check_name(name, NAMES).removesuffix("_wwm")
  masking = "whole_word" if name == "large_wwm" else "token"
  changes = dict(
    model=dict(
      variant=variant, remat=unset(bool) if variant == "large" else False
    ),
    data=dict(masking=masking),
  )
  return merge(PRETRAIN, MASKED, PAIR_ROWS, PUBLISHED_SETTINGS, changes)
