#!/usr/bin/env bash
# From nothing to a scored translation model on a real corpus: set up, prepare, train, evaluate, translate.
#     bash scripts/quickstart.sh [--trainer.max_minutes 2 ...]     (arguments change configs/quickstart.yaml)
# Given again, it goes on where it was stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in -h | --help) sed -n 2,4p scripts/quickstart.sh; exit ;; esac

config=configs/quickstart.yaml
run=runs/quickstart previous=
for argument in "$@"; do
    [ "$previous" = --output.run ] && run=$argument
    case $argument in
    --output.run=*) run=${argument#*=} ;;
    --config*) echo "The quick start has its configuration; with another: python scripts/train.py --config ..." >&2; exit 2 ;;
    esac
    previous=$argument
done
scores=$run/evaluations/test report=$run/quickstart.txt asked=$(printf '%s\n' "$@" | cat - "$config" | cksum)

if [ "$asked" = "$(cat "$run/quickstart.asked" 2>/dev/null)" ] && [ "$report" -nt "$run/model/weights.safetensors" ]; then
    cat "$report"
    echo "All of this was done already. To train longer: bash scripts/quickstart.sh --trainer.max_minutes 30"
    exit
fi

. scripts/setup.sh plots
"$python" scripts/prepare.py --config "$config" "$@"
"$python" scripts/train.py --config "$config" "$@"
if ! [ "$scores/table.txt" -nt "$run/model/weights.safetensors" ]; then
    "$python" scripts/evaluate.py --model "$run" >"$run/scores.partial"
    mv "$run/scores.partial" "$scores/table.txt"
fi

lines=$(awk "length > 40 && length < 120 { fit[++count] = NR }
    END { for (i = 1; i <= 3; i++) printf \"%dp;\", fit[int(count * i / 4) + 1] }" "$scores/source.txt")
pick() { sed -n "${lines:-1,3p}" "$1"; }
translations=$(pick "$scores/source.txt" | "$python" scripts/translate.py --model "$run")
{
    cat "$scores/table.txt"
    printf '\nThree sentences that the model has never seen: source, translation, reference\n'
    paste -d '\n' /dev/null <(pick "$scores/source.txt") <(echo "$translations") <(pick "$scores/reference.txt")
    cat <<END

model        $run/model          (.venv/bin/python scripts/translate.py --model $run)
scores       $scores/scores.json, with every translation beside it
curves       $run/curves.png     (.venv/bin/tensorboard --logdir $run/logs)
checkpoints  $run/checkpoints
END
} >"$report.partial"
cat "$report.partial"
mv "$report.partial" "$report"
echo "$asked" >"$run/quickstart.asked"
