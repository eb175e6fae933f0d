"""CoNLL-2003: names of people, places, organisations (Tjong Kim Sang 2003).

Recipe: Devlin et al. 2019, section 5.3 and appendix A.3: the first piece of
  each word is labelled, no CRF; a cased vocabulary; rows of 512 with as much of
  the document around a sentence as has room. Numbers from the appendix's range:
  32 sentences a batch, 5e-5 [the paper does not say which], 3 epochs. Warm-up
  over 10%, decay from step 0, clip 1.0, weight decay 0.01; Adam's bias is
  corrected.
Metric: F1 of entities, as conlleval counts.
Scores: dev/test, 96.4/92.4 (base), 96.6/92.8 (large), Table 7.
Command (TRAIN and DEV: the original files):
  python -m bert_jax.cli.prepare --task conll2003 --input train=TRAIN \\
    --input validation=DEV --vocab PRETRAINED \\
    --output TASK_FOLDER --no-lower-case
  python -m bert_jax.cli.train --config configs/finetune/conll2003.py \\
    --workdir runs/conll2003 --config.init_from=PRETRAINED \\
    --config.data.path=TASK_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """BERT's recipe for named entities, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=placeholder(int),  # data.epochs of the training rows
      batch_size=32,
      micro_batches=1,
      phases={},
      init_from="",  # the pre-trained model
      init_new_rows="mean",
      spike=dict(action="none", factor=2.0),
      model=dict(
        family=placeholder(str),  # that of init_from, as all its sizes
        variant=placeholder(str),
        vocab_size=placeholder(int),
        dropout=placeholder(float),
        attention_dropout=placeholder(float),
        dtype="bfloat16",
        attention="auto",
        elementwise="auto",
        products="auto",
        unroll=0,
        remat=False,
      ),
      objective=dict(
        name="finetune",
        head="new",
        head_dropout=placeholder(float),  # the family's
        lm_weight=0.0,
        span_positions="all",
        train_padding=False,
        span_head="apart",
      ),
      data=dict(
        path="",
        train="train",
        validation="validation",
        epochs=3.0,
        shuffle=True,
        group=True,
        buckets=(128, 256, 384, 512),
      ),
      optimizer=dict(
        name="adamw",
        b1=0.9,
        b2=0.999,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
        layer_decay=1.0,
        layer_rule="released",
      ),
      schedule=dict(name="bert", peak=5e-5, warmup=0.1),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=50),
      evaluate=dict(every=placeholder(int)),  # once an epoch
      checkpoint=dict(every=placeholder(int), keep=1, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
