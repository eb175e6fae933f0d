"""GPT-1, the next token.

Paper: Radford et al. 2018, "Improving Language Understanding by Generative
  Pre-Training", sections 3.1 and 4.1.
Sizes: 12 layers of 768, 12 heads, 117M parameters (section 4.1).
Recipe: 64 rows of 512 tokens a batch, 100 epochs, Adam 2.5e-4 with warm-up over
  2,000 steps and a cosine to zero, decay 0.01 on all but biases and gains,
  dropout 0.1, normal 0.02 (section 4.1); epsilon 1e-8 and clipping at 1.0 as in
  fine-tuning [not published for pre-training] (openai/finetune-transformer-lm
  train.py). 100 epochs of the books' 985 M words, about 1.2 pieces each, are
  3,600,000 steps [derived]; set total_steps, and warmup=2,000 / total_steps,
  for other text.
Differences: the released Adam multiplies decay by the bias-corrected rate,
  which matters for the first thousands of steps, and the released cosine counts
  from step 0, under 0.1% of the peak away (opt.py). Its softmax runs over the
  positions' vectors too, see objectives/lm.py.
Data: books, lower-cased; BPE of 40,478 pieces (section 4.1).
Original hardware: 8 P600, one month (openai.com, Improving language
  understanding with unsupervised learning).
Scores: GLUE test, average 75.1 (Devlin et al. 2019, Table 1); ROCStories 86.5
  (section 4.2).
Command:
  python -m bert_jax.cli.train --config configs/gpt1.py \\
    --workdir runs/gpt1 --config.data.path=PREPARED_FOLDER
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
      total_steps=3_600_000,
      batch_size=64,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="gpt",
        variant="base",
        vocab_size=placeholder(int),  # that of the data
        max_positions=512,
        dropout=0.1,
        attention_dropout=0.1,
        activation="gelu_new",
        initializer_range=0.02,
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=False,
      ),
      objective=dict(name="lm"),
      data=dict(
        path="",
        builder="lm",
        length=512,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw",
        b1=0.9,
        b2=0.999,
        epsilon=1e-8,
        weight_decay=0.01,
        clip_norm=1.0,
      ),
      schedule=dict(name="cosine", peak=2.5e-4, warmup=2_000 / 3_600_000),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=10_000, examples=10_000),
      checkpoint=dict(every=5000, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
