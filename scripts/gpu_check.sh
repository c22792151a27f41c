#!/usr/bin/env bash
# Ten minutes of proof on a GPU, by Multi30k's text files (train, valid and test2016, .en.gz and .de.gz) in one folder:
#     bash scripts/gpu_check.sh FOLDER [--smoke]       (--smoke: the same steps with tiny numbers, on any machine)
# Exactness of bf16 and of every kernel; speed and memory of three shapes, and of every kind of attention as the length
# grows; then the published Transformer-Tiny
# recipe, scored both ways. Reports go to ${OUT:-runs/gpu_check}, Python is ${PYTHON:-.venv/bin/python}.
set -euo pipefail
folder=$(cd "${1:?give the folder with train.en.gz and the others}" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python} out=${OUT:-runs/gpu_check}
mkdir -p "$out"
export PYTHONPATH=$PWD PYTHONUNBUFFERED=1

steps=8000 shapes="tiny base big" updates=20 windows=3 tokens=8192 lengths=() small=()
if [ "${2:-}" = --smoke ]; then
    steps=4 shapes=tiny updates=2 windows=1 tokens=512 lengths=(--lengths 64 128)
    small=(--tokenizer.vocab_size 2000 --trainer.validate_every 2 --trainer.checkpoint_every 2
        --trainer.validation_sentences 4 --optimizer.warmup_steps 2 --corpora.test_size 20 --corpora.valid_size 20)
    for language in en de; do
        for split in train valid test2016; do
            gzip -cd "$folder/$split.$language.gz" | sed -n 1,400p >"$out/$split.$language"
        done
    done
    folder=$out suffix=
fi
file() { echo "$folder/$1${suffix-.gz}"; }
recipe=(--config configs/multi30k_en_de.yaml --config configs/multi30k_local.yaml --config configs/multi30k_published.yaml
    --corpora.train "[$(file train.en), $(file train.de)]" --corpora.valid "[$(file valid.en), $(file valid.de)]"
    --corpora.test "[$(file test2016.en), $(file test2016.de)]"
    --output.data "$out/data" --output.run "$out/run" --trainer.max_steps "$steps"
    --batching.tokens_per_batch "$tokens" --trainer.accumulate_batches 1 "${small[@]}")

"$python" -m pytest -q -m gpu tests
"$python" scripts/benchmark.py attention "${lengths[@]}" --report "$out/growth.csv" --plot "$out/growth.png"
"$python" scripts/prepare.py "${recipe[@]}"
"$python" scripts/benchmark.py accuracy "${recipe[@]}" --report "$out/accuracy.json"
"$python" scripts/benchmark.py train "${recipe[@]}" --shapes $shapes --updates "$updates" --windows "$windows" \
    --compare_compiled --report "$out/speed.csv"
"$python" scripts/train.py "${recipe[@]}"
"$python" scripts/evaluate.py --model "$out/run" --compatibility --json "$out/scores.json"
