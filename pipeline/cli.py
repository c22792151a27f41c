"""A command line from a function's signature: documented options, one-line errors, UTF-8 in and out.

    def translate(sentences: list[str] = [], /, model: str = "", search: Given[SearchConfig] = Given()): ...
    if __name__ == "__main__":
        main(translate)

A positional-only parameter becomes a positional argument, any other an option; the docstring's ``Args`` are the help.
A parameter annotated ``Configuration`` is laid out flat (``--model.d_model``) and takes ``--config`` files, layered
left to right; ``Given[SomeConfig]`` receives a dict of just those fields that the user gave.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
import re
import sys
import typing
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

import yaml
from docstring_parser import parse as parse_docstring
from jsonargparse import ActionYesNo, ArgumentError, ArgumentParser, Namespace, set_parsing_settings

import models
from pipeline.config import Configuration
from pipeline.data.config import CorpusConfig

set_parsing_settings(docstring_parse_attribute_docstrings=True)

Config = TypeVar("Config")


class Given(dict, Generic[Config]):
    """``Given[SearchConfig]``: the fields of ``SearchConfig`` that the user gave, and their values."""


def main(command: Callable | dict[str, Callable]) -> None:
    """Run ``command`` with the process's arguments; a dict offers its entries as sub-commands.

    Exits with 2 where the command line is wrong and with 1 where the work meets a ``ValueError`` or ``OSError``,
    in one line on stderr (with the traceback where DRAGOMAN_TRACEBACK is set).
    """
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  (Python has no stream for what was closed)
    sys.stderr.reconfigure(encoding="utf-8", errors="replace")
    if sys.stdin:
        sys.stdin.reconfigure(encoding="utf-8")
    if sys.stdout:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    program = Path(sys.argv[0]).name
    warnings.showwarning = lambda message, *_: print(f"{program}: warning: {message}", file=sys.stderr)
    with _one_line_errors(program, status=2):
        _check_imports()
        function, arguments = _parse(command, program, sys.argv[1:])
    with _one_line_errors(program, status=1):
        function(*arguments.args, **arguments.kwargs)
        if sys.stdout:
            sys.stdout.flush()


def read_configuration(path: str | Path) -> Configuration:
    """The configuration of one YAML file.

    Raises:
        ValueError: an unknown option or a wrong value, named with the file.
        OSError: the file cannot be read.
    """
    parser, parsed = _parse_file(path)
    try:
        return Configuration(**vars(parser.instantiate(parsed)))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_configuration(configuration: Configuration, path: str | Path) -> None:
    """Write ``configuration`` as YAML, every option with its value."""
    text = yaml.safe_dump(dataclasses.asdict(configuration), sort_keys=False, allow_unicode=True)
    Path(path).write_text(text, encoding="utf-8")


def _parse(
    command: Callable | dict[str, Callable], program: str, argv: list[str]
) -> tuple[Callable, inspect.BoundArguments]:
    if isinstance(command, dict):
        if not argv or argv[0] not in command:
            wanted = "|".join(command)
            if argv and argv[0] in ("-h", "--help"):
                print(f"usage: {program} {wanted} ...\n")
                for name, function in command.items():
                    print(f"  {name:<12}{parse_docstring(function.__doc__ or '').short_description}")
                print(f"\n{program} {wanted} --help tells each one's options")
                sys.exit(0)
            raise ValueError(f"{' '.join(argv[:1]) or 'nothing'} given: choose one of {wanted}")
        command, program, argv = command[argv[0]], f"{program} {argv[0]}", argv[1:]
    parser = _parser(command, program)
    try:
        parsed = parser.parse_args(argv)
        given = parser.parse_args(argv, defaults=False)
    except _PARSING_ERRORS as error:
        for option, path in pairwise(word for argument in argv for word in argument.split("=", 1)):
            if option == "--config" and Path(path).is_file():
                _parse_file(path)  # names the file, if it is the one to blame
        raise ValueError(_plain(str(error), parser)) from error
    return command, _arguments(command, parser.instantiate(parsed), given)


def _parser(function: Callable, program: str) -> ArgumentParser:
    documentation = parse_docstring(function.__doc__ or "")
    helps = {parameter.arg_name: parameter.description for parameter in documentation.params}
    description = "\n\n".join(filter(None, [documentation.short_description, documentation.long_description]))
    parser = ArgumentParser(prog=program, description=description, exit_on_error=False, allow_abbrev=False)
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind, required = parameter.annotation, parameter.default is inspect.Parameter.empty
        help_text = helps.get(name, "")
        if kind is Configuration:
            parser.add_argument("--config", action="config", help="YAML file of a run; several layer left to right")
            parser.add_class_arguments(Configuration)
        elif typing.get_origin(kind) is Given:
            parser.add_class_arguments(typing.get_args(kind)[0], nested_key=name, instantiate=False)
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            parser.add_argument(name, type=str, nargs="*", help=help_text)
        elif kind is bool:
            parser.add_argument(f"--{name}", action=ActionYesNo, default=parameter.default, help=help_text)
        elif typing.get_origin(kind) is list:
            (item,) = typing.get_args(kind)
            given = {"required": True, "default": []} if required else {"default": parameter.default}
            parser.add_argument(f"--{name}", nargs="+", type=item, help=help_text, **given)
        else:
            default = {} if required else {"default": parameter.default}
            parser.add_argument(f"--{name}", type=kind, required=required, help=help_text, **default)
    return parser


def _arguments(function: Callable, parsed: Namespace, given: Namespace) -> inspect.BoundArguments:
    """The parsed options as the arguments of ``function``."""
    signature = inspect.signature(function, eval_str=True)
    values = {}
    for name, parameter in signature.parameters.items():
        if parameter.annotation is Configuration:
            values[name] = Configuration(**{f.name: parsed[f.name] for f in dataclasses.fields(Configuration)})
        elif typing.get_origin(parameter.annotation) is Given:
            (config,) = typing.get_args(parameter.annotation)
            options = given[name].as_dict() if name in given else {}  # with the file's path, where they come from one
            values[name] = Given({f.name: options[f.name] for f in dataclasses.fields(config) if f.name in options})
            config(**values[name])  # checks them
        else:
            values[name] = parsed[name]
    positional = [values.pop(n) for n, p in signature.parameters.items() if p.kind is p.POSITIONAL_ONLY]
    return signature.bind(*positional, **values)


_NUMBERS = {"PositiveInt": "a whole number from 1", "NonNegativeInt": "a whole number from 0"}

_PARSING_ERRORS = (ArgumentError, ValueError, TypeError, KeyError, yaml.YAMLError)


@contextmanager
def _one_line_errors(program: str, status: int) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is left to be flushed at exit
        sys.exit(141)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich takes it for a failure
            sys.exit(141)
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        if os.environ.get("DRAGOMAN_TRACEBACK"):
            raise
        print(f"{program}: error: {' '.join(_said(error).split())}", file=sys.stderr)
        sys.exit(status)


def _said(error: ValueError | OSError) -> str:
    """What is wrong; of the system's errors the file comes first, and not their number."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _check_imports() -> None:
    """Another installed package named ``models`` must not take the place of ours."""
    ours = Path(__file__).resolve().parents[1]
    if Path(models.__file__).resolve().parents[1] != ours:
        raise ValueError(
            f"the package 'models' was found in {Path(models.__file__).parent} rather than in {ours}: "
            "use an environment of Dragoman's own (bash scripts/test.sh makes one in .venv)"
        )


@cache
def _file_parser() -> ArgumentParser:
    """Of configuration files; made once, since that takes longer than to read one, and every loaded model has one."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Configuration)
    return parser


def _parse_file(path: str | Path) -> tuple[ArgumentParser, Namespace]:
    parser = _file_parser()
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not a configuration: expected sections such as 'model:' with options under them")
        return parser, parser.parse_object(content)
    except _PARSING_ERRORS as error:
        raise ValueError(f"{path}: {_plain(str(error), parser)}") from error


def _plain(message: str, parser: ArgumentParser) -> str:
    """jsonargparse's message as one line that names option, value and remedy."""
    message = " ".join(message.split())
    if unread := re.search(r"""Parser key "(\w+)": Unable to load config '(.*?)' - (.*)""", message):
        option, path, reason = unread.groups()
        if "Unable to load config" in reason:
            is_locked = os.path.exists(path) and not os.access(path, os.R_OK)
            reason = "it may not be read: change who may" if is_locked else "no such file, or no options in it"
        return f"--{option}={path}: {reason}"
    if inner := re.search(r"""Parser key "(\w+)": .*NestedArg\(key='([\w.]+)'""", message):
        return f"unknown option {inner[1]}.{inner[2]}: --{inner[1]} takes a value and has no options"
    wrong = re.search(r'Parser key "([\w.]+)"( element \d+)?: Expected an? (.+?)\. Got value: (.*)', message)
    if wrong:
        option, in_list, expected, value = wrong.groups()
        choices = re.search(r"Literal\[(.*)\]", expected)
        if choices and in_list:
            positional = any(not action.option_strings for action in parser._actions)
            others = "; what is none of them goes before the options, or after --" if positional else ""
            return f"--{option}={value}: expected some of {choices[1]}, with blanks between{others}"
        expected = f"one of {choices[1]}" if choices else re.sub(r"<class '(\w+)'>", r"\1", expected)
        example = " such as '[first, second]'" if expected.lower().startswith("list") else ""
        return f"{option}={value}: expected {expected}{example}"
    if empty := re.search(r"argument --([\w.]+): expected at least one argument", message):
        (metavar,) = [action.metavar for action in parser._actions if f"--{empty[1]}" in action.option_strings]
        some = f"some of {metavar}, with blanks between" if metavar else "one or more"
        return f"--{empty[1]} names nothing: give {some}"
    number = re.search(r"""Parser key "(\w+)"(?: element \d+)?: Not of type (\w+): (?:.*'(.*)'$|(\S+))""", message)
    if number:
        option, kind, *value = number.groups()
        return f"--{option}={value[0] or value[1]}: expected {_NUMBERS.get(kind, kind)}"
    if missing := re.search(r"the following arguments are required: (\w+)", message):
        return f"--{missing[1]} is needed: --help tells what to give"
    if of_part := re.search(r"""Parser key "corpora.parts".*Option '(\w+)' is not accepted""", message):
        name, options = of_part[1], [field.name for field in dataclasses.fields(CorpusConfig)]
        if any(action.dest == f"corpora.{name}" for action in parser._actions):
            return f"corpora.parts: {name} is of all corpora together: set corpora.{name}"
        close = difflib.get_close_matches(name, options, n=1)
        remedy = f"did you mean {close[0]}?" if close else "--help lists those of a corpus"
        return f"unknown option {name} in corpora.parts: {remedy}"
    unknown = re.search(r"unrecognized arguments: -*([\w.-]+)|Option '([\w.]+)' is not accepted", message)
    within = re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", message)
    if unknown or within:
        name = ".".join(within.groups()) if within else unknown[1] or unknown[2]
        options = [action.dest for action in parser._actions]
        close = difflib.get_close_matches(name, options, n=1)
        return f"unknown option {name}: " + (f"did you mean {close[0]}?" if close else "--help lists all options")
    return re.sub(r'Parser key "([\w.]+)"( element \d+)?:', r"--\1\2:", message)
