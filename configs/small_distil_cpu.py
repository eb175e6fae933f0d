"""A small DistilBERT in minutes on two CPU cores, from the quickstart's BERT.

Paper: Sanh et al. 2019 for objective and masks.
Sizes: chosen here, for two CPU cores and little text: 1 layer of 128, the first
  of its teacher, which is what `make quickstart` trains; rows of 128 tokens,
  float32, no dropout.
Text: the docstrings that `make quickstart` collects.
Original hardware: none; 2 CPU cores.
Command:
  python -m bert_jax.cli.train --config configs/small_distil_cpu.py \\
    --workdir runs/small_distil_cpu --config.data.path=runs/quickstart/data \\
    --config.teacher.path=runs/quickstart
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """The published recipe, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=1000,
      batch_size=16,
      micro_batches=1,
      phases={},
      init_from="",
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family="distilbert",
        variant="base",
        hidden=128,
        num_layers=1,
        heads=2,
        mlp=512,
        vocab_size=placeholder(int),  # that of the data
        max_positions=128,
        dropout=0.0,
        attention_dropout=0.0,
        activation="gelu",
        initializer_range=0.05,
        dtype="float32",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=False,
      ),
      teacher=dict(
        path="",
        model=dict(
          family="bert",
          variant="tiny",
          max_positions=128,
        ),
      ),
      objective=dict(
        name="distil",
        layers=(0,),
        kl_weight=5.0,
        mlm_weight=2.0,
        cosine_weight=1.0,
        temperature=2.0,
        kl_tokens="all",
        freeze_positions=True,
      ),
      data=dict(
        path="",
        builder="doc_sentences",
        length=128,
        max_predictions=20,
        mask_rate=0.15,
        masking="token",
        smoothing=0.7,
        replacement="bert",
        count="ceil_all",
        static_masks=0,
        max_sequences=1,
        cased=False,
      ),
      optimizer=dict(
        name="adamw",
        b1=0.9,
        b2=0.98,
        epsilon=1e-6,
        weight_decay=0.0,
        clip_norm=5.0,
      ),
      schedule=dict(name="linear", peak=1e-3, warmup=0.05),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=100),
      evaluate=dict(every=500, examples=512),
      checkpoint=dict(every=500, keep=2, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
