r"""ALBERT: masked n-grams and sentence order.

Paper: Lan et al. 2020, "ALBERT: A Lite BERT for Self-supervised Learning of
  Language Representations", sections 3 and 4. "README" means the
  README of google-research/albert.
Settings: a batch has 4,096 sequences of 512 tokens. The optimizer is LAMB with
  a peak rate of 1.76e-3, a warm-up over 3,125 steps, linear decay, weight decay
  0.01 and clipping at a norm of 1.0 (section 4.1; README,
  run_pretraining.py, optimization.py). The objectives are masked
  n-grams of up to 3 words and the order of sentences. 10% of the sequences are
  short (sections 3.1 and 4.1). Dropout is 0.1 in version 1, but xxlarge_v1 has
  none (released configuration) and version 2 has none (README).
Steps: version 1 has 125,000 (section 4.1), but xxlarge_v1 has 1,500,000, the
  longest published run (README; the ablations have 125,000). The steps of
  version 2 are from the README. The README has no rate and no warm-up for
  version 2, so those of version 1 are used.
Predictions: 15% of the tokens in a row. The README's command has
  --max_predictions_per_seq=20, which is 4% of a row of 512 tokens. For this,
  add --config.data.max_predictions=20. Here, masks are new in every epoch. The
  released program has 40 copies of the text instead
  (create_pretraining_data.py). For this, add --config.data.static_masks=40.
Data: books and Wikipedia, lower-cased; a SentencePiece unigram model of 30,000
  pieces (section 4.1, README). Version 2 was trained on more data, which is not
  published.

  The columns v1 and v2 are the average score of each version on the development
  sets of five tasks (README, "V1" and "V2"). "12 x 768" means that one layer
  with a width of 768 is applied 12 times. All embeddings have a width of 128
  (Table 1). The last column is the number of steps of version 2.
  name          times x width  heads  parameters   v1     v2      steps v2
  base_v*          12 x  768     12       12M      80.1   82.3   10,000,000
  large_v*         24 x 1024     16       18M      82.4   85.7    3,000,000
  xlarge_v*        24 x 2048     16       60M      85.5   87.9    3,000,000
  xxlarge_v*       12 x 4096     64      235M      91.0   90.9    3,000,000
  base_v2 has these scores on development sets (README, "V2"): SQuAD 1.1 F1 90.2
  and EM 83.2, SQuAD 2.0 F1 82.1 and EM 79.3, MNLI 84.6, SST-2 92.9, RACE 66.8.
  Original hardware: 64 to 512 Cloud TPU v3, depending on the size (section
  4.1).

Command:
  bert_jax train --config configs/albert.py:base_v2 --workdir runs/albert \
    --config.data.path=PREPARED_FOLDER
For TPU slices and several hosts, see docs/hosts.md and docs/tpu.md.
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import (
  MASKED,
  PRETRAIN,
  check_name,
  merge,
  steps_and_peak,
  unset,
)
from ml_collections import ConfigDict

STEPS = {
  "base_v1": 125_000,
  "large_v1": 125_000,
  "xlarge_v1": 125_000,
  "xxlarge_v1": 1_500_000,
  "base_v2": 10_000_000,
  "large_v2": 3_000_000,
  "xlarge_v2": 3_000_000,
  "xxlarge_v2": 3_000_000,
}
FAMILY_SETTINGS = dict(
  model=dict(family="albert", activation="gelu_new"),
  objective=dict(pairs=True, pair_name="sop"),
  data=dict(
    builder="albert_pairs",
    short_probability=0.1,
    single="split",
    masking="ngram",
    replacement="bert",
    count="round",
  ),
)
PUBLISHED_SETTINGS = dict(
  batch_size=4096,
  data=dict(length=512, max_predictions=77),
  optimizer=dict(name="lamb"),
  checkpoint=dict(every=1000),
)


def get_config(name: str = "base_v2") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  total_steps = STEPS[check_name(name, STEPS)]
  dropout_rate = 0.0 if name.endswith("v2") or name == "xxlarge_v1" else 0.1
  changes = dict(
    micro_batches=16 if "xlarge" in name else 8,
    model=dict(
      variant=name,
      dropout=dropout_rate,
      attention_dropout=dropout_rate,
      remat=False if name.startswith("base") else unset(bool),
    ),
  )
  steps_and_rate = steps_and_peak(total_steps, 3_125, peak=1.76e-3)
  return merge(
    PRETRAIN,
    MASKED,
    FAMILY_SETTINGS,
    PUBLISHED_SETTINGS,
    changes,
    steps_and_rate,
  )
