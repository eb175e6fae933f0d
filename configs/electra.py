r"""ELECTRA: replaced token detection.

Paper: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators
  Rather Than Generators", sections 2 and 3, Table 6. The README and the files
  that are named here are in google-research/electra.
Settings: the optimizer is Adam without bias correction. The learning rate is a
  warm-up over 10,000 steps, multiplied by a linear decay. Weight decay is 0.01,
  the clipping norm is 1.0 and dropout is 0.1. The loss is 1 times the
  generator's loss plus 50 times the discriminator's loss. The generator's
  tokens are sampled at temperature 1 (Table 6; configure_pretraining.py,
  model/optimization.py).

  Sizes are layers x width. "Tables" is the width of the embeddings, "masked"
  the share of masked tokens, and "rate" the peak learning rate.
  name   discriminator      tables  parameters  generator  masked   rate
  small  12 x 256,   4 heads   128      14M       12 x 64     15%   5e-4
  base   12 x 768,  12 heads   768     110M       12 x 256    15%   2e-4
  large  24 x 1024, 16 heads  1024     335M       24 x 256    25%   2e-4
  (sources: util/training_utils.py, configure_pretraining.py, README)

  name   rows x tokens          steps   GLUE dev, average score
  small     128 x 128       1,000,000    79.9 (Table 1)
  base      256 x 512   766,000 [mem]    85.1 (Table 1)
  large   2,048 x 512         400,000    89.0 (Table 2)
  [mem] marks a number from memory, which was not looked up.
  Original hardware: small had one V100 for 4 days, and base 16 Cloud TPU v3 for
  4 days (Table 1). The hardware of large is not published; the training
  took 7.1e20 FLOPs (Table 2) [mem].
  The released small model was trained for 4,000,000 steps, and its generator
  was as wide as the discriminator (README). large is ELECTRA-400K (section
  3.4). ELECTRA-1.75M has an average of 89.5 on GLUE dev (Table 2). For its
  steps, add --config.total_steps=1750000 --config.schedule.warmup=0.0057143.

Positions: the released code draws the masked positions with replacement. For
  this, add --config.data.repeat_positions=True.
Command:
  bert_jax train --config configs/electra.py:small \
    --workdir runs/electra_small --config.data.path=PREPARED_FOLDER
For TPU slices and several hosts, see docs/hosts.md and docs/tpu.md.
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import (
  MASKED,
  PRETRAIN,
  check_name,
  merge,
  steps_and_peak,
)
from ml_collections import ConfigDict

FAMILY_SETTINGS = dict(
  model=dict(family="electra"),
  objective=dict(name="electra", discriminator_weight=50.0, temperature=1.0),
  data=dict(
    builder="electra_segments",
    short_probability=0.05,
    replacement="electra",
    count="round_single",
    repeat_positions=False,
  ),
  schedule=dict(name="electra"),
)
SIZES = {
  "small": steps_and_peak(1_000_000, 10_000, peak=5e-4)
  | dict(batch_size=128, data=dict(length=128, max_predictions=19)),
  "base": steps_and_peak(766_000, 10_000, peak=2e-4)
  | dict(data=dict(length=512, max_predictions=79)),
  "large": steps_and_peak(400_000, 10_000, peak=2e-4)
  | dict(
    batch_size=2048,
    micro_batches=4,
    model=dict(remat=True),
    data=dict(length=512, max_predictions=130, mask_rate=0.25),
  ),
}


def get_config(name: str = "small") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  changes = SIZES[check_name(name, SIZES)]
  variant = dict(model=dict(variant=name))
  return merge(PRETRAIN, MASKED, FAMILY_SETTINGS, variant, changes)
