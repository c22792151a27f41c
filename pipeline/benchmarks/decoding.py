"""How fast a trained model translates: by our search, and by the engines of others from an export of the same weights.

All take turns on the same sentences and are timed from text to text; what the search alone takes of that, pieces in and
pieces out, is what others time, and stands beside it. ``generate`` and ``translate_batch`` are called as a plain script
would: 32 sentences of like length at a time, with the model's settings of the search, and their own rule for the
end of a beam.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import torch

from models.search import Hypothesis
from pipeline.checkpoint import LoadedModel, load_model
from pipeline.config import Configuration, SearchConfig, require
from pipeline.data.batching import pad_sources
from pipeline.data.cleaning import normalise
from pipeline.data.lines import read_lines
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizers
from pipeline.inference.engine import Engine, TorchEngine, default_device
from pipeline.inference.evaluation import bleu_tokenizer, score
from pipeline.inference.export import export
from pipeline.inference.held_out import given_set
from pipeline.inference.sharding import SeveralDevices, on_devices
from pipeline.inference.translator import Translator
from pipeline.inference.vocabulary import Vocabulary
from pipeline.training.fit import say

if TYPE_CHECKING:
    from transformers import GenerationConfig

BATCH = 32
"""Sentences at a time, for the engines that count these."""

ON_A_GPU = ("ours-bf16", "huggingface")
"""Engines that are measured there, both in bf16."""

LIMITS = (
    "Most tokens of a translation: of each sentence's length in our engines and our batches, of a batch's longest "
    "sentence in huggingface, of the file's longest in ctranslate2."
)
"""What engines do not have alike: a limit is ``search.max_length_ratio`` times a length, + ``max_length_extra``."""

Translate = Callable[[Sequence[str]], tuple[list[str], float]]
"""Sentences to their translations, with the seconds that the search took of it; 0 where they are not known."""


class Contestant(NamedTuple):
    """One model in one engine."""

    labels: dict[str, str]
    translate: Translate


def decoding(
    paths: Sequence[str],
    source: str,
    reference: str,
    beam_size: int,
    engines: Sequence[str],
    rounds: int,
    batch_one_sentences: int,
) -> tuple[list[dict], str]:
    """A row for each model and engine, medians over rounds, and the signature of the BLEU in it.

    ``workers`` says how the cores were shared: ``2 x 1`` is two of one thread each. ``sentences_per_second`` and
    ``target_tokens_per_second`` (of the translation as our tokenizer divides it, and its end) are from text to text
    over the file, ``search_only`` without tokenisation, and ``batch_1`` from text to text of one sentence after the
    other. ``times_X`` is how many times as fast a row is as X's fastest, ``equal_lines`` how many translations are ours
    in 32 bits.

    Raises:
        ValueError, OSError: there is no such model or file, an export refuses the model, or a sentence is too long.
    """
    if torch.cuda.is_available():
        engines = [name for name in engines if name in ON_A_GPU]
        require(len(engines) > 0, f"--engines: on a GPU choose among {', '.join(ON_A_GPU)}")
    sentences, references = given_set(source, reference)[1:3] if reference else (list(read_lines(source)), [])
    require(len(sentences) > 0, f"{source} has no sentences")
    threads = torch.get_num_threads()
    rows: list[dict] = []
    signatures: dict[str, None] = {}
    with TemporaryDirectory() as folder, ExitStack() as processes:
        lists = []
        for number, path in enumerate(paths):
            loaded = load_model(path)
            search = replace(loaded.configuration.search, beam_size=beam_size)
            loaded = loaded._replace(configuration=replace(loaded.configuration, search=search))
            require_short(source, sentences, loaded)
            bleu_tokenizer(loaded.configuration.corpora.target_language)
            say(f"{path}: exporting and loading")
            racing = contestants(path, loaded, engines, threads, Path(folder, str(number)), processes)
            lists.append((path, loaded, list(racing)))
        torch.set_num_threads(threads)  # whoever loads a model into CTranslate2 has as many as its workers from then on
        for path, loaded, racing in lists:
            say(f"{path}: {len(racing)} engines translate {len(sentences)} sentences, {rounds} times")
            measured = race(racing, sentences, rounds, batch_one_sentences)
            rows += compared([{"model": path, **row} for row in measured], loaded, references, signatures)
    return rows, ", ".join(signatures)


def require_short(source: str, sentences: Sequence[str], loaded: LoadedModel) -> None:
    """:raises ValueError: a sentence is one that our translator would divide, and others would not."""
    most = loaded.configuration.search.max_source_tokens
    for line, ids in enumerate(encoded(sentences, loaded.tokenizers, loaded.configuration), 1):
        require(
            len(ids) <= most,
            f"{source}, line {line}: {len(ids)} tokens are more than search.max_source_tokens={most}: leave it out",
        )


def contestants(
    path: str, loaded: LoadedModel, engines: Sequence[str], threads: int, folder: Path, processes: ExitStack
) -> Iterator[Contestant]:
    """The model in every engine; those of others take it from exports in ``folder``. Processes that are started end
    with ``processes``."""
    model, *ours, _ = loaded  # tokenizers and configuration
    device = default_device()
    changed = {"beam_size": loaded.configuration.search.beam_size}
    for format in "ctranslate2", "huggingface":
        if any(name.startswith(format) for name in engines):
            export(path, format, output=str(folder / format), search=changed)
    model.to(device)
    for name in sorted(set(engines)):
        family, _, kind = name.partition("-")
        if family == "ours":
            workers = threads if device.type == "cpu" else 1
            engine = TorchEngine(model, kind, workers, Vocabulary.of(loaded.tokenizers.target))
            layout = f"{threads} x 1" if device.type == "cpu" else ""
            yield Contestant({"engine": name, "workers": layout}, TextToText(engine, *ours))
            if device.type == "cpu" and threads > 1:
                devices = processes.enter_context(on_devices(partial(Translator.load, path, precision=kind), threads))
                labels = {"engine": name, "workers": f"{layout}, processes"}
                yield Contestant(labels, Processes(devices, loaded.configuration.search))
        elif family == "huggingface":
            layout = f"1 x {threads}" if device.type == "cpu" else ""
            yield Contestant({"engine": name, "workers": layout}, Generate(folder / family, *ours))
        else:
            from pipeline.inference.ctranslate2_engine import CTranslate2Engine

            for workers, each in sorted({(1, threads), (threads, 1)}):
                labels = {"engine": name, "workers": f"{workers} x {each}"}
                yield Contestant(labels, TranslateBatch(folder / family, kind, workers, each, *ours))
            engine = CTranslate2Engine(folder / family, "cpu", kind, threads)
            labels = {"engine": f"{name}, our batches", "workers": f"{threads} x 1"}
            yield Contestant(labels, TextToText(engine, *ours))


def race(
    racing: Sequence[Contestant], sentences: Sequence[str], rounds: int, batch_one_sentences: int
) -> Iterator[dict]:
    """Everyone's labels with the speeds, and the ``translations``. Before anyone is timed, all have translated once."""
    some = sentences[:batch_one_sentences]
    for each in racing:
        each.translate(sentences)
        each.translate(sentences[:1])
    seconds: list[list[tuple[float, float, float]]] = [[] for _ in racing]
    texts: list[list[str]] = [[] for _ in racing]
    for _ in range(rounds):
        for place, (_, translate) in enumerate(racing):
            start = time.perf_counter()
            texts[place], searching = translate(sentences)
            between = time.perf_counter()
            for sentence in some:
                translate([sentence])
            seconds[place].append((between - start, searching, time.perf_counter() - between))
    for each, measured, translations in zip(racing, seconds, texts, strict=True):
        whole, searching, one_by_one = map(median, zip(*measured, strict=True))
        yield {
            **each.labels,
            "sentences_per_second": len(sentences) / whole,
            "search_only_sentences_per_second": len(sentences) / searching if searching else "",
            "batch_1_sentences_per_second": len(some) / one_by_one,
            "translations": translations,
        }


def compared(
    rows: Sequence[dict], loaded: LoadedModel, references: Sequence[str], signatures: dict[str, None]
) -> list[dict]:
    """The rows with figures of their ``translations`` in place of these; notes the signature of BLEU."""
    fastest: dict[str, float] = {}
    for row in rows:
        fastest[row["engine"]] = max(row["sentences_per_second"], fastest.get(row["engine"], 0.0))
    ours = next((row["translations"] for row in rows if row["engine"] == "ours-32"), None)
    told = []
    for row in rows:
        texts, speed = row.pop("translations"), row["sentences_per_second"]
        tokens = sum(map(len, loaded.tokenizers.target.encode(texts))) + len(texts)
        row["target_tokens_per_second"] = speed * tokens / len(texts)
        for name in "huggingface", "ctranslate2-float32":
            if name in fastest:
                row[f"times_{name}"] = speed / fastest[name]
        if references:
            bleu = score(texts, references, loaded.configuration.corpora.target_language, ("bleu",))["bleu"]
            row["BLEU"] = bleu.value
            signatures[bleu.signature] = None
        if ours is not None:
            row["equal_lines"] = sum(map(str.__eq__, texts, ours))
        told.append(row)
    return told


def encoded(
    sentences: Sequence[str], tokenizers: Tokenizers, configuration: Configuration, kind: type = int
) -> list[list]:
    """Ids of the source's pieces, or, of ``kind`` str, the pieces."""
    texts = [normalise(text, configuration.cleaning.unicode_form) for text in sentences]
    return tokenizers.source.processor.encode(texts, out_type=kind)


class TextToText:
    """An engine of ours behind a translator, with a watch at its search."""

    def __init__(self, engine: Engine, tokenizers: Tokenizers, configuration: Configuration):
        self.search, self.seconds = engine.search, 0.0
        engine.search = self._timed
        self.translator = Translator(engine, tokenizers, configuration)

    def __call__(self, sentences: Sequence[str]) -> tuple[list[str], float]:
        return self.translator.translate(sentences), self.seconds

    def _timed(self, *question) -> list[list[Hypothesis]]:
        start = time.perf_counter()
        found = self.search(*question)
        self.seconds = time.perf_counter() - start
        return found


class Processes:
    """Our engine in several processes, as ``translate.py --devices`` has them; sentences are dealt out by length."""

    def __init__(self, devices: SeveralDevices, search: SearchConfig):
        self.devices, self.search = devices, search

    def __call__(self, sentences: Sequence[str]) -> tuple[list[str], float]:
        order = sorted(range(len(sentences)), key=lambda row: len(sentences[row]))
        shares = [order[first :: self.devices.num_devices] for first in range(self.devices.num_devices)]
        parts = [[sentences[row] for row in share] for share in shares if share]
        found = chain.from_iterable(self.devices.map(partial(Translator.translate, search=self.search), parts))
        translations = dict(zip(chain.from_iterable(shares), found, strict=True))
        return [translations[row] for row in range(len(sentences))], 0.0


class Generate:
    """Hugging Face's ``generate``, on a GPU in bf16."""

    def __init__(self, folder: Path, tokenizers: Tokenizers, configuration: Configuration):
        from transformers import AutoModelForSeq2SeqLM

        self.device = default_device()
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True).to(self.device).eval()
        self.model = model.float() if self.device.type == "cpu" else model.bfloat16()
        self.tokenizers, self.configuration = tokenizers, configuration
        self.forbidden_ids = Vocabulary.of(tokenizers.target).forbidden_ids

    def __call__(self, sentences: Sequence[str]) -> tuple[list[str], float]:
        ids = encoded(sentences, self.tokenizers, self.configuration)
        start = time.perf_counter()
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        batches = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
        found = chain.from_iterable(self._search([ids[row] for row in rows]) for rows in batches)
        targets = dict(zip(order, found, strict=True))
        seconds = time.perf_counter() - start
        return self.tokenizers.target.decode([targets[row] for row in range(len(ids))]), seconds

    @torch.inference_mode()
    def _search(self, sources: list[list[int]]) -> list[list[int]]:
        ids = pad_sources(sources).to(self.device)
        settings = self._settings(max(map(len, sources)))
        output = self.model.generate(ids, attention_mask=ids != PAD_ID, generation_config=settings)
        return [[id for id in row if id not in (*self.forbidden_ids, EOS_ID)] for row in output.tolist()]

    def _settings(self, longest: int) -> "GenerationConfig":
        from transformers import GenerationConfig

        search = self.configuration.search
        return GenerationConfig(
            num_beams=search.beam_size,
            length_penalty=_length_penalty(search),
            max_length=1 + search.max_length(longest),
            bad_words_ids=[[id] for id in self.forbidden_ids],
            pad_token_id=PAD_ID,
            bos_token_id=BOS_ID,
            eos_token_id=EOS_ID,
            decoder_start_token_id=BOS_ID,
        )


class TranslateBatch:
    """CTranslate2's ``translate_batch``."""

    def __init__(
        self,
        folder: Path,
        compute_type: str,
        workers: int,
        threads: int,
        tokenizers: Tokenizers,
        configuration: Configuration,
    ):
        from ctranslate2 import Translator as CTranslate2Translator

        self.translator = CTranslate2Translator(
            str(folder), "cpu", compute_type=compute_type, inter_threads=workers, intra_threads=threads
        )
        self.tokenizers, self.configuration = tokenizers, configuration

    def __call__(self, sentences: Sequence[str]) -> tuple[list[str], float]:
        pieces, search = encoded(sentences, self.tokenizers, self.configuration, str), self.configuration.search
        start = time.perf_counter()
        found = self.translator.translate_batch(
            pieces,
            beam_size=search.beam_size,
            length_penalty=_length_penalty(search),
            max_batch_size=BATCH,
            max_input_length=0,
            max_decoding_length=search.max_length(max(map(len, pieces))),
        )
        seconds = time.perf_counter() - start
        return self.tokenizers.target.processor.decode([result.hypotheses[0] for result in found]), seconds


def _length_penalty(search: SearchConfig) -> float:
    return search.length_penalty if search.length_normalisation == "average" else 0.0
