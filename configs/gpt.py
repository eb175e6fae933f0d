r"""GPT-1: predicts the next token.

Paper: Radford et al. 2018, "Improving Language Understanding by Generative
  Pre-Training", sections 3.1 and 4.1.
Settings: a batch has 64 rows of 512 tokens, and a run 100 epochs. The optimizer
  is Adam with a peak rate of 2.5e-4, a warm-up over 2,000 steps and a cosine to
  zero. Weight decay is 0.01 on all parameters except biases and gains. Dropout
  is 0.1. Initial parameters are normal with standard deviation 0.02 (section
  4.1).
  For pre-training, no epsilon and no clipping norm is published. Here
  epsilon is 1e-8 and the norm is 1.0, as in fine-tuning
  (openai/finetune-transformer-lm train.py).
Steps: these were computed here. 100 epochs of the books' 985 M words, about 1.2
  pieces each, are 3,600,000 steps. For other text, set total_steps, and set
  schedule.warmup to 2,000 / total_steps.
Differences: the released Adam multiplies the weight decay by the bias-corrected
  rate, which matters in the first thousands of steps. The released cosine
  counts from step 0, so the rate differs by less than 0.1% of the peak
  (opt.py). The released softmax includes the position vectors (see
  objectives/lm.py).
Data: books, lower-cased; BPE with 40,478 pieces (section 4.1).

  name  layers x width, heads  parameters   GLUE test, average   ROCStories, %
  gpt1      12 x 768, 12          117M             75.1              86.5
  (sources: section 4.1; Devlin et al. 2019, Table 1, for GLUE; section 4.2 for
  ROCStories)
  Original hardware: 8 P600 for one month (openai.com, Improving language
  understanding with unsupervised learning).

Command:
  bert_jax train --config configs/gpt.py:gpt1 --workdir runs/gpt1 \
    --config.data.path=PREPARED_FOLDER
For TPU slices and several hosts, see docs/hosts.md and docs/tpu.md.
"""

# The folder configs/ is installed as `bert_jax.configs`.
from bert_jax.configs.common import PRETRAIN, check_name, merge, steps_and_peak
from ml_collections import ConfigDict

FAMILY_SETTINGS = dict(
  model=dict(family="gpt", activation="gelu_new"),
  objective=dict(name="lm"),
  data=dict(builder="lm"),
  optimizer=dict(name="adamw"),
  schedule=dict(name="cosine"),
)
PUBLISHED_SETTINGS = dict(
  batch_size=64, data=dict(length=512), optimizer=dict(epsilon=1e-8)
)


def get_config(name: str = "gpt1") -> ConfigDict:
  """Returns the config with this name; ValueError if there is none."""
  check_name(name, ("gpt1",))
  steps_and_rate = steps_and_peak(3_600_000, 2_000, peak=2.5e-4)
  return merge(PRETRAIN, FAMILY_SETTINGS, PUBLISHED_SETTINGS, steps_and_rate)
