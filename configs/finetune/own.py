"""A task of one's own: classes, several labels, a number, pairs, tags of words.

Recipe: BERT's for GLUE (Devlin et al. 2019, section 4.1): 32 examples a batch,
  3 epochs, 5e-5, 4e-5, 3e-5 or 2e-5 (here 2e-5), dropout 0.1, warm-up over 10%,
  decay from step 0, clip 1.0, weight decay 0.01; Adam's bias is corrected,
  which removes failed runs on small sets (Mosbach et al. 2021). Try several
  seeds: python -m bert_jax.cli.sweep.
Metric: the first of the task's; see prepare.
Command, for a TSV file with the columns message and verdict:
  python -m bert_jax.cli.prepare --task spam --columns text=message,label=verdict \\
    --input train=train.tsv --input validation=dev.tsv --vocab PRETRAINED \\
    --output TASK_FOLDER
  python -m bert_jax.cli.train --config configs/finetune/own.py \\
    --workdir runs/spam --config.init_from=PRETRAINED \\
    --config.data.path=TASK_FOLDER
  python -m bert_jax.cli.predict --model runs/spam --input new.jsonl \\
    --output predicted.jsonl
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """BERT's recipe for GLUE, complete and flat."""
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
        buckets=(16, 32, 48, 64, 96, 128),
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
      schedule=dict(name="bert", peak=2e-5, warmup=0.1),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=20),
      evaluate=dict(every=placeholder(int)),  # once an epoch
      checkpoint=dict(every=placeholder(int), keep=1, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
