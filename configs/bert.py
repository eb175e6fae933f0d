r"""BERT and Google's miniatures: masked LM and next sentences, in two phases.

Paper: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional
  Transformers for Language Understanding", sections 3 and A.2. "README" means
  the README of google-research/bert.
  Miniatures (tiny, mini, small, medium): Turc et al. 2019, "Well-Read Students
  Learn Better: On the Importance of Pre-training Compact Models"; README,
  "March 11th, 2020: Smaller BERT Models".
  large_wwm: README, "May 31st, 2019: Whole Word Masking Models". Either all
  pieces of a word are masked or none. The share of masked pieces is as in BERT,
  and each piece is predicted on its own.
Settings: a batch has 256 sequences. A run has 1,000,000 steps. The optimizer is
  Adam with a peak rate of 1e-4, a warm-up over 10,000 steps, linear decay and
  weight decay 0.01. Dropout is 0.1. A row has 128 tokens in the first 90% of
  the steps, then 512 (A.2). A sequence has up to 20 predictions, then up to 80,
  and 10% of the sequences are short (README, create_pretraining_data.py).
  For the miniatures, the README says "the standard BERT recipe", with WordPiece
  masks and uncased text. For the miniatures and large_wwm, no
  number of these settings is published, so BERT's numbers are used here.

  name       layers x width  heads  parameters  GLUE test, average (source)
  tiny            2 x  128      2       4.4M        64.2 (README)
  mini            4 x  256      4      11.3M        65.8 (README)
  small           4 x  512      8      29.1M        71.2 (README)
  medium          8 x  512      8      41.7M        73.5 (README)
  base           12 x  768     12       110M        79.6 (Table 1)
  large          24 x 1024     16       340M        82.1 (Table 1)
  large_wwm      24 x 1024     16       340M        none in README

  The numbers of parameters are from section 3. For the miniatures, the number
  includes both heads.
  Scores on SQuAD 1.1's development set: base EM 80.8 and F1 88.5; large EM 84.1
  and F1 90.9 (Table 2). README compares uncased models: large_wwm has EM 86.7,
  F1 92.8 and 87.07 on MNLI; BERT-large has EM 84.3, F1 91.0 and 86.05 on MNLI.
  Original hardware: 4 days on 4 Cloud TPUs (16 chips) for base, and 4 days on
  16 Cloud TPUs (64 chips) for large (A.2). The hardware of the others is not
  published.

Command:
  bert_jax train --config configs/bert.py:base --workdir runs/bert_base \
    --config.data.path=PREPARED_FOLDER
For cased text, prepare the text with --no-lower-case and a cased vocabulary,
  and add --config.data.cased=True. For less memory, add
  --config.micro_batches=N. For TPU slices and several hosts, see docs/hosts.md.
"""

# The folder configs/ is installed as `bert_jax.configs`.
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
