"""python scripts/evaluate.py --model runs/X [runs/Y ...] [--source F --reference F] | --hypothesis F --reference F"""

from command_line import Given, main

from pipeline.config import SearchConfig
from pipeline.inference.evaluation import evaluate_files, show
from pipeline.inference.outputs import require_output


def evaluate(
    model: list[str] = [],
    source: str = "",
    reference: str = "",
    hypothesis: list[str] = [],
    target_language: str = "",
    to: str = "",
    compatibility: bool = False,
    json: str = "",
    search: Given[SearchConfig] = Given(),
):
    """BLEU, chrF and TER with sacreBLEU's signatures: of models on their held-out test set, or of files.

    Args:
        model: run folders, model folders or checkpoints; the first is what the others are compared with
        source: sentences to translate instead of the held-out ones, one a line
        reference: their translations by people, as they are: neither tokenised nor lower-cased
        hypothesis: files of translations to score, without a model
        target_language: code that decides how BLEU tells words (zh, ja, ko); by default the model's
        to: of models of several languages (corpora.tags), the one to translate into; without it, all held-out ones
        compatibility: add the lower-cased BLEU that older papers' comes closest to
        json: file for the scores in JSON, an object, or a list of one for each direction; - for stdout
    """
    require_output("json", json, [source, reference, *hypothesis, *model])
    if model and not hypothesis:
        from pipeline.inference.held_out import evaluate_models  # slow to import: not for --help

        show(evaluate_models(model, source, reference, target_language, compatibility, search, to), json)
    elif hypothesis and reference and not (model or source or to or search):
        show([evaluate_files(hypothesis, reference, target_language, compatibility)], json)
    else:
        raise ValueError(
            "give --model runs/X, or --hypothesis FILE and --reference FILE, without what only a model has a use for"
        )


if __name__ == "__main__":
    main(evaluate)
