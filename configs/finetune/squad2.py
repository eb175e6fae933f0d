"""SQuAD 2.0: SQuAD, with questions without an answer (Rajpurkar et al. 2018).

Recipe: Devlin et al. 2019, section 4.3: 2 epochs, 5e-5, 48 windows a batch;
  rows of 384 tokens, a window every 128, questions of 64, answers of 30
  (google-research/bert run_squad.py); no answer is the span at [CLS]. Warm-up
  over 10%, decay from step 0, clip 1.0, weight decay 0.01; Adam's bias is
  corrected (as released: --config.optimizer.name=adamw_bert).
Metric: exact match and F1, and both at the best threshold.
Scores: dev, 78.7/81.9 (large), Table 3.
Other families (flags beside those of the command):
  RoBERTa (Liu et al. 2019, Table 10):
    --config.schedule.name=linear --config.schedule.peak=1.5e-5
    --config.schedule.warmup=0.06 --config.optimizer.b2=0.98
  ALBERT (Lan et al. 2020, Table 14; 814 steps of warm-up; head dropout 0):
    --config.total_steps=8144 --config.schedule.peak=3e-5
    --config.schedule.warmup=0.1
  ELECTRA small and base (configure_finetuning.py; rows of 512; its head, with
    a classifier for unanswerable questions):
    --config.objective.span_head=joint
    --config.batch_size=32 --config.schedule.name=electra
    --config.schedule.peak=1e-4 --config.optimizer.layer_decay=0.8
Command (TRAIN and DEV: the original files):
  python -m bert_jax.cli.prepare --task squad2 --input train=TRAIN \\
    --input validation=DEV --vocab PRETRAINED \\
    --output TASK_FOLDER
  python -m bert_jax.cli.train --config configs/finetune/squad2.py \\
    --workdir runs/squad2 --config.init_from=PRETRAINED \\
    --config.data.path=TASK_FOLDER
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  """BERT's recipe for SQuAD 2.0, complete and flat."""
  return ConfigDict(
    dict(
      seed=0,
      total_steps=placeholder(int),  # data.epochs of the training rows
      batch_size=48,
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
        epochs=2.0,
        shuffle=True,
        group=True,
        buckets=(128, 192, 256, 320, 384),
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
      log=dict(every=100),
      evaluate=dict(every=placeholder(int)),  # once an epoch
      checkpoint=dict(every=placeholder(int), keep=1, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
