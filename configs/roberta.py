r"""RoBERTa: masked LM on full sentences.

Paper: Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining
  Approach", sections 4 and 5, Table 9.
Settings: batches of "8K" sequences of 512 tokens, 500,000 steps, Adam 6e-4 with
  warm-up over 24,000 steps (base), 4e-4 over 30,000 (large), and linear decay,
  b2 0.98, epsilon 1e-6, decay 0.01 on every parameter, no clipping, dropout 0.1
  (Table 9; fairseq examples/roberta/config/pretraining/base.yaml, which has
  2,048 sequences, 5e-4, 10,000 of 125,000 steps). "8K" is 8,192, because 1,024
  cards share it, and because in Table 3, 125,000 steps of "2K" cost as much as
  1,000,000 steps of 256.
  FULL-SENTENCES, new masks in every epoch, no next sentence prediction
  (sections 4.1, 4.2).
Data: 160 GB of text: books, Wikipedia, CC-News, OpenWebText, Stories (section
  3.2); byte-level BPE of 50,265 pieces (section 4.4).

  name   layers x width, heads  parameters (Table 9; fairseq README)
  base       12 x 768,  12         125M
  large      24 x 1024, 16         355M

  GLUE dev (fairseq examples/roberta/README.md):
           MNLI  QNLI   QQP   RTE SST-2  MRPC  CoLA STS-B
  base     87.6  92.8  91.9  78.7  94.8  90.2  63.6  91.2
  large    90.2  94.7  92.2  86.6  96.4  90.9  68.0  92.4
  large: SQuAD 1.1 dev 88.9 EM, 94.6 F1, 2.0 86.5, 89.4; RACE 83.2 (there).
  Original hardware: large 1,024 V100 (32 GB), one day for 100,000 steps
  (section 5); base not published.

DOC-SENTENCES: --config.data.builder=doc_sentences. Fixed masks, as in BERT:
  --config.data.static_masks=10 (section 4.1).
Command:
  bert_jax train --config configs/roberta.py:base --workdir runs/roberta_base \
    --config.data.path=PREPARED_FOLDER
TPU slices and several hosts: docs/hosts.md, docs/tpu.md.
"""

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
