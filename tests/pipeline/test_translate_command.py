"""The translate command as it is lived with: real processes on a tiny model, and what they share called directly."""

import dataclasses
import gzip
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from models.config import ModelConfig
from pipeline.checkpoint import build_model, save_model
from pipeline.config import Configuration, SearchConfig, TokenizerConfig
from pipeline.data.tokenizer import train_tokenizers
from pipeline.inference import documents
from pipeline.inference.attention import attended, word_alignment
from pipeline.inference.paragraphs import ParagraphTranslator
from pipeline.inference.records import Form
from pipeline.inference.sharding import on_devices
from pipeline.inference.translation import Part, Sentence, Translation
from pipeline.inference.translator import Translator

ROOT = Path(__file__).parents[2]
WORDS = "the cat sat on a mat while two old trees of that garden seen in café".split()
STOPPED = r"stopped: \d+ rows are in .*out.partial, and the same command goes on there\n"
SLOWLY = ["--search.beam_size", 1, "--search.tokens_per_batch", 40]  # 5 lines at a time
WAIT = 60  # seconds that a process may take before a test gives it up


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of an untrained model with weights large enough for it to have opinions."""
    configuration = Configuration(
        tokenizer=TokenizerConfig(vocab_size=60),
        model=ModelConfig(encoder_layers=1, decoder_layers=2, d_model=16, d_ff=32, num_heads=2),
        search=SearchConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3, max_source_tokens=40),
    )
    text = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
    tokenizers = train_tokenizers(text, text, configuration.tokenizer)
    torch.manual_seed(6)
    model = build_model(configuration, tokenizers).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    folder = tmp_path_factory.mktemp("run") / "model"
    save_model(folder, model, tokenizers, configuration, {})
    return folder


@pytest.fixture(scope="module")
def translator(model):
    return Translator.load(model, device="cpu")


def sentence(number: int) -> str:
    return " ".join(WORDS[(number * 7 + i * (number % 5 + 1)) % 16] for i in range(1 + number % 6))


def text_of(count: int) -> str:
    """So many lines, of which every fourth is blank."""
    return "".join(f"{sentence(i) if i % 4 else ''}\n" for i in range(count))


def start(model, *arguments, **options):
    command = [sys.executable, str(ROOT / "scripts/translate.py"), "--model", str(model), *map(str, arguments)]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    quiet = {"PYTHONWARNINGS": "ignore:the length limit"}  # within which an untrained model seldom ends
    ours = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | quiet
    environment = os.environ | ours | options.pop("environment", {})
    return subprocess.Popen(command, env=environment, **pipes | options)


def run(model, *arguments, stdin=b"", **options):
    with start(model, *arguments, **options) as process:
        out, err = process.communicate(stdin, timeout=WAIT)
    return process.returncode, out, err.decode()


def here(model, source, output, form=None, devices=1, **search):
    """The same command in this process."""
    how = {"engine": "dragoman", "precision": "auto", "document": False, "protect": []}
    documents.translate([str(model)], source, str(output), form or Form(), search, devices, **how)


def until(condition, process=None):
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < WAIT and (process is None or process.poll() is None), process.communicate()
        time.sleep(0.01)


def living(group: int) -> dict[int, str]:
    """The processes of a group that have not ended, and their commands."""
    columns = [word for name in ("pgid", "pid", "stat", "args") for word in ("-o", f"{name}=")]
    rows = subprocess.run(["ps", "-Aww", *columns], capture_output=True, text=True, check=True).stdout.splitlines()
    found = [row.split(None, 3) for row in rows]
    return {int(pid): args for pgid, pid, state, args in found if int(pgid) == group and not state.startswith("Z")}


# Lines


def test_lines_in_are_lines_out_under_any_locale(model, translator):
    lines = ["", "the cat sat", "\ufeffcafé", "a\u2028mat\x85on\x0ca\x0bgarden\rseen", "", "", "\x00", "garden", ""]
    stdin = "\r\n".join(lines[:-1]).encode()  # the last line has no end
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    found = run(model, stdin=stdin, environment=locale)
    expected = "".join(text + "\n" for text in translator.translate(lines[:-1])).encode()
    assert found == (0, expected, "") and expected.count(b"\n") == 8
    assert [i for i, text in enumerate(expected.split(b"\n")) if not text] == [0, 4, 5, 6, 8]
    typed = run(model, *(line for line in lines[:-1] if "\0" not in line), environment=locale)
    assert typed == (0, b"".join(row for i, row in enumerate(expected.splitlines(keepends=True)) if i != 6), "")


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("\n", 1), ("seen\na mat", 2), ("\n\n\n", 3)])
def test_every_line_has_an_end_and_an_empty_file_has_none(model, tmp_path, capsys, text, expected):
    (tmp_path / "in").write_text(text)
    here(model, str(tmp_path / "in"), "-")
    out = capsys.readouterr().out
    here(model, str(tmp_path / "in"), tmp_path / "out")
    assert out.count("\n") == expected and (not out or out.endswith("\n"))
    assert (tmp_path / "out").read_text("utf-8") == out


@pytest.fixture(scope="module")
def many(model, tmp_path_factory):
    """700 lines, and their translations in one go."""
    source = tmp_path_factory.mktemp("many") / "in.txt"
    source.write_text(text_of(700), encoding="utf-8")
    here(model, str(source), source.with_name("out.txt"), beam_size=1)
    return source


def test_no_chunk_or_batch_changes_the_file(model, many, tmp_path):
    whole = many.with_name("out.txt").read_bytes()
    lines = whole.decode().split("\n")
    assert lines.pop() == "" and [i for i, line in enumerate(lines) if not line] == [*range(0, 700, 4)]
    for budget in (150, 1_000_000):
        here(model, str(many), tmp_path / "out", beam_size=1, tokens_per_batch=budget)
        assert (tmp_path / "out").read_bytes() == whole
    rows = many.read_bytes().splitlines(keepends=True)
    for half, part in (("first", rows[:350]), ("second", rows[350:])):
        with gzip.open(tmp_path / f"{half}.gz", "wb") as file:
            file.write(b"".join(part))
        here(model, str(tmp_path / f"{half}.gz"), tmp_path / f"{half}.out.gz", beam_size=1, tokens_per_batch=200)
    halves = [gzip.decompress((tmp_path / f"{half}.out.gz").read_bytes()) for half in ("first", "second")]
    assert b"".join(halves) == whole


def test_a_table_has_rows_for_every_line(model, tmp_path):
    (tmp_path / "in").write_text("\nthe cat\n\n")
    for form, count in ((Form(nbest=2), 2), (Form(scores=True), 1)):
        here(model, str(tmp_path / "in"), tmp_path / "out", form)
        rows = [line.split("\t") for line in (tmp_path / "out").read_text("utf-8").splitlines()]
        assert [row[0] for row in rows] == ["1", *"22"[:count], "3"]
        assert rows[0] == ["1", "0.0000", "end", ""] and rows[-1] == ["3", "0.0000", "end", ""]
        assert all(re.fullmatch(r"-\d+\.\d{4}", row[1]) and row[2] in ("end", "limit") for row in rows[1:-1])


def test_warnings_name_the_file_and_line(model, tmp_path, monkeypatch):
    long = " ".join(WORDS * 3)
    (tmp_path / "in").write_text("seen\n" * 8 + long + "\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="/in, line 9 has 57 source tokens"):
        here(model, str(tmp_path / "in"), tmp_path / "out", tokens_per_batch=6)
    monkeypatch.setattr(sys, "stdin", open(tmp_path / "in", encoding="utf-8"))  # noqa: SIM115
    with pytest.warns(UserWarning, match="the standard input, line 9 has 57 source tokens"):
        here(model, "-", tmp_path / "out", tokens_per_batch=6)
    with pytest.warns(UserWarning, match="sentence 2 has 57 source tokens"):
        here(model, ["seen", long], tmp_path / "out")


def test_settings_come_with_the_model(model, tmp_path, translator):
    """Of cleaning, tokenizer and search: no option repeats what training chose."""
    lines = ["“the” cat\u00a0sat", "cafe\u0301", "THE  CAT", "the\tcat", "gar\u00adden"]
    (tmp_path / "in").write_text("\n".join(lines) + "\n", encoding="utf-8")
    here(model, str(tmp_path / "in"), tmp_path / "out")
    assert (tmp_path / "out").read_text("utf-8").splitlines() == translator.translate(lines)
    assert "▁" not in (tmp_path / "out").read_text("utf-8")


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_what_is_open_already_is_gone_on_with_and_never_replaced(model, tmp_path, translator, name):
    (tmp_path / "in").write_text("the cat\n")
    with open(tmp_path / "log", "w") as log:
        print("before", file=log, flush=True)
        here(model, str(tmp_path / "in"), name.format(log.fileno()))
        print("after", file=log)
    assert (tmp_path / "log").read_text("utf-8") == f"before\n{translator.translate(['the cat'])[0]}\nafter\n"
    assert {path.name for path in tmp_path.iterdir()} == {"in", "log"}


def test_the_standard_streams_have_names_in_dev(capfd):
    for name in ("-", "/dev/stdout", "/dev/stderr", "/dev/null"):
        with documents.written(name) as file:
            print(name, file=file, flush=True)
    assert capfd.readouterr() == ("-\n/dev/stdout\n", "/dev/stderr\n")


# What comes in slowly


def test_who_types_is_answered_line_by_line_until_ctrl_c(model, translator):
    with start(model) as process:
        for number in range(1, 4):
            process.stdin.write(f"{sentence(number)}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{translator.translate([sentence(number)])[0]}\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_a_fast_pipe_is_read_in_few_chunks(model, many, monkeypatch, capsys):
    sizes = []
    answer = Form.answer
    monkeypatch.setattr(
        Form, "answer", lambda self, *rest, **more: sizes.append(len(rest[1].rows)) or answer(self, *rest, **more)
    )
    monkeypatch.setattr(sys, "stdin", open(many, encoding="utf-8"))  # noqa: SIM115
    here(model, "-", "-", beam_size=1)
    assert capsys.readouterr().out == many.with_name("out.txt").read_text("utf-8")
    assert sizes == [700]


def test_lines_before_one_that_is_not_utf_8_are_answered_or_nothing_is_left(model, tmp_path, translator):
    stdin = b"the cat\na mat\nM\xfcll\nseen\n"
    complaint = r"translate.py: error: the standard input, line 3: byte 0xfc at position 2 is not utf-8: .*\n"
    status, out, err = run(model, stdin=stdin)
    assert status == 1 and out.decode().splitlines() == translator.translate(["the cat", "a mat"])
    assert re.fullmatch(complaint, err)
    (tmp_path / "in").write_bytes(stdin)
    with pytest.raises(ValueError, match=r"in, line 3: byte 0xfc"):
        here(model, str(tmp_path / "in"), tmp_path / "out")
    assert [*tmp_path.iterdir()] == [tmp_path / "in"]


def test_an_input_is_not_written_over(model, tmp_path):
    (tmp_path / "in").write_text("the cat\n")
    with pytest.raises(ValueError, match="in is an input itself, which would be lost: name another file"):
        here(model, str(tmp_path / "in"), tmp_path / "." / "in")
    assert (tmp_path / "in").read_text() == "the cat\n"


def test_an_argument_that_is_not_utf_8_is_named(model, tmp_path):
    with pytest.raises(ValueError, match="sentence 2: byte 0xfc is not utf-8: convert it"):
        here(model, ["the cat", os.fsdecode(b"M\xfcll")], tmp_path / "out")


def test_a_closed_standard_input_is_an_error_of_one_line(model):
    command = f"{sys.executable} scripts/translate.py --model {model} <&-"
    found = subprocess.run(command, shell=True, capture_output=True, cwd=ROOT, text=True)
    assert found.returncode == 1 and found.stdout == ""
    assert found.stderr == (
        "translate.py: error: the standard input is closed: give it something to read, or name a file\n"
    )


def test_a_reader_that_leaves_ends_it_quietly(model):
    with start(model, "--devices", 2, *SLOWLY, start_new_session=True) as process:
        process.stdin.write(b"the cat sat\n\n" * 3000)
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(WAIT) in (0, 141)
    until(lambda: not living(process.pid))


# JSON lines


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sentences": ["a"], "input": "in.txt"}, "sentences are given and --input=in.txt too: give one of both"),
        ({"sentences": [], "source_column": "text"}, "--source_column=text is of JSON objects, and the input is text"),
        ({"search": {"ensemble": "log_probability"}}, "search.ensemble=log_probability has no effect on one model"),
        ({"devices": 10_000}, r"--devices=10000: there are \d+ (cores|GPUs) here: give 0 for all GPUs, or 1 to \d+"),
    ],
)
def test_options_that_would_do_nothing_are_refused(model, options, message):
    command = runpy.run_path(str(ROOT / "scripts/translate.py"))["translate"]
    options = {"sentences": ["the cat"]} | options
    with pytest.raises(ValueError, match=message):
        command(options.pop("sentences"), model=str(model), **options)


# Jobs


def test_a_job_ended_in_any_way_goes_on_and_makes_the_same_file(model, many, tmp_path):
    out = tmp_path / "out"
    ends = ((signal.SIGKILL, -9, ""), (signal.SIGTERM, 143, STOPPED), (signal.SIGINT, 130, STOPPED))
    for number, status, said in ends:
        before = rows_done(out)
        with start(model, "--input", many, "--output", out, *SLOWLY) as process:
            until(lambda before=before: rows_done(out) > before, process)
            process.send_signal(number)
            out_text, err = process.communicate(timeout=WAIT)
        assert out_text == b"" and re.fullmatch(said, err.decode()) and process.returncode == status
        assert not out.exists() and rows_done(out) < 700
        done = out.with_name("out.partial").read_bytes()
        assert many.with_name("out.txt").read_bytes().startswith(done)
    with pytest.raises(ValueError, match="were made with another search.beam_size"):
        here(model, str(many), out)
    here(model, str(many), out, beam_size=1)  # with other batches, which make no other translations
    assert out.read_bytes() == many.with_name("out.txt").read_bytes() and [*tmp_path.iterdir()] == [out]


def rows_done(out: Path) -> int:
    record = out.with_name("out.partial.json")
    return json.loads(record.read_text())["rows"] if record.exists() else 0


def test_an_input_or_model_changed_since_is_refused(model, many, tmp_path, monkeypatch):
    source, copy = tmp_path / "in", tmp_path / "model"
    source.write_bytes(many.read_bytes())
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(documents.Job, "finish", interrupt)
        here(copy, str(source), tmp_path / "out")
    with open(source, "a") as file:
        file.write("one more\n")
    with pytest.raises(ValueError, match="out.partial holds 700 rows that were made with another input"):
        here(copy, str(source), tmp_path / "out")
    source.write_bytes(many.read_bytes())
    (copy / "metrics.json").write_text("{}\n\n")
    with pytest.raises(ValueError, match="out.partial holds 700 rows that were made with another model"):
        here(copy, str(source), tmp_path / "out")


def interrupt(*_):
    raise KeyboardInterrupt


def test_what_cannot_be_begun_leaves_nothing(model, many, tmp_path):
    with pytest.raises(ValueError, match="no such file or folder"):
        here("runs/nowhere", str(many), tmp_path / "out")
    with pytest.raises(ValueError, match="--nbest=5 cannot come of search.beam_size=2: raise that, or lower it"):
        here(model, str(many), tmp_path / "out", Form(nbest=5))
    with pytest.raises(FileNotFoundError):
        here(model, str(tmp_path / "nowhere"), tmp_path / "out")
    with pytest.raises(ValueError, match="is a folder: name a file in it"):
        here(model, str(many), tmp_path)
    assert [*tmp_path.iterdir()] == []


# Devices


def test_a_worker_that_dies_ends_the_job_and_ctrl_c_all_workers(model, many, tmp_path):
    out = tmp_path / "out"
    complaint = (
        r"translate.py: error: process [12] of 2 has ended by SIGKILL, perhaps for want of memory: give fewer "
        r"--devices or a smaller --search.tokens_per_batch\n"
    )
    for end, status, said in ((kill_a_worker, 1, complaint), (interrupt_all, 130, STOPPED)):
        before = rows_done(out)
        command = ["--input", many, "--output", out, "--devices", 2, *SLOWLY]
        with start(model, *command, start_new_session=True) as process:
            until(lambda before=before: rows_done(out) > before, process)
            end(process.pid)
            _, err = process.communicate(timeout=WAIT)
        assert process.returncode == status and re.fullmatch(said, err.decode())
        until(lambda group=process.pid: not living(group))
        assert not out.exists()
    here(model, str(many), out, beam_size=1)
    assert out.read_bytes() == many.with_name("out.txt").read_bytes()


def interrupt_all(group: int):
    os.killpg(group, signal.SIGINT)


def kill_a_worker(group: int):
    [worker, *_] = [pid for pid, args in living(group).items() if "spawn_main" in args]
    os.kill(worker, signal.SIGKILL)


def test_several_devices_do_as_one_and_say_each_warning_once(model, many, tmp_path, recwarn):
    with on_devices(partial(load_with_warning, model), 2) as devices:
        assert devices.search == Translator.load(model).search
        chunks = [*range(20)]
        assert [*devices.map(work_of, chunks)] == [f"row {i}" for i in chunks]
        with pytest.raises(ValueError, match="chunk 3 is wrong"):
            list(devices.map(fail_at_three, chunks))
        typed = []
        answers = devices.map(work_of, (typed.append(i) or i for i in range(1000)))
        assert next(answers) == "row 0"
        time.sleep(0.1)
        assert len(typed) < 20, "only so much is read ahead"
    assert [str(each.message) for each in recwarn if each.category is UserWarning] == ["weights", "chunk 3 is odd"]


def load_with_warning(model, device):
    import warnings

    warnings.warn("weights", stacklevel=1)
    return Translator.load(model, device)


def work_of(translator, number):
    import warnings

    if number == 3:
        warnings.warn("chunk 3 is odd", stacklevel=1)
    time.sleep(0.01 * (number % 3))  # so that later ones are done first
    return f"row {number}"


def fail_at_three(translator, number):
    if number == 3:
        raise ValueError("chunk 3 is wrong")


@pytest.mark.gpu
def test_every_gpu_has_a_model_of_its_own(model):
    with on_devices(partial(Translator.load, model), 0) as devices:
        assert devices.num_devices == torch.cuda.device_count()
        found = {*devices.map(device_of, range(devices.num_devices))}
    assert found == {("cuda", i) for i in range(torch.cuda.device_count())}


def device_of(translator, number):
    time.sleep(1)  # so that each has one part
    device = translator.engine.device
    return device.type, device.index or 0


def test_more_devices_than_there_are_are_refused(model, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for devices in (3, -1):
        complaint = rf"devices={devices}: there are 2 GPUs here: give 0 for all"
        with pytest.raises(ValueError, match=complaint), on_devices(partial(Translator.load, model), devices):
            pass
