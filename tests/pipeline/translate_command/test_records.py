"""Rows of JSON lines keep their fields, and get those that are asked for."""

import dataclasses
import json

import pytest

from pipeline.inference.attention import attended, word_alignment
from pipeline.inference.paragraphs import ParagraphTranslator
from pipeline.inference.records import Form
from pipeline.inference.translation import Part, Sentence, Translation
from tests.pipeline.translate_command.command import here


def objects(model, tmp_path, *lines, form=None, **search):
    (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    here(model, str(tmp_path / "in.jsonl"), tmp_path / "out", form or Form(json_in=True, json_out=True), **search)
    return (tmp_path / "out").read_text("utf-8").split("\n")[:-1]


def test_fields_go_through_as_they_were_written(model, tmp_path, translator):
    lines = [
        '{"id": 1.0e3, "source": "the cat", "n": [0.10, 12345678901234567890123, -0.0, {"source": {}}]}',
        '  {"\\u00e9": "\\ud800", "source" :"a mat" , "z": null}  ',
        "",
        '{"long": ' + "9" * 5000 + ', "source": ""}',
        '{"source": "a\u2028mat\\non a mat"}',
    ]
    [cat, mat, lines_in_one] = translator.translate(["the cat", "a mat", "a mat on a mat"])
    assert objects(model, tmp_path, *lines) == [
        lines[0][:-1] + f', "translation": {json.dumps(cat, ensure_ascii=False)}}}',
        lines[1].strip()[:-1] + f', "translation": {json.dumps(mat, ensure_ascii=False)}}}',
        "",
        lines[3][:-1] + ', "translation": ""}',
        lines[4][:-1] + f', "translation": {json.dumps(lines_in_one, ensure_ascii=False)}}}',
    ]


def test_what_is_asked_for_is_added_in_order(model, tmp_path, translator):
    asked = ["missing_terms", "tokens", "alignment"]
    form = Form(json_in=True, json_out=True, source_column="text", nbest=2, scores=True, add=asked)
    lines = ['{"text": "two old trees", "prefix": "a mat", "terms": ["seen"]}', '{"text": " ", "terms": ["seen"]}']
    first, blank = map(json.loads, objects(model, tmp_path, *lines, form=form))
    assert [*first] == ["text", "prefix", "terms", "translation", "score", "finished", "nbest", *asked]
    [found] = translator.hypotheses([Sentence("two old trees", "a mat", ("seen",))], None, 2)
    assert first["nbest"] == [
        {"text": each.text, "score": round(each.score, 4), "finished": each.finished} for each in found
    ]
    assert first["translation"] == found[0].text and first["translation"].startswith("a mat")
    assert (first["score"], first["finished"]) == (round(found[0].score, 4), found[0].finished)
    assert translator.tokenizers.target.processor.decode(first["tokens"]) == found[0].text
    assert first["missing_terms"] == [] and "seen" in found[0].text and blank["missing_terms"] == ["seen"]
    links = [tuple(map(int, link.split("-"))) for link in first["alignment"].split()]
    assert links and all(i < 3 and j < len(found[0].text.split()) for i, j in links)
    assert (blank["translation"], blank["alignment"], blank["tokens"]) == ("", "", [])


def test_a_dotted_path_leads_to_a_text_inside_unless_a_field_has_that_name(model, tmp_path, translator):
    form = Form(json_in=True, json_out=True, source_column="text.en")
    inside, outside = '{"text": {"de": ["Haus"], "en": "a mat"}}', '{"text.en": "seen", "text": {"en": "a mat"}}'
    found = [json.loads(line)["translation"] for line in objects(model, tmp_path, inside, outside, form=form)]
    assert found == translator.translate(["a mat", "seen"])
    for wrong in ('{"text": {"de": "Haus"}}', '{"text": [["en", "a mat"]]}', '{"en": "a mat"}'):
        with pytest.raises(ValueError, match="line 1: there is no field text.en: correct the row, or name"):
            objects(model, tmp_path, wrong, form=form)


def test_typed_objects_are_read_as_objects(model, tmp_path, translator):
    here(model, ['{"source": "a mat"}'], tmp_path / "out", Form.chosen("jsonl", "", False))
    assert json.loads((tmp_path / "out").read_text("utf-8"))["translation"] == translator.translate(["a mat"])[0]


@pytest.mark.parametrize(
    "text, firsts",
    [("the cat sat on a mat. two old trees of that garden.", [0, 6]),
     ("the cat sat on a mat.  \n\n1. two old trees of that garden.\t-", [0, 7])],
    ids=["over-long", "document"],
)  # fmt: skip
def test_a_text_translated_in_parts_has_the_alignments_of_its_parts(translator, text, firsts):
    if "\n" in text:
        [[found]] = ParagraphTranslator(translator).hypotheses([text])
    else:
        with pytest.warns(UserWarning, match="in 2 parts"):
            [[found]] = translator.hypotheses([text], dataclasses.replace(translator.search, max_source_tokens=14))
    sentences = ["the cat sat on a mat.", "two old trees of that garden."]
    targets = translator.translate(sentences)
    expected = {(6, len(targets[0].split())), (13, len(found.text.split()) - 1)} if "\n" in text else set()
    begins = [0, len(found.text[: found.text.rindex(targets[1])].split())]
    for sentence, target, i, j in zip(sentences, targets, firsts, begins, strict=True):
        expected |= {(i + a, j + b) for a, b in attended(translator, sentence, target).alignment()}
    assert word_alignment(translator, found) == sorted(expected)


def test_words_are_numbered_across_parts_that_meet_within_a_word(translator, monkeypatch):
    one_by_one = lambda _, source, target: [(i, i) for i in range(len(source.split()))]  # noqa: E731
    monkeypatch.setattr("pipeline.inference.attention._links", one_by_one)
    parts = [
        ("See", "Siehe"),
        (" (", " ("),
        ("our page", "unsere Seite"),
        (")", ")"),
        ("x.y. ", "x.y. "),
        ("Go", "Geh"),
    ]
    found = Translation("", 0.0, True, parts=tuple(Part(*each, kept=each[0] == each[1]) for each in parts))
    assert word_alignment(translator, found) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert word_alignment(translator, Translation("", 0.0, True)) == []


def test_what_a_translation_lacks_of_what_was_asked_is_told(model, tmp_path):
    form = Form(json_in=True, json_out=True, add=["missing_terms", "missing_prefix"])
    with pytest.warns(UserWarning, match="cannot spell"):
        found = objects(
            model,
            tmp_path,
            '{"source": "the cat", "prefix": "a mat", "terms": ["seen"]}',
            '{"source": "the cat", "prefix": "Ж a", "terms": ["Ж"]}',
            form=form,
        )
    lacks = [(row["missing_prefix"], row["missing_terms"]) for row in map(json.loads, found)]
    assert lacks == [("", []), ("Ж a", ["Ж"])]


def test_lines_of_text_become_objects(model, tmp_path, translator):
    (tmp_path / "in").write_text('say "a"\n\n')
    here(model, str(tmp_path / "in"), tmp_path / "out", Form(json_out=True, scores=True))
    first, blank = map(json.loads, (tmp_path / "out").read_text("utf-8").splitlines())
    assert first == {"source": 'say "a"', **{name: first[name] for name in ("translation", "score", "finished")}}
    assert first["translation"] == translator.translate(['say "a"'])[0]
    assert blank == {"source": "", "translation": "", "score": 0.0, "finished": True}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("the cat", "line 2, character 1: Expecting value: every line must be one JSON object"),
        ('{"source": "a"} {"source": "b"}', "line 2, character 17: Extra data: every line must be one JSON object"),
        ('{"source": "cut', "line 2, character 12: Unterminated string starting at: every line must be one"),
        ("[" * 100_000, "line 2: nested too deeply: make it simpler"),
        ('[["source", "the cat"]]', 'line 2 is no JSON object: write one like {"source": "a sentence"}'),
        ('{"text": "a"}', "line 2: there is no field source: correct the row, or name the field .* by --source_column"),
        ('{"source": null}', "line 2: null in source where text is needed: correct the row"),
        ('{"source": 5}', "line 2: a number in source where text is needed"),
        ('{"source": {"en": "a"}}', "line 2: no text in source where text is needed"),
        ('{"source": "a", "n": [-Infinity]}', "line 2: -Infinity is no JSON, whatever Python writes: write null"),
        ('{"source": "\\ud83d"}', "line 2: half of a surrogate pair in source is not text: correct the row"),
        ('{"source": "a", "source": "b"}', "line 2: there are two fields source: leave one"),
        ('{"source": "a", "translation": "b"}', "line 2: there is a field translation already, .*: rename it"),
        ('{"source": "a", "prefix": ["b"]}', "line 2: no text in prefix where text is needed"),
        ('{"source": "a", "terms": "b"}', r'line 2: terms is no list: write one like \["a", "b"\], or null'),
        ('{"source": "a", "terms": [true]}', "line 2: true or false in terms where text is needed"),
    ],
)
def test_a_wrong_row_is_named_before_anything_is_written(model, tmp_path, line, message):
    with pytest.raises(ValueError, match=rf"in.jsonl, {message}"):
        objects(model, tmp_path, '{"source": "the cat", "terms": null, "prefix": null}', line)
    assert [*tmp_path.iterdir()] == [tmp_path / "in.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "json_in", "json_out"),
    [
        (("auto", "in.jsonl", False), True, True),
        (("auto", "in.jsonl.gz", False), True, True),
        (("text", "in.jsonl", True), False, True),
        (("jsonl", "-", False), True, True),
        (("auto", "-", False), False, False),
        (("auto", "in.txt", False, "source", 1, False, ["tokens"]), False, True),
    ],
)
def test_the_format_is_known_by_the_name_or_is_given(arguments, json_in, json_out):
    form = Form.chosen(*arguments)
    assert (form.json_in, form.json_out) == (json_in, json_out)
