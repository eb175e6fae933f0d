#!/usr/bin/env bash
# Runs every system at a tiny size on the CPU, on slices of the data:
#   trial.sh TEXT EVAL OUT
# TEXT is a .jsonl.xz file of the training text. EVAL has blimp.tar.xz, cola,
# sst2 and wnut17 as published. SYSTEMS and FINE_TUNE choose systems and tasks.
set -euo pipefail
text=$1 eval=$2 out=$3
here=$(cd "$(dirname "$0")" && pwd)
export JAX_PLATFORMS=cpu PYTHONPATH=$here/../..${PYTHONPATH:+:$PYTHONPATH}
export JAX_COMPILATION_CACHE_DIR=$out/cache
# Compiling is most of the work here, and the programs run for seconds.
export XLA_FLAGS="--xla_backend_optimization_level=0
  --xla_llvm_disable_expensive_passes=true"
mkdir -p "$out/raw" "$out/blimp" "$out/wnut17"
if [ ! -f "$out/ready" ]; then
  xz -dc "$text" | head -n 200 | cut -c 1-20000 | grep '"}$' \
    > "$out/raw/text.jsonl" || true
  for kind in wordpiece words; do
    python -m bert_jax vocab --input "$out/raw/text.jsonl" --tokenizer $kind \
      --size 1000 --output "$out/$kind.txt"
    python -m bert_jax prepare --input "$out/raw/text.jsonl" --heldout 0.1 \
      --vocab "$out/$kind.txt" --output "$out/data_$kind"
  done
  head -n 64 "$eval/cola/in_domain_train.tsv" > "$out/raw/cola_train.tsv"
  head -n 32 "$eval/cola/in_domain_dev.tsv" > "$out/raw/cola_dev.tsv"
  head -n 65 "$eval/sst2/train.tsv" > "$out/raw/sst2_train.tsv"
  head -n 33 "$eval/sst2/dev.tsv" > "$out/raw/sst2_dev.tsv"
  for file in wnut17train.conll emerging.dev.conll emerging.test.annotated; do
    head -n 400 "$eval/wnut17/$file" > "$out/wnut17/$file"
  done
  cp "$out/wnut17/wnut17train.conll" "$out/raw/wnut17_train.tsv"
  cp "$out/wnut17/emerging.dev.conll" "$out/raw/wnut17_dev.tsv"
  for task in cola sst2 wnut17; do
    python -m bert_jax prepare-task --task $task \
      --input train="$out/raw/${task}_train.tsv" \
      --input validation="$out/raw/${task}_dev.tsv" \
      --vocab "$out/wordpiece.txt" --output "$out/tasks/$task"
  done
  mkdir -p "$out/raw/blimp"
  tar -xJf "$eval/blimp.tar.xz" -C "$out/raw/blimp"
  find "$out/raw/blimp" -name '*.jsonl' | sort | head -n 2 \
    | xargs -I{} cp {} "$out/blimp"
  touch "$out/ready"
fi
systems=${SYSTEMS:-bert,bert_no_nsp,bert_sop,roberta,roberta_static,whole_word}
systems=${SYSTEMS:-$systems,spans,albert,electra,gpt,elmo,distilbert,tinybert}
python "$here/compare.py" train --tiny --systems "$systems" \
  --workdir "$out/runs" --data "$out/data_wordpiece" \
  --words "$out/data_words" --tasks "$out/tasks" --blimp "$out/blimp" \
  --wnut17 "$out/wnut17" --flops "${FLOPS:-6e10}" --seconds 8 --pairs 4 \
  --fine-tune "${FINE_TUNE:-cola,sst2,wnut17}" --epochs-factor 0.4 --task-seeds 1 --jobs 1
python "$here/compare.py" table --workdir "$out/runs"
