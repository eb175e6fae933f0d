#!/bin/sh
# Makes the model that the package ships, scores it and packs it.
#
#   sh experiments/mini/make.sh TEXT EVAL OUT [FLAG ...]
#
# TEXT is a folder of .jsonl.xz files of documents; EVAL is a folder with
# blimp.tar.xz and GLUE's folders sst2 and cola; OUT is the folder of all
# results. Further flags go to the training run. Steps whose results are in OUT
# are not made again. It needs a GPU, `pip install -e '.[finetune,cuda]'`, and
# is started in the project's folder.
set -e
text=$1 eval=$2 out=$3
shift 3
here=$(dirname "$0")
mkdir -p "$out"

[ -f "$out/vocab.txt" ] || bert_jax vocab --input "$text/*.jsonl.xz" \
  --size 16384 --output "$out/vocab.txt"
bert_jax prepare --input "$text/*.jsonl.xz" --vocab "$out/vocab.txt" \
  --output "$out/data" --heldout 0.005
bert_jax train --config "$here/../flagship/config.py:mini" \
  --workdir "$out/run" --config.data.path="$out/data" "$@"
bert_jax likelihood --model "$out/run" --blimp "$eval/blimp.tar.xz" \
  --output "$out/blimp.json" --dtype bfloat16 --batch-tokens 65536

bert_jax prepare-task --task sst2 --input train="$eval/sst2/train.tsv" \
  --input validation="$eval/sst2/dev.tsv" --vocab "$out/vocab.txt" \
  --length 128 --output "$out/sst2"
bert_jax prepare-task --task cola \
  --input train="$eval/cola/in_domain_train.tsv" \
  --input validation="$eval/cola/in_domain_dev.tsv" \
  --input validation="$eval/cola/out_of_domain_dev.tsv" \
  --vocab "$out/vocab.txt" --length 128 --output "$out/cola"
for seed in 0 1 2; do
  for task in "sst2 3.0 1e-4" "cola 6.0 5e-5"; do
    set -- $task
    bert_jax train --config "glue:$1" --workdir "$out/$1-$seed" \
      --config.init_from="$out/run" --config.data.path="$out/$1" \
      --config.data.epochs="$2" --config.schedule.peak="$3" \
      --config.seed="$seed" "--config.data.buckets=(32,64,128)" \
      --config.checkpoint.keep_best=0
  done
done

python "$here/pack.py" --model "$out/run" \
  --text "$(ls "$text"/*.jsonl.xz | tail -n 1)" --output "$out/packed"
