"""A trained model on disk: the model folder that is shipped, and the checkpoints that training resumes from.

A model folder holds ``config.yaml``, the tokenizer's files, ``weights.safetensors`` and ``metrics.json``. A checkpoint
(``step-0001500.ckpt``) holds the training state and, as plain bytes, the small files of the model folder: either can be
moved anywhere and is complete. Neither can run code: safetensors, and ``torch.load(weights_only=True)``. Whatever is
written appears under its name whole or not at all.
"""

import json
import os
import pickle
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from models.encoder_decoder import EncoderDecoder
from models.recurrent import RecurrentModel
from models.transformer import Transformer
from pipeline.cli import read_configuration, write_configuration
from pipeline.config import Configuration
from pipeline.data.tokenizer import PAD_ID, Tokenizers

FORMAT = 1
"""Version of what the files hold; raised when an older program could not read them."""

WEIGHTS = "weights.safetensors"

EXPORT = "export.json"
"""The file that tells an export from other folders, with its format and quantization."""

os.umask(UMASK := os.umask(0))  # it cannot be read without being set

ARCHITECTURES: dict[str, type[EncoderDecoder]] = {"transformer": Transformer, "recurrent": RecurrentModel}


class LoadedModel(NamedTuple):
    model: EncoderDecoder
    tokenizers: Tokenizers
    configuration: Configuration
    metrics: dict


def build_model(configuration: Configuration, tokenizers: Tokenizers) -> EncoderDecoder:
    """A model with random weights for these vocabularies."""
    build = ARCHITECTURES[configuration.model.architecture]
    return build(configuration.model, tokenizers.source.vocab_size, tokenizers.target.vocab_size, pad_id=PAD_ID)


def fingerprint(tokenizers: Tokenizers) -> str:
    """Tells whether two couples of tokenizers are the same."""
    return f"{tokenizers.source.fingerprint} {tokenizers.target.fingerprint}"


def save_model(
    folder: str | Path, model: nn.Module, tokenizers: Tokenizers, configuration: Configuration, metrics: dict
) -> None:
    """Write a model folder, replacing the one that may be there.

    Raises:
        ValueError: the folder holds something else.
    """
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / WEIGHTS).exists():
        raise ValueError(f"{folder} holds something else than a model: name another folder")
    with written_whole(folder) as new:
        new.mkdir(parents=True)
        _write_small_files(new, tokenizers, configuration)
        (new / "metrics.json").write_text(json.dumps(metrics, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        weights = new / WEIGHTS
        metadata = {"format": "pt", "dragoman": str(FORMAT), "tokenizers": fingerprint(tokenizers)}
        # Not safetensors' save_model, which refuses weights that cuDNN has laid side by side in one piece of memory.
        state = model.state_dict()
        stored: dict[tuple, str] = {}
        for name in sorted(state):
            kept = stored.setdefault((state[name].data_ptr(), state[name].shape, state[name].stride()), name)
            if kept != name:
                metadata[name] = kept
        try:
            safetensors.torch.save_file({name: state[name] for name in stored.values()}, weights, metadata)
        except safetensors.SafetensorError as error:
            raise OSError(f"{folder / WEIGHTS} could not be written ({error})") from error
        _sort_notes(weights)


def _sort_notes(file: Path) -> None:
    """Equal models are equal files: safetensors, whose header is JSON behind its length, writes notes in any order."""
    with open(file, "r+b") as weights:
        size = int.from_bytes(weights.read(8), "little")
        header = json.loads(weights.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        weights.seek(8)
        weights.write(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size))


def load_model(path: str | Path) -> LoadedModel:
    """The model of a run folder (the one it ships), of a model folder, or of one checkpoint; in eval mode, on the CPU.

    Raises:
        ValueError, OSError: there is no such model, it is damaged, or its parts do not belong together.
    """
    if not str(path):
        raise ValueError("a model without a name: give runs/NAME, and a comma only between two")
    path = Path(path)
    if path.suffix == ".safetensors" and path.is_file():
        raise ValueError(f"{path}: weights alone are no model: name the folder that they are in")
    if path.is_file():
        return _load_checkpoint(path)
    for folder in (path, path / "model"):
        if (folder / WEIGHTS).is_file():
            return _load_folder(folder)
    if (path / EXPORT).is_file():
        raise ValueError(
            f"{path}: an export, which scripts/translate.py takes with "
            f"--engine {json.loads((path / EXPORT).read_text('utf-8'))['format']}: give that, or name the model itself"
        )
    if (path / "config.yaml").is_file():
        raise ValueError(f"{path}: this run has no model yet; the first appears after its first validation")
    found = "neither a run nor a model folder nor a checkpoint" if path.exists() else "no such file or folder"
    raise ValueError(f"{path}: {found}; give runs/NAME, a folder with {WEIGHTS}, or a .ckpt file")


def checkpoints(run: str | Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    return sorted((Path(run) / "checkpoints").glob("step-*.ckpt"), key=step_of)


def checkpoint_path(run: str | Path, step: int) -> Path:
    return Path(run) / "checkpoints" / f"step-{step:07d}.ckpt"


def step_of(checkpoint: Path) -> int:
    """The number of updates in a checkpoint's name."""
    return int(checkpoint.stem.removeprefix("step-"))


def portable_files(tokenizers: Tokenizers, configuration: Configuration) -> dict[str, bytes]:
    """What a checkpoint carries besides weights: the small files of a model folder."""
    with tempfile.TemporaryDirectory() as folder:
        _write_small_files(Path(folder), tokenizers, configuration)
        return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def read_checkpoint(path: str | Path) -> dict:
    """The content of a checkpoint, checked.

    Raises:
        DamagedCheckpoint: the file is cut off or changed.
        ValueError: the file is something else, or of a later version.
    """
    with open(path, "rb") as file:
        try:
            damage = zipfile.ZipFile(file).testzip()
        except zipfile.BadZipFile as error:
            damage = str(error)
        if damage:
            raise DamagedCheckpoint(f"{path}: the checkpoint is damaged ({damage}), or the file is none: use another")
        file.seek(0)
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, RuntimeError) as error:
            raise ValueError(
                f"{path}: not a checkpoint of this program: it holds Python objects, which are never loaded, since "
                "loading them can run code"
            ) from error
    if not isinstance(content, dict) or not {"dragoman", "state_dict", "global_step"} <= content.keys():
        raise ValueError(f"{path}: not a checkpoint of this program")
    if content["dragoman"]["format"] > FORMAT:
        raise ValueError(
            f"{path}: written in format {content['dragoman']['format']}, this program reads up to {FORMAT}: update it"
        )
    return content


class DamagedCheckpoint(ValueError):
    """A checkpoint that was cut off or changed on disk."""


def model_state(content: dict) -> dict[str, Tensor]:
    """The model's weights among a checkpoint's."""
    return {name.removeprefix("model."): tensor for name, tensor in content["state_dict"].items()}


def average_states(states: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several states of one model, taken in float64; the states are read one after the other.

    What was one tensor stays one (tied embeddings); integer entries are the last state's.

    Raises:
        ValueError: no states, or states with different entries.
    """
    means: dict[str, Tensor] = {}
    state: dict[str, Tensor] = {}
    for count, state in enumerate(states, start=1):
        if count == 1:
            means = {name: tensor.double() for name, tensor in state.items() if tensor.is_floating_point()}
            names = state.keys()
        if state.keys() != names:
            raise ValueError(f"states with different entries cannot be averaged: {sorted(state.keys() ^ names)}")
        for name, mean in means.items():
            # A running mean: equal states give exactly themselves, however many there are.
            means[name] = mean + (state[name].double() - mean) / count
    if not state:
        raise ValueError("nothing to average")
    shared: dict[tuple, Tensor] = {}
    return {
        name: shared.setdefault(
            (tensor.data_ptr(), tensor.shape, tensor.stride()) if tensor.numel() else (name,),
            means[name].to(tensor.dtype) if name in means else tensor.clone(),
        )
        for name, tensor in state.items()
    }


def average_checkpoints(paths: list[Path]) -> LoadedModel:
    """The model whose weights are the mean of the checkpoints' weights.

    Raises:
        ValueError: the checkpoints are not of one model and tokenizer, or one cannot be read.
    """
    if not paths:
        raise ValueError("there are no checkpoints to average")
    last = _load_checkpoint(paths[-1])

    def states() -> Iterator[dict[str, Tensor]]:
        for path in paths:
            content = read_checkpoint(path)
            if content["dragoman"]["tokenizers"] != fingerprint(last.tokenizers):
                raise ValueError(f"{path} and {paths[-1]} have different tokenizers and cannot be averaged")
            if _small_files(content, path)[1].model != last.configuration.model:
                raise ValueError(f"{path} and {paths[-1]} are different models and cannot be averaged")
            yield model_state(content)

    _load_weights(last.model, average_states(states()), paths[-1])
    return last._replace(metrics={"average_of_steps": [step_of(path) for path in paths]})


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path``, for a file or folder that takes ``path``'s place when all of it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}{_UNFINISHED}")
    try:
        yield new
        for written in [*new.rglob("*"), new] if new.is_dir() else [new]:
            if written.is_file():
                written.chmod(0o666 & ~UMASK)  # safetensors makes files for their owner alone
            to_disk(written)
        if path.is_dir():  # a folder can only take the place of one that has stepped aside
            aside = new.with_name(new.name.replace(_UNFINISHED, ".old" + _UNFINISHED))
            path.rename(aside)
            new.rename(path)
            shutil.rmtree(aside)
        else:
            new.replace(path)
        to_disk(path.parent)
    finally:
        _remove(new)


def to_disk(path: Path) -> None:
    """Have the system write a file, or the names in a folder, to the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left of files they were writing in ``folder``."""
    for leftover in folder.glob(f".*{_UNFINISHED}"):
        _remove(leftover)


_UNFINISHED = ".unfinished"


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _write_small_files(folder: Path, tokenizers: Tokenizers, configuration: Configuration) -> None:
    write_configuration(configuration, folder / "config.yaml")
    tokenizers.save(folder)


def _load_folder(folder: Path) -> LoadedModel:
    file = folder / WEIGHTS
    open(file, "rb").close()  # where it may not be read, safetensors would say that there is none
    try:
        with safetensors.safe_open(file, framework="pt") as weights:
            metadata = weights.metadata() or {}
            names = set(weights.keys())
            state = {name: weights.get_tensor(name) for name in names}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file}: damaged, or not a safetensors file ({error})") from error
    if int(metadata.get("dragoman", 0)) > FORMAT:
        raise ValueError(
            f"{file}: written in format {metadata['dragoman']}, this program reads up to {FORMAT}: update it"
        )
    if not any(folder.glob("tokenizer*.model")):
        raise ValueError(f"{folder}: tokenizer.model is missing: copy it from the run that the model is of")
    tokenizers = Tokenizers.load(folder)
    if metadata.get("tokenizers") != fingerprint(tokenizers):
        raise ValueError(
            f"{folder}: the tokenizer there is not the one that {file} was trained with: copy both from one run"
        )
    # A tied tensor is stored once, and its other names are noted.
    state |= {name: state[kept] for name, kept in metadata.items() if kept in names}
    configuration = read_configuration(folder / "config.yaml")
    model = _load_weights(build_model(configuration, tokenizers), state, file)
    metrics = folder / "metrics.json"
    return LoadedModel(
        model, tokenizers, configuration, json.loads(metrics.read_text(encoding="utf-8")) if metrics.exists() else {}
    )


def _load_checkpoint(path: Path) -> LoadedModel:
    content = read_checkpoint(path)
    tokenizers, configuration = _small_files(content, path)
    model = _load_weights(build_model(configuration, tokenizers), model_state(content), path)
    return LoadedModel(model, tokenizers, configuration, {"step": content["global_step"]})


def _small_files(content: dict, checkpoint: Path) -> tuple[Tokenizers, Configuration]:
    """What a checkpoint carries besides weights; messages name the files as if it were their folder.

    Raises:
        ValueError: one of them is missing, or cannot be read by this program.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, data in content["dragoman"]["files"].items():
            Path(folder, Path(name).name).write_bytes(data)
        try:
            return Tokenizers.load(Path(folder)), read_configuration(Path(folder) / "config.yaml")
        except (ValueError, OSError) as error:
            raise ValueError(str(error).replace(folder, str(checkpoint))) from error


def _load_weights(model: EncoderDecoder, state: dict[str, Tensor], origin: Path) -> EncoderDecoder:
    expected = model.state_dict()
    missing = sorted(expected.keys() - state.keys())
    if missing:
        raise ValueError(f"{origin}: weights are missing: {', '.join(missing)}")
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape:
            raise ValueError(
                f"{origin}: {name} is {list(state[name].shape)}, but its config.yaml makes it {list(tensor.shape)}"
            )
    if unknown := sorted(state.keys() - expected.keys()):
        warnings.warn(f"{origin}: unknown weights are ignored: {', '.join(unknown)}", stacklevel=3)
    model.load_state_dict(state, strict=False)
    return model.eval()
