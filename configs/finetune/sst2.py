"""SST-2: is a review good or bad (Socher et al. 2013).

Recipe: Devlin et al. 2019, section 4.1: 32 examples a batch, 3 epochs, Adam
  with 5e-5, 4e-5, 3e-5 or 2e-5, the best on the development set (here 2e-5);
  dropout 0.1; warm-up over 10% of the steps, decay from step 0, clip 1.0,
  weight decay 0.01 (google-research/bert run_classifier.py, optimization.py).
  One change: Adam's bias is corrected, which removes failed runs on small sets
  (Mosbach et al. 2021); as released: --config.optimizer.name=adamw_bert.
Metric: accuracy.
Scores: 93.5 (test, base), 94.9 (large), Table 1 (Devlin et al. 2019).
Sentences: cut to 128 tokens, batches of like length.
Other families (flags beside those of the command):
  RoBERTa (fairseq config/finetuning/sst_2.yaml; 1256 steps of warm-up):
    --config.total_steps=20935 --config.batch_size=32
    --config.schedule.name=linear --config.schedule.peak=1e-5
    --config.schedule.warmup=0.0600 --config.optimizer.name=adamw_fairseq
    --config.optimizer.b2=0.98 --config.optimizer.weight_decay=0.1
    --config.optimizer.clip_norm=0.0
  ALBERT (Lan et al. 2020, Table 14; 1256 steps of warm-up; head dropout 0):
    --config.total_steps=20935 --config.batch_size=32
    --config.schedule.peak=1e-5 --config.schedule.warmup=0.0600
    --config.objective.head_dropout=0.0
  ELECTRA small and base (google-research/electra configure_finetuning.py;
    large: 5e-5 and 0.9; as written in the paper, optimizer.layer_rule=written
    and weight_decay=0.0):
    --config.schedule.name=electra --config.schedule.peak=1e-4
    --config.optimizer.layer_decay=0.8 --config.data.epochs=3.0
  GPT-1 (Radford et al. 2018, section 4.1; openai/finetune-transformer-lm
    train.py):
    --config.schedule.name=linear --config.schedule.peak=6.25e-5
    --config.schedule.warmup=0.002 --config.objective.lm_weight=0.5
    --config.data.epochs=3.0
Command (TRAIN and DEV: the original files):
  python -m bert_jax.cli.prepare --task sst2 --input train=TRAIN \\
    --input validation=DEV --vocab PRETRAINED \\
    --output TASK_FOLDER
  python -m bert_jax.cli.train --config configs/finetune/sst2.py \\
    --workdir runs/sst2 --config.init_from=PRETRAINED \\
    --config.data.path=TASK_FOLDER
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
      log=dict(every=200),
      evaluate=dict(every=placeholder(int)),  # once an epoch
      checkpoint=dict(every=placeholder(int), keep=1, keep_best=1),
      profile=dict(start=0, steps=0),
    )
  )
