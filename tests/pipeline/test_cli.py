"""The command line: what a user types reaches the function, and what is wrong comes back in one line."""

import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from jsonargparse.typing import PositiveInt

from models.config import ModelConfig
from pipeline.cli import Given, main, read_configuration, write_configuration
from pipeline.config import Configuration, SearchConfig, TokenizerConfig, TrainerConfig

received = {}


def train(configuration: Configuration):
    """Train: python scripts/train.py --config configs/X.yaml"""
    received["configuration"] = configuration


def translate(
    sentences: list[str] = [],  # noqa: B006
    /,
    model: str = "",
    scores: bool = False,
    search: Given[SearchConfig] = Given(),  # noqa: B008
):
    """Translate.

    Args:
        sentences: What to translate.
        model: A run folder.
    """
    received.update(sentences=sentences, model=model, scores=scores, search=search)


def evaluate(model: list[str], source: str = ""):
    """Evaluate."""
    raise ValueError(f"{model[0]}: no such\nmodel")


def run(monkeypatch, command, *arguments):
    class Stream:
        def __init__(self, stream):
            self.write, self.flush, self.reconfigure = stream.write, stream.flush, lambda **_: None

    monkeypatch.setattr(sys, "argv", ["scripts/verb.py", *arguments])
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if not hasattr(stream, "reconfigure"):
            monkeypatch.setattr(sys, name, Stream(stream))
    main(command)
    return received


@pytest.fixture
def error_of(monkeypatch, capfd):
    def run_and_fail(command, *arguments):
        with pytest.raises(SystemExit) as stop:
            run(monkeypatch, command, *arguments)
        out, err = capfd.readouterr()
        assert out == "" and err.count("\n") == 1, (out, err)
        return stop.value.code, err.rstrip("\n")

    return run_and_fail


def test_configuration_files_layer_left_to_right_and_flags_come_last(monkeypatch, tmp_path):
    (tmp_path / "base.yaml").write_text("seed: 3\nmodel:\n  d_model: 64\n  num_heads: 4\n")
    (tmp_path / "overlay.yaml").write_text("model:\n  num_heads: 2\n")
    files = ["--config", str(tmp_path / "base.yaml"), "--config", str(tmp_path / "overlay.yaml")]
    configuration = run(monkeypatch, train, *files, "--model.d_model", "32", "--corpora.train", "[a,b]")[
        "configuration"
    ]
    assert configuration.seed == 3
    assert configuration.model == ModelConfig(d_model=32, num_heads=2)
    assert configuration.corpora.train == ["a", "b"]


def test_only_the_given_fields_of_a_section_arrive(monkeypatch):
    arrived = run(monkeypatch, translate, "ein Satz", "noch einer", "--model", "runs/x", "--search.beam_size", "3")
    assert arrived["sentences"] == ["ein Satz", "noch einer"]
    assert arrived["model"] == "runs/x" and arrived["scores"] is False
    assert arrived["search"] == {"beam_size": 3}


def test_fields_come_from_a_file_and_from_flags(monkeypatch, tmp_path):
    (tmp_path / "search.yaml").write_text("beam_size: 3\n", encoding="utf-8")
    arrived = run(monkeypatch, translate, "--search", str(tmp_path / "search.yaml"), "--search.length_penalty", "0.5")
    assert arrived["search"] == {"beam_size": 3, "length_penalty": 0.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file, or no options in it"),
        ("a search", "no such file, or no options in it"),
        ("beam_size: [", "while parsing a flow node"),
    ],
)
def test_a_file_of_fields_that_cannot_be_read_is_named_once(error_of, tmp_path, text, message):
    path = tmp_path / "search.yaml"
    if text:
        path.write_text(text)
    status, error = error_of(translate, "--search", str(path))
    assert status == 2 and error.startswith(f"verb.py: error: --search={path}: {message}")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 0.5}, "search.temperature=0.5 has no effect without search.method=sampling: set that too"),
        ({"seed": 2, "beam_size": 3}, "search.seed=2 has no effect without search.method=sampling"),
        ({"candidates": 8}, "search.candidates=8 has no effect without search.minimum_bayes_risk"),
        ({"diversity_penalty": 1.0}, "search.diversity_penalty=1.0 has no effect without search.diverse_groups"),
        (
            {"length_normalisation": "none", "length_penalty": 0.6},
            "search.length_penalty=0.6 has no effect without a search.length_normalisation that is not none: set that",
        ),
        ({"beam_size": 20_000}, "search.beam_size=20000 must be at most 1000"),
        ({"max_length_ratio": 1e6}, "search.max_length_ratio=1000000.0 must be at most 100"),
        ({"repetition_penalty": 0.0}, "search.repetition_penalty=0.0 must be more than 0"),
        ({"tokens_per_batch": 0}, "search.tokens_per_batch=0 must be at least 1"),
    ],
)
def test_a_search_is_not_changed_by_what_has_no_effect_or_no_sense(given, message):
    with pytest.raises(ValueError, match=message):
        SearchConfig().changed(given)


def test_a_search_is_changed_by_settings_that_go_together():
    given = {"method": "sampling", "temperature": 0.5, "minimum_bayes_risk": "chrf", "candidates": 8}
    assert SearchConfig(beam_size=3).changed(given) == SearchConfig(beam_size=3, **given)
    assert SearchConfig(method="sampling").changed({"top_k": 3}).top_k == 3


def test_given_fields_are_checked_but_not_held_against_the_defaults_of_others(monkeypatch, error_of):
    assert error_of(translate, "--search.beam_size", "0")[1].endswith("search.beam_size=0 must be at least 1")
    with pytest.raises(ValueError, match="search.min_length=20 exceeds the 12 tokens"):
        Configuration(search=SearchConfig(min_length=20))
    assert run(monkeypatch, translate, "--search.min_length", "20")["search"] == {"min_length": 20}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--model.num_heads", "7"], "model.num_heads=7 must divide model.d_model=512"),
        (["--model.d_modle", "3"], "unknown option model.d_modle: did you mean model.d_model?"),
        (["--qqqqq", "3"], "unknown option qqqqq: --help lists all options"),
        (["--model.norm_order", "middle"], "model.norm_order=middle: expected one of 'post', 'pre'"),
        (["--model.d_model", "wide"], "model.d_model=wide: expected int"),
        (["--corpora.train", "a.en"], "corpora.train=a.en: expected list such as '[first, second]'"),
        (["--corpora.valid_size", "-1"], "corpora.valid_size=-1 must be 0 or more"),
        (["--search.beam", "3"], "unknown option search.beam: did you mean search.beam_size?"),
        (["--config", "/no/such.yaml"], "--config: File does not exist: '/no/such.yaml'"),
        (["--tokenizer.joint", "false"], "model.tied_embeddings=all needs one vocabulary"),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_the_remedy(error_of, arguments, message):
    status, error = error_of(train, *arguments)
    assert status == 2 and error.startswith("verb.py: error: ") and message in error


@pytest.mark.parametrize(
    "option, message",
    [
        ("--batching.max_source_tokens=64", "batching.max_source_tokens=64 may take 65 positions"),
        ("--batching.max_target_tokens=64", "batching.max_target_tokens=64 may take 65 positions"),
        ("--search.max_source_tokens=64", "search.max_source_tokens=64 may take 65 positions"),
        (
            "--search.max_length_extra=5",
            "search.max_length_ratio=1.0 with search.max_source_tokens=60 and search.max_length_extra=5 may take 65 "
            "positions",
        ),
    ],
)
def test_a_run_that_may_need_more_positions_than_are_learned_is_refused(error_of, monkeypatch, option, message):
    given = {
        "--model.positions": "learned",
        "--model.max_positions": "64",
        "--batching.max_source_tokens": "63",
        "--batching.max_target_tokens": "63",
        "--search.max_source_tokens": "60",
        "--search.max_length_ratio": "1.0",
        "--search.max_length_extra": "4",
    }
    flags = [f"{name}={value}" for name, value in given.items()]
    assert run(monkeypatch, train, *flags)["configuration"].model.max_positions == 64
    status, error = error_of(train, *flags, option)
    remedy = ", more than model.max_positions=64: make that less, or train with more positions"
    assert (status, error) == (2, f"verb.py: error: {message}{remedy}")
    run(monkeypatch, train, *flags, option, "--model.positions=sinusoidal")


@pytest.mark.parametrize(
    "text, message",
    [
        ("model:\n  d_modle: 3\n", "unknown option model.d_modle: did you mean model.d_model?"),
        ("modell:\n  d_model: 3\n", "unknown option modell.d_model: did you mean model.d_model?"),
        ("model:\n  dropout: none\n", "model.dropout=none: expected float"),
        ("model:\n  d_model: [\n", "line 3, column 1"),
        ("corpora:\n  parts: [{wieght: 2}]\n", "unknown option wieght in corpora.parts: did you mean weight?"),
        ("corpora:\n  parts: [{qqqqq: 2}]\n", "unknown option qqqqq in corpora.parts: --help lists those of a corpus"),
        (
            "corpora:\n  parts: [{temperature: 2}]\n",
            "corpora.parts: temperature is of all corpora together: set corpora.temperature",
        ),
    ],
)
def test_a_wrong_configuration_file_is_named_in_one_line(error_of, tmp_path, text, message):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    status, error = error_of(train, "--config", str(path))
    assert status == 2 and message in error and "run.yaml" in error
    with pytest.raises(ValueError, match="run.yaml"):
        read_configuration(path)


def test_a_wrong_configuration_file_is_named_however_it_is_given(error_of, tmp_path):
    path = tmp_path / "text"
    path.write_text("no configuration")
    assert f"{path}: not a configuration" in error_of(train, f"--config={path}")[1]


def test_a_missing_option_is_named_as_it_is_typed(error_of):
    status, error = error_of(evaluate)
    assert status == 2 and "--model is needed" in error


def test_what_goes_wrong_in_the_work_is_one_line_too(error_of):
    assert error_of(evaluate, "--model", "runs/a", "runs/b") == (1, "verb.py: error: runs/a: no such model")


@pytest.mark.parametrize("speak", ["print('text')", "__import__('rich').print('text')"])
def test_a_reader_that_has_left_is_no_failure(speak):
    code = f"import pipeline.cli\ndef verb():\n    {speak}\npipeline.cli.main(verb)"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 141
    process.stderr.close()


def test_who_has_closed_its_streams_gets_a_status_all_the_same():
    code = "import pipeline.cli\ndef verb():\n    raise ValueError\npipeline.cli.main(verb)"
    command = f"'{sys.executable}' -c '{code}' <&- >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=Path(__file__).parents[2]).returncode == 1
    assert (
        subprocess.run(
            command.replace("raise ValueError", "pass"), shell=True, cwd=Path(__file__).parents[2]
        ).returncode
        == 0
    )


def test_sub_commands_are_offered_by_name(monkeypatch, error_of):
    status, error = error_of({"train": train, "translate": translate}, "tranlate")
    assert status == 2 and "choose one of train|translate" in error
    run(monkeypatch, {"train": train, "translate": translate}, "translate", "--scores", "--model", "m")
    assert received["scores"] is True and received["model"] == "m"


def test_a_configuration_survives_its_file(tmp_path):
    configuration = Configuration(
        tokenizer=TokenizerConfig(symbols=["<2de>", "ü"]), trainer=TrainerConfig(max_minutes=2.5), seed=9
    )
    write_configuration(configuration, tmp_path / "config.yaml")
    assert read_configuration(tmp_path / "config.yaml") == configuration


def test_configurations_and_the_command_line_load_no_torch():
    code = (
        "import sys, pipeline.cli; sys.exit(any(m in sys.modules for m in ('torch', 'pytorch_lightning', 'datasets')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


def test_a_foreign_package_named_models_is_called_out(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("")
    for name in ("config.py",):
        (tmp_path / "models" / name).write_text((Path(__file__).parents[2] / "models" / name).read_text())
    code = "import sys; sys.argv = ['verb.py']; from pipeline.cli import main; main(lambda: None)"
    paths = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    result = subprocess.run([sys.executable, "-c", code], env=paths, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2 and "the package 'models' was found in" in result.stderr


def test_numbers_are_checked_one_by_one(monkeypatch, error_of):
    def measure(lengths: list[PositiveInt] = []):  # noqa: B006
        """Measure."""
        received["lengths"] = lengths

    assert run(monkeypatch, measure, "--lengths", "64", "128")["lengths"] == [64, 128]
    status, error = error_of(measure, "--lengths", "64", "0")
    assert status == 2 and error.endswith("--lengths=0: expected a whole number from 1")


def test_values_of_a_list_are_checked_and_other_words_told_where_they_go(error_of):
    def protect(sentences: list[str] = [], /, kinds: list[Literal["url", "number"]] = []):  # noqa: B006
        """Protect."""

    for words in (["ule"], ["url,number"], ["number", "a sentence"]):
        status, error = error_of(protect, "--kinds", *words)
        assert status == 2 and error.endswith(
            f"--kinds={words[-1]}: expected some of 'url', 'number', with blanks between; what is none of them goes "
            "before the options, or after --"
        )
    assert error_of(protect, "--kinds") == (
        2,
        "verb.py: error: --kinds names nothing: give some of {url,number}, with blanks between",
    )


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many"])
def test_a_number_that_cannot_be_is_named(error_of, value):
    def list_some(nbest: PositiveInt = 1):
        """List."""

    complaint = f"verb.py: error: --nbest={value}: expected a whole number from 1"
    assert error_of(list_some, "--nbest", value) == (2, complaint)


def test_a_file_that_is_not_there_is_named_first(error_of):
    def read():
        """Read."""
        open("/nowhere/in.txt")  # noqa: SIM115

    assert error_of(read) == (1, "verb.py: error: /nowhere/in.txt: No such file or directory")


def test_a_model_that_is_there_cannot_be_given_other_choices(error_of):
    status, error = error_of(translate, "--model.attention", "none")
    assert status == 2 and "unknown option model.attention: --model takes a value and has no options" in error
