r"""RoBERTa: masked LM on full sentences.

Paper: Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining
  Approach", sections 4 and 5, Table 9.
Settings: a batch has "8K" sequences of 512 tokens. A run has 500,000 steps. The
  optimizer is Adam with b2 0.98, epsilon 1e-6, weight decay 0.01 on every
  parameter and no clipping. The peak rate is 6e-4 after a warm-up over 24,000
  steps (base), or 4e-4 after 30,000 (large). Then it decays linearly. Dropout
  is 0.1 (Table 9). fairseq examples/roberta/config/pretraining/base.yaml has
  other values: 2,048 sequences a batch, a peak rate of 5e-4, and 125,000 steps,
  of which 10,000 are warm-up.
  "8K" is read as 8,192, because 1,024 cards share a batch, and because 125,000
  steps of "2K" cost as much as 1,000,000 steps of 256 in Table 3.
  Rows are FULL-SENTENCES. Masks are new in every epoch, and there is no next
  sentence prediction (sections 4.1 and 4.2).
Data: 160 GB of text: books, Wikipedia, CC-News, OpenWebText, Stories (section
  3.2); byte-level BPE with 50,265 pieces (section 4.4).

  name   layers x width, heads  parameters (Table 9; fairseq README)
  base       12 x 768,  12         125M
  large      24 x 1024, 16         355M

  Scores on GLUE's development sets (fairseq examples/roberta/README.md):
           MNLI  QNLI   QQP   RTE SST-2  MRPC  CoLA STS-B
  base     87.6  92.8  91.9  78.7  94.8  90.2  63.6  91.2
  large    90.2  94.7  92.2  86.6  96.4  90.9  68.0  92.4
  large has EM 88.9 and F1 94.6 on SQuAD 1.1's development set, EM 86.5 and F1
  89.4 on SQuAD 2.0's, and an accuracy of 83.2 on RACE (the same README).
  Original hardware: large had 1,024 V100 (32 GB) for one day for 100,000 steps
  (section 5). The hardware of base is not published.

For DOC-SENTENCES, add --config.data.builder=doc_sentences. For fixed masks, as
  in BERT, add --config.data.static_masks=10 (section 4.1).
Command:
  bert_jax train --config configs/roberta.py:base --workdir runs/roberta_base \
    --config.data.path=PREPARED_FOLDER
For TPU slices and several hosts, see docs/hosts.md and docs/tpu.md.
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import MASKED, PRETRAIN, check_name, merge, unset
from ml_collections import ConfigDict

FAMILY_SETTINGS = dict(
  model=dict(family="roberta", padding_id=unset(int)),  # from the data
  objective=dict(pairs=False),
  data=dict(
    builder="full_sentences",
    replacement="roberta",
    count="stochastic",
    cased=True,
  ),
)
FAIRSEQ = dict(optimizer=dict(name="adamw_fairseq"))
PUBLISHED_SETTINGS = dict(
  total_steps=500_000,
  batch_size=8192,
  micro_batches=16,
  model=dict(max_positions=514),
  data=dict(length=512, max_predictions=80),
  optimizer=dict(b2=0.98, clip_norm=0.0),
  schedule=dict(name="linear"),
  checkpoint=dict(every=1000),
)
SIZES = {
  "base": dict(schedule=dict(peak=6e-4, warmup=0.048)),
  "large": dict(
    schedule=dict(peak=4e-4, warmup=0.06),
    model=dict(variant="large", remat=unset(bool)),
  ),
}


def get_config(name: str = "base") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  changes = SIZES[check_name(name, SIZES)]
  return merge(
    PRETRAIN, MASKED, FAMILY_SETTINGS, FAIRSEQ, PUBLISHED_SETTINGS, changes
  )
