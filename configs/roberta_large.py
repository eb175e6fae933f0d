"""RoBERTa-large, masked LM on full sentences.

Paper: Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining
  Approach", sections 4 and 5, Table 9.
Sizes: 24 layers of 1024, 16 heads, 355M parameters (Table 9; fairseq
  examples/roberta/README.md).
Recipe: batches of "8K" sequences of 512 tokens, 500,000 steps, Adam 4e-4 with
  warm-up over 30,000 steps and linear decay, b2 0.98, epsilon 1e-6, decay 0.01
  on every parameter, no clipping, dropout 0.1 (Table 9; fairseq
  examples/roberta/config/pretraining/base.yaml, which has 2,048 sequences,
  5e-4, 10,000 of 125,000 steps). 8K is 8,192: 1,024 cards share it, and in
  Table 3 2K for 125,000 steps cost what 256 for 1,000,000 do. FULL-SENTENCES,
  new masks in every epoch, no next sentence prediction (sections 4.1, 4.2).
Data: 160 GB of text: books, Wikipedia, CC-News, OpenWebText, Stories (section
  3.2); byte-level BPE of 50,265 pieces (section 4.4).
Original hardware: 1,024 V100 (32 GB), one day for 100,000 steps (section 5).
Scores: GLUE dev MNLI 90.2, QNLI 94.7, QQP 92.2, RTE 86.6, SST-2 96.4, MRPC
  90.9, CoLA 68.0, STS-B 92.4; SQuAD 1.1 dev 88.9 EM, 94.6 F1, 2.0 86.5, 89.4;
  RACE 83.2 (fairseq examples/roberta/README.md).
DOC-SENTENCES: --config.data.builder=doc_sentences. Masks fixed as BERT's were:
  --config.data.static_masks=10 (section 4.1).
Command:
  python -m bert_jax.cli.train --config configs/roberta_large.py \\
    --workdir runs/roberta_large --config.data.path=PREPARED_FOLDER
On a TPU slice, and on several hosts: docs/hosts.md. Which slices it fits:
  docs/tpu.md.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The published recipe, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=500_000,
      batch_size=8192,
      micro_batches=16,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="roberta",
        variant="large",
        vocab_size=placeholder(int),  # that of the data
        max_positions=514,
        padding_id=placeholder(int),  # that of the data
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        initializer_range=0.02,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=True,
      ),
      objective=dict(name="mlm", pairs=False),
      data=dict(
        path="",
        builder="full_sentences",
        length=512,
        max_predictions=80,
        mask_rate=0.15,
        masking="token",
        replacement="roberta",
        count="stochastic",
        static_masks=0,
        max_sequences=1,
        cased=True,
      ),
      optimizer=dict(
        name="adamw_fairseq",
        b1=0.9,
        b2=0.98,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=0.0,
      ),
      schedule=dict(name="linear", peak=4e-4, warmup=0.06),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=10_000, examples=10_000),
      checkpoint=dict(every=1000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
