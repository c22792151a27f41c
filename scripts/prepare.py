"""python scripts/prepare.py --config configs/quickstart.yaml [--tokenizer.vocab_size 4000 ...]"""

import sys

from command_line import main

from pipeline.config import Configuration


def prepare_corpus(configuration: Configuration):
    """Read, clean, split and encode a corpus into the folder output.data, and report what became of it."""
    from pipeline.data.preparation import prepare, print_report  # slow to import: not for --help

    print_report(prepare(configuration).report)
    print(f"all of it, with examples: {configuration.output.data}/report.html", file=sys.stderr)


if __name__ == "__main__":
    main(prepare_corpus)
