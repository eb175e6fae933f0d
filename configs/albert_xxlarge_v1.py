"""ALBERT-xxlarge, version 1, masked n-grams and sentence order.

Paper: Lan et al. 2020, "ALBERT: A Lite BERT for Self-supervised Learning of
  Language Representations", sections 3 and 4.
Sizes: 12 times one layer of 4096, 64 heads, tables of 128, 235M parameters
  (Table 1).
Recipe: 4,096 sequences of 512 tokens a batch, LAMB 1.76e-3 with warm-up over
  3,125 steps and linear decay, 1,500,000 steps, the longest published run
  (README; the ablations have 125,000), decay 0.01, clipping at 1.0, no dropout
  (released configuration) (section 4.1; google-research/albert README,
  run_pretraining.py, optimization.py). Masked n-grams of up to 3 words,
  sentence order prediction, 10% short sequences (section 3.1, 4.1).
Predictions: 15% of a row. The README's command has
  --max_predictions_per_seq=20, 4% of a row of 512:
  --config.data.max_predictions=20. Text is duplicated 40 times there
  (create_pretraining_data.py): --config.data.static_masks=40; masks are new in
  every epoch here.
Data: books and Wikipedia, lower-cased; a SentencePiece unigram model of 30,000
  pieces (section 4.1, README).
Original hardware: 64 to 512 Cloud TPU v3 by size (section 4.1).
Scores: average of five tasks' dev sets 91.0 (README, V1).
Command:
  python -m bert_jax.cli.train --config configs/albert_xxlarge_v1.py \\
    --workdir runs/albert_xxlarge_v1 --config.data.path=PREPARED_FOLDER
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
      total_steps=1_500_000,
      batch_size=4096,
      micro_batches=16,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="albert",
        variant="xxlarge_v1",
        vocab_size=placeholder(int),  # that of the data
        max_positions=512,
        dropout=0.0,
        attention_dropout=0.0,
        activation="gelu_new",
        initializer_range=0.02,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=True,
      ),
      objective=dict(name="mlm", pairs=True, pair_name="sop"),
      data=dict(
        path="",
        builder="albert_pairs",
        length=512,
        max_predictions=77,
        mask_rate=0.15,
        short_probability=0.1,
        single="split",
        masking="ngram",
        replacement="bert",
        count="round",
        static_masks=0,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="lamb",
        b1=0.9,
        b2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="bert", peak=1.76e-3, warmup=3_125 / 1_500_000),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=10_000, examples=10_000),
      checkpoint=dict(every=1000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
