"""python scripts/benchmark.py train|accuracy --config configs/X.yaml [--shapes tiny base big]

python scripts/benchmark.py decode --model runs/X --source F [--reference F] [--engines ours-int8 huggingface]

python scripts/benchmark.py prepare [--pairs 1000000] [--preparation.workers 2]

python scripts/benchmark.py attention|saturation [--report X.csv] [--plot X.png]
"""

from command_line import main

from pipeline.benchmarks.commands import accuracy, attention, decode, prepare, saturation, train

if __name__ == "__main__":
    commands = (train, accuracy, decode, prepare, attention, saturation)
    main({command.__name__: command for command in commands})
