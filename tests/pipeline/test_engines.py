"""Engines of others find what our own finds: the same tokens, the same scores, under the same limits."""

import random
import shutil
import sys
from dataclasses import replace

import ctranslate2
import pytest
import safetensors.torch
import torch

from models.config import ModelConfig
from models.linear_maps import cuts_sums
from pipeline.checkpoint import build_model
from pipeline.config import BatchingConfig, Configuration, SearchConfig, TokenizerConfig
from pipeline.data.tokenizer import Tokenizers, train_tokenizers
from pipeline.inference import export_ctranslate2, export_huggingface
from pipeline.inference.agreement import score_errors
from pipeline.inference.ctranslate2_engine import CTranslate2Engine
from pipeline.inference.engine import Source, TorchEngine
from pipeline.inference.exported import write_small_files
from pipeline.inference.huggingface_engine import HuggingFaceEngine
from pipeline.inference.translator import Translator
from pipeline.inference.vocabulary import Vocabulary

WORDS = "the cat sat on a mat while two old trees of that garden were seen in some café by her".split()
TEXT = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
JOINT = train_tokenizers(TEXT, TEXT, TokenizerConfig(vocab_size=60))
SEPARATE = Tokenizers(JOINT.source, train_tokenizers(TEXT, TEXT, TokenizerConfig(vocab_size=52)).target)

random.seed(1)
SOURCES = [Source(tuple(random.choices(range(4, 60), k=length))) for length in (11, 9, 9, 9, 6, 6, 6, 6, 3, 3, 3, 1, 1)]
SEARCH = SearchConfig(beam_size=4, max_length_ratio=1.0, max_length_extra=3, max_source_tokens=40)


def untrained(tokenizers=JOINT, seed=1, **model):
    """A model with weights large enough for it to have opinions, and to end some sentences and not others."""
    sizes = dict(encoder_layers=1, decoder_layers=2, d_model=32, d_ff=64, num_heads=4, max_positions=64)
    configuration = Configuration(
        tokenizer=TokenizerConfig(joint=tokenizers.joint),
        batching=BatchingConfig(max_source_tokens=40, max_target_tokens=50),
        model=ModelConfig(**sizes | model),
        search=SEARCH,
    )
    torch.manual_seed(seed)
    model = build_model(configuration, tokenizers).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embedding" in name:
                parameter[3] *= 3.0  # the end of sentence
            elif parameter.dim() > 1:
                parameter *= 3.0
            else:
                parameter += 0.2 * torch.randn_like(parameter)
    return model, tokenizers, configuration


def ours(model, tokenizers, *_):
    return TorchEngine(model, vocabulary=Vocabulary.of(tokenizers.target))


def exported(writer, folder, model, tokenizers, configuration, quantization="float32"):
    folder.mkdir(exist_ok=True)
    writer.refuse(configuration.model)
    writer.write(model, tokenizers, configuration, quantization, folder)
    write_small_files(folder, tokenizers, configuration)
    return folder


def in_ctranslate2(folder, *parts, **options):
    return CTranslate2Engine(exported(export_ctranslate2, folder, *parts), device="cpu", workers=1, **options)


def in_huggingface(folder, *parts):
    return HuggingFaceEngine(exported(export_huggingface, folder, *parts), device="cpu")


def assert_same(found, expected):
    assert [[(h.ids, h.finished) for h in row] for row in found] == [
        [(h.ids, h.finished) for h in row] for row in expected
    ]
    assert [h.score for row in found for h in row] == pytest.approx(
        [h.score for row in expected for h in row], abs=1e-4
    )


MECHANISMS = [
    dict(),
    dict(norm_order="post"),
    dict(positions="learned"),
    dict(positions="learned", norm_order="post"),
    dict(positions="rotary"),
    dict(positions="rotary", norm_order="post", num_key_value_heads=2),
    dict(positions="shaw", max_distance=3),
    dict(positions="alibi"),
    dict(positions="alibi", num_heads=2, norm_order="post", num_key_value_heads=1),
    dict(positions="none"),
    dict(activation="gelu"),
    dict(activation="swiglu"),
    dict(activation="swiglu", norm="rms", positions="rotary", num_key_value_heads=1),
    dict(norm="rms"),
    dict(norm="rms", norm_order="post"),
    dict(num_key_value_heads=2),
    dict(encoder_layers=3, decoder_layers=1),
    dict(tied_embeddings="target"),
    dict(tied_embeddings="none"),
]
"""All that CTranslate2 has, alone and some together."""


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_ctranslate2_finds_what_our_search_finds(mechanism, tmp_path):
    parts = untrained(**mechanism)
    own, theirs = ours(*parts), in_ctranslate2(tmp_path / "export", *parts)
    for beam_size, length_penalty in ((1, 1.0), (4, 0.0)):  # without a penalty both searches stop in the same place
        search = replace(SEARCH, beam_size=beam_size, length_penalty=length_penalty)
        theirs.require(search)
        assert_same(theirs.search(SOURCES, search), own.search(SOURCES, search))


@pytest.mark.parametrize("tied", ["target", "none"])
def test_vocabularies_may_differ(tied, tmp_path):
    parts = untrained(SEPARATE, tied_embeddings=tied)
    expected = ours(*parts).search(SOURCES, SEARCH)
    assert_same(in_huggingface(tmp_path / "hugging face", *parts).search(SOURCES, SEARCH), expected)
    search = replace(SEARCH, length_penalty=0.0)
    expected = ours(*parts).search(SOURCES, search)
    assert_same(in_ctranslate2(tmp_path / "ctranslate2", *parts).search(SOURCES, search), expected)


@pytest.mark.parametrize(
    "mechanism",
    [
        dict(),
        dict(norm_order="post"),
        dict(positions="learned"),
        dict(activation="gelu", tied_embeddings="target", encoder_layers=2, decoder_layers=1),
        dict(activation="gelu", norm_order="post", tied_embeddings="none"),
        dict(norm_order="post", tied_embeddings="target"),
    ],
    ids=str,
)
def test_hugging_face_finds_what_our_search_finds(mechanism, tmp_path):
    parts = untrained(**mechanism)
    own, theirs = ours(*parts), in_huggingface(tmp_path / "export", *parts)
    for beam_size in (1, 4):
        search = replace(SEARCH, beam_size=beam_size)
        theirs.require(search)
        assert_same(theirs.search(SOURCES, search), own.search(SOURCES, search))


def test_where_ctranslate2_stops_earlier_its_scores_are_still_the_models(tmp_path):
    parts = untrained(activation="swiglu")
    found = in_ctranslate2(tmp_path / "export", *parts).search(SOURCES, SEARCH, 4)
    expected = ours(*parts).search(SOURCES, SEARCH, 4)
    assert all(theirs[0].score <= ours[0].score + 1e-4 for theirs, ours in zip(found, expected, strict=True))
    sources = [source for source, row in zip(SOURCES, found, strict=True) for _ in row]
    hypotheses = [hypothesis for row in found for hypothesis in row]
    assert max(score_errors(parts[0], sources, hypotheses, SEARCH, Vocabulary.of(parts[1].target))) < 1e-4


@pytest.mark.parametrize("engine", [in_ctranslate2, in_huggingface])
def test_pieces_that_stand_for_no_text_are_never_found_and_have_no_share_of_the_probability(engine, tmp_path):
    parts = untrained(tied_embeddings="none")
    first = torch.tensor([[*SOURCES[0].ids, 3]]), torch.tensor([[2]])
    forbidden = list(Vocabulary.of(parts[1].target).forbidden_ids)
    assert len(forbidden) > 3, "some fill the vocabulary up"
    with torch.no_grad():
        liked = parts[0](*first)[0, 0, forbidden].sign()
        parts[0].output_embedding.weight[forbidden] *= 20.0 * liked[:, None]
    assert parts[0](*first).softmax(-1)[..., forbidden].sum() > 0.5
    search = replace(SEARCH, length_penalty=0.0)
    found = engine(tmp_path / "export", *parts).search(SOURCES, search)
    assert_same(found, ours(*parts).search(SOURCES, search))


@pytest.mark.parametrize("engine", [in_ctranslate2, in_huggingface])
@pytest.mark.parametrize("beam_size", [1, 4])
def test_each_sentence_has_its_own_limit_and_says_if_it_was_stopped(engine, beam_size, tmp_path):
    parts = untrained(seed=0)
    theirs = engine(tmp_path / "export", *parts)
    kinds = set()
    for ratio, extra in ((0.0, 1), (0.5, 0), (1.5, 1)):
        search = replace(
            SEARCH, beam_size=beam_size, length_penalty=0.0, max_length_ratio=ratio, max_length_extra=extra
        )
        found = theirs.search(SOURCES, search)
        assert_same(found, ours(*parts).search(SOURCES, search))
        for source, (best,) in zip(SOURCES, found, strict=True):
            limit = search.max_length(len(source.ids))
            assert len(best.ids) < limit if best.finished else len(best.ids) == limit
            kinds.add(best.finished)
    assert kinds == {True, False}


def test_long_sources_and_translations_are_not_cut(tmp_path):
    """CTranslate2's own limits are 1024 and 256 tokens."""
    parts = untrained(positions="rotary", decoder_layers=1)
    with torch.no_grad():
        parts[0].output_embedding.weight[3] = 0.0  # it hardly ends
    sources = [Source(SOURCES[0].ids * 100), SOURCES[0]]
    search = SearchConfig(beam_size=1, max_source_tokens=1100, max_length_ratio=0.0, max_length_extra=270)
    theirs = in_ctranslate2(tmp_path / "export", *parts)
    theirs.require(search)
    found = theirs.search(sources, search)
    assert_same(found, ours(*parts).search(sources, search))
    assert max(len(best.ids) for (best,) in found) == 270


@pytest.mark.parametrize("engine", [in_ctranslate2, in_huggingface])
def test_more_positions_than_were_exported_are_refused(engine, tmp_path):
    theirs = engine(tmp_path / "export", *untrained())
    theirs.require(replace(SEARCH, max_source_tokens=1000))
    with pytest.raises(
        ValueError, match=r"search.max_source_tokens=1100 .* 1103 positions, more than the 1024 of this"
    ):
        theirs.require(replace(SEARCH, max_source_tokens=1100))
    learned = engine(tmp_path / "learned", *untrained(positions="learned"))
    with pytest.raises(ValueError, match="more than model.max_positions=64"):
        learned.require(replace(SEARCH, max_source_tokens=64))


def test_a_model_is_exported_with_the_positions_that_its_search_needs(tmp_path):
    model, tokenizers, configuration = untrained()
    configuration = replace(configuration, search=replace(SEARCH, max_source_tokens=1100))
    for engine in (in_ctranslate2, in_huggingface):
        theirs = engine(tmp_path / engine.__name__, model, tokenizers, configuration)
        theirs.require(configuration.search)
        sources = [Source(SOURCES[0].ids * 100), SOURCES[0]]
        search = replace(configuration.search, beam_size=1, max_length_ratio=0.0)
        assert_same(theirs.search(sources, search), ours(model, tokenizers).search(sources, search))


@pytest.mark.parametrize("engine", [in_ctranslate2, in_huggingface])
@pytest.mark.parametrize(
    "setting",
    [
        dict(method="sampling"),
        dict(length_normalisation="gnmt"),
        dict(coverage_penalty=0.1),
        dict(diverse_groups=2),
        dict(min_length=2),
        dict(no_repeat_ngram=3),
        dict(repetition_penalty=1.2),
        dict(banned=["cat"]),
        dict(ensemble_weights=[1.0]),
    ],
    ids=str,
)
def test_what_other_engines_do_in_another_way_is_refused(engines, engine, setting):
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=f"search.{name}={value}".replace("[", r"\[")):
        engines[engine].require(replace(SEARCH, **setting))


@pytest.mark.parametrize("engine", [in_ctranslate2, in_huggingface])
def test_prefixes_and_terms_are_refused(engines, engine):
    for asked in (Source((5,), prefix=(6,)), Source((5,), terms=((6,),))):
        with pytest.raises(ValueError, match="a prefix or terms are not asked of"):
            engines[engine].search([asked], SEARCH)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def engines(exports):
    return {engine: engine(exports / engine.__name__, *untrained()) for engine in (in_ctranslate2, in_huggingface)}


@pytest.mark.parametrize("engine", [in_ctranslate2, in_huggingface])
def test_batches_change_nothing(engines, engine):
    search = replace(SEARCH, length_penalty=0.0)
    alone = engines[engine].search(SOURCES, replace(search, tokens_per_batch=1))
    assert_same(engines[engine].search(SOURCES, replace(search, tokens_per_batch=4096)), alone)


def test_workers_share_the_sentences_and_give_them_back_in_order(tmp_path):
    parts = untrained()
    one = in_ctranslate2(tmp_path / "export", *parts)
    three = CTranslate2Engine(tmp_path / "export", device="cpu", workers=3)
    assert_same(three.search(SOURCES, SEARCH, 4), one.search(SOURCES, SEARCH, 4))
    assert three.search([], SEARCH) == []


def test_rounded_weights_give_nearly_the_same_scores_in_any_batch(tmp_path):
    parts = untrained(positions="rotary")
    theirs = in_ctranslate2(tmp_path / "export", *parts, "int8")
    search = replace(SEARCH, beam_size=1)
    alone = theirs.search(SOURCES, replace(search, tokens_per_batch=1))
    assert_same(theirs.search(SOURCES, search), alone)
    errors = score_errors(parts[0], SOURCES, [best for (best,) in alone], search, Vocabulary.of(parts[1].target))
    coarse = cuts_sums()  # in CTranslate2 too, whose weights of 8 bits are multiplied by activations of 8 even there
    assert 0 < sum(errors) / len(errors) < (1.0 if coarse else 0.5)


@pytest.mark.parametrize("engine", [in_ctranslate2, in_huggingface])
def test_text_is_translated_as_by_our_own_engine(engine, tmp_path):
    model, tokenizers, configuration = untrained()
    configuration = replace(configuration, search=replace(SEARCH, length_penalty=0.0))
    text = [*TEXT[:3], "", " the  cat\tsat\u200b", " ".join(TEXT[:3]), "a mat", "ein </s> Zeichen"]
    with pytest.warns(UserWarning, match="sentence 6 has"):
        expected = Translator(ours(model, tokenizers), tokenizers, configuration).translate(text)
    with pytest.warns(UserWarning, match="sentence 6 has"):
        theirs = engine(tmp_path / "export", model, tokenizers, configuration)
        assert Translator(theirs, tokenizers, configuration).translate(text) == expected


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match="no model of CTranslate2: give a folder"):
        CTranslate2Engine(tmp_path)
    with pytest.raises(ValueError, match="no model of transformers: give a folder"):
        HuggingFaceEngine(tmp_path)


@pytest.mark.parametrize("damage", [lambda content: content[: len(content) // 2], lambda _: b"junk"])
@pytest.mark.parametrize(
    ("made_by", "file", "engine"),
    [(in_ctranslate2, "model.bin", CTranslate2Engine), (in_huggingface, "model.safetensors", HuggingFaceEngine)],
)
def test_a_damaged_export_is_told_in_a_line(engines, exports, tmp_path, made_by, file, engine, damage):
    folder = shutil.copytree(exports / made_by.__name__, tmp_path / "copy")
    (folder / file).write_bytes(damage((folder / file).read_bytes()))
    with pytest.raises(ValueError, match=r"copy: the export is damaged \(.*\): write it again with scripts/export.py"):
        engine(folder, device="cpu")


def test_weights_that_transformers_would_make_up_are_missed(engines, exports, tmp_path):
    folder = shutil.copytree(exports / "in_huggingface", tmp_path / "copy")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    del weights["model.encoder.layers.0.fc1.weight"]
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="the export is damaged .without model.encoder.layers.0.fc1.weight.: write it"):
        HuggingFaceEngine(folder, device="cpu")


def test_a_precision_that_the_device_has_not_is_refused(engines, exports, monkeypatch):
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {"float32", "int8"})
    message = "--precision: CTranslate2 has no bfloat16 on this cpu, only float32, int8: leave it out"
    with pytest.raises(ValueError, match=message):
        CTranslate2Engine(exports / "in_ctranslate2", device="cpu", compute_type="bfloat16")


def test_a_missing_engine_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, "pipeline.inference.ctranslate2_engine", raising=False)
    with pytest.raises(ValueError, match=r"engine=ctranslate2 needs ctranslate2: pip install 'dragoman\[export\]'"):
        Translator.load("somewhere", engine="ctranslate2")
    with pytest.raises(ValueError, match="one model: name one exported folder"):
        Translator.load(["a", "b"], engine="ctranslate2")
