"""BERT-Tiny, one of Google's miniatures, both phases.

Paper: Turc et al. 2019, "Well-Read Students Learn Better: On the Importance of
  Pre-training Compact Models"; google-research/bert README, "March 11th, 2020:
  Smaller BERT Models".
Sizes: 2 layers of 128, 2 heads (README), 4.4M parameters (with both heads).
Recipe: "the standard BERT recipe" (README), WordPiece masks, uncased. In
  numbers [not published; as base]: 256 sequences a batch, 1,000,000 steps, Adam
  1e-4 with warm-up over 10,000 steps and linear decay, weight decay 0.01,
  dropout 0.1; 128 tokens for 90% of the steps, then 512; 20 and 80 predictions
  a sequence, 10% short sequences.
Original hardware: [not published].
Scores: GLUE test, 64.2 (README).
Cased: --config.data.cased=True, with text prepared with --no-lower-case and a
  cased vocabulary.
Command:
  python -m bert_jax.cli.train --config configs/bert_tiny.py \\
    --workdir runs/bert_tiny --config.data.path=PREPARED_FOLDER
On a TPU pod slice (folders that every host sees):
  gcloud compute tpus tpu-vm ssh SLICE --zone=ZONE --worker=all \\
    --command="cd bert_jax && python -m bert_jax.cli.train --distributed \\
    --config configs/bert_tiny.py --workdir SHARED/bert_tiny \\
    --config.data.path=SHARED/PREPARED_FOLDER"
On several GPU hosts, the same on each, with I from 0 to N - 1:
  python -m bert_jax.cli.train --coordinator HOST:PORT --num_processes N \\
    --process_id I \\
    --config configs/bert_tiny.py --workdir SHARED/bert_tiny \\
    --config.data.path=SHARED/PREPARED_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The recipe of BERT-base at this size, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=1_000_000,
      batch_size=256,
      micro_batches=1,
      phases=dict(
        phase1=dict(
          fraction=0.9,
          length=128,
          max_predictions=20,
          batch_scale=1.0,
          micro_scale=1,
        ),
        phase2=dict(
          fraction=0.1,
          length=512,
          max_predictions=80,
          batch_scale=1.0,
          micro_scale=1,
        ),
      ),
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="bert",
        variant="tiny",
        vocab_size=placeholder(int),  # that of the data
        max_positions=512,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu",
        initializer_range=0.02,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=False,
      ),
      objective=dict(name="mlm", pairs=True),
      data=dict(
        path="",
        builder="bert_pairs",
        mask_rate=0.15,
        short_probability=0.1,
        random_share="published",
        masking="token",
        static_masks=0,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw_bert",
        b1=0.9,
        b2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="bert", peak=1e-4, warmup=0.01),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=10_000, examples=10_000),
      checkpoint=dict(every=5_000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
