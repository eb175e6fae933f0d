"""RACE: exams of reading, four answers a question (Lai et al. 2017).

Recipe: RoBERTa's (Liu et al. 2019, Table 10): 4 epochs, 1e-5, 16 examples a
  batch, weight decay 0.1, rows of 512, warm-up over 6% and linear decay from
  there. BERT's paper has no RACE.
Metric: accuracy.
Scores: test, 83.2 (RoBERTa large; fairseq README).
Other families (flags beside those of the command):
  ALBERT (Lan et al. 2020, Table 14; 1,000 steps of warm-up; v2: 1e-5, no
    dropout):
    --config.total_steps=12000 --config.batch_size=32
    --config.schedule.name=bert --config.schedule.peak=2e-5
    --config.schedule.warmup=0.0833 --config.optimizer.name=adamw
    --config.optimizer.b2=0.999 --config.optimizer.weight_decay=0.01
    --config.optimizer.clip_norm=1.0 --config.objective.head_dropout=0.1
  GPT-1 (Radford et al. 2018, section 4.1):
    --config.data.epochs=3.0 --config.batch_size=32
    --config.schedule.peak=6.25e-5 --config.schedule.warmup=0.002
    --config.objective.lm_weight=0.5 --config.optimizer.name=adamw
    --config.optimizer.b2=0.999 --config.optimizer.weight_decay=0.01
    --config.optimizer.clip_norm=1.0
Command (TRAIN and DEV: the original files):
  python -m bert_jax.cli.prepare --task race --input train=TRAIN \\
    --input validation=DEV --vocab PRETRAINED \\
    --output TASK_FOLDER
  python -m bert_jax.cli.train --config configs/finetune/race.py \\
    --workdir runs/race --config.init_from=PRETRAINED \\
    --config.data.path=TASK_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """RoBERTa's recipe for RACE, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=placeholder(int),  # data.epochs of the training rows
      batch_size=16,
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
        epochs=4.0,
        shuffle=True,
        group=True,
        buckets=(128, 256, 384, 512),
      ),
      optimizer=dict(
        name="adamw_fairseq",
        b1=0.9,
        b2=0.98,
        epsilon=1e-6,
        weight_decay=0.1,
        clip_norm=0.0,
        layer_decay=1.0,
        layer_rule="released",
      ),
      schedule=dict(name="linear", peak=1e-5, warmup=0.06),
      mesh=dict(data=-1, fsdp=1, tensor=1),
      log=dict(every=200),
      evaluate=dict(every=placeholder(int)),  # once an epoch
      checkpoint=dict(every=placeholder(int), keep=1, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
