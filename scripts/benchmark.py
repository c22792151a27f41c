"""python scripts/benchmark.py train|accuracy --config configs/X.yaml [--shapes tiny base big]

python scripts/benchmark.py attention|saturation [--report X.csv] [--plot X.png]
"""

from pipeline.benchmarks.commands import accuracy, attention, saturation, train
from pipeline.cli import main

if __name__ == "__main__":
    main({"train": train, "accuracy": accuracy, "attention": attention, "saturation": saturation})
