"""ELECTRA-Small, replaced token detection.

Paper: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators
  Rather Than Generators", sections 2 and 3, Table 6.
Sizes: discriminator 12 layers of 256, 4 heads, tables of 128, 14M parameters;
  generator 12 layers of 64 (google-research/electra util/training_utils.py,
  configure_pretraining.py, README).
Recipe: 128 sequences of 128 tokens a batch, 1,000,000 steps, Adam 5e-4 without
  bias correction, warm-up over 10,000 steps times linear decay, decay 0.01,
  clipping at 1.0, dropout 0.1, 15% masked, loss 1 x generator + 50 x
  discriminator, samples at temperature 1 (Table 6; configure_pretraining.py,
  model/optimization.py). The released model was trained for 4,000,000 steps
  with a generator as wide as the discriminator (README).
Positions: drawn with replacement in the released code:
  --config.data.repeat_positions=True.
Original hardware: one V100, 4 days (Table 1).
Scores: GLUE dev, average 79.9 (Table 1).
Command:
  python -m bert_jax.cli.train --config configs/electra_small.py \\
    --workdir runs/electra_small --config.data.path=PREPARED_FOLDER
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
      total_steps=1_000_000,
      batch_size=128,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="electra",
        variant="small",
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
      objective=dict(
        name="electra",
        discriminator_weight=50.0,
        temperature=1.0,
      ),
      data=dict(
        path="",
        builder="electra_segments",
        length=128,
        max_predictions=19,
        mask_rate=0.15,
        short_probability=0.05,
        masking="token",
        replacement="electra",
        count="round_single",
        repeat_positions=False,
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
      schedule=dict(name="electra", peak=5e-4, warmup=0.01),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=10_000, examples=10_000),
      checkpoint=dict(every=5000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
