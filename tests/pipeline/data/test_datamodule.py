import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

from pipeline.data.batching import Batch
from pipeline.data.config import CorporaConfig, CorpusConfig, PreparationConfig
from pipeline.data.datamodule import TranslationData
from pipeline.data.encoded import EncodedPairs
from pipeline.data.preparation import prepare
from pipeline.data.tokenizer import EOS_ID, PAD_ID
from tests.pipeline.data.conftest import write_lines

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def data(configuration):
    return TranslationData(configuration, prepare(configuration))


def at(data: TranslationData, global_step=0, global_rank=0, world_size=1) -> TranslationData:
    rank = dict(global_rank=global_rank, local_rank=global_rank, node_rank=0, world_size=world_size)
    rank |= dict(is_global_zero=global_rank == 0)
    data.trainer = SimpleNamespace(global_step=global_step, **rank)
    return data


def sentences(batch: Batch) -> list[tuple[int, ...]]:
    return [tuple(id for id in row if id not in (PAD_ID, EOS_ID)) for row in batch.source.tolist()]


def test_an_epoch_holds_every_pair_once(data):
    seen = [row for batch in at(data).train_dataloader() for row in sentences(batch)]
    assert sorted(seen) == sorted(map(tuple, data.prepared.train["source_ids"]))


def test_both_sides_of_a_row_belong_together(data):
    pairs = {tuple(row["source_ids"]): row["target_ids"] for row in data.prepared.train}
    for batch in at(data).train_dataloader():
        for source, target in zip(sentences(batch), batch.target_out.tolist(), strict=True):
            assert [id for id in target if id not in (PAD_ID, EOS_ID)] == pairs[source]


def test_pairs_that_are_too_long_are_left_out_and_counted(configuration):
    prepared = prepare(configuration)
    longest = max(len(ids) for ids in prepared.train["source_ids"])
    batching = replace(configuration.batching, max_source_tokens=longest - 1)
    data = TranslationData(replace(configuration, batching=batching), prepared)
    expected = [tuple(ids) for ids in prepared.train["source_ids"] if len(ids) < longest]
    assert sorted(row for batch in at(data).train_dataloader() for row in sentences(batch)) == sorted(expected)
    assert data.num_skipped == 60 - len(expected) > 0


def test_a_long_validation_pair_is_a_batch_of_its_own(configuration):
    batching = replace(configuration.batching, tokens_per_batch=12)
    data = TranslationData(replace(configuration, batching=batching), prepare(configuration))
    batches = list(at(data).val_dataloader())
    assert sum(len(batch.source) for batch in batches) == 7
    assert max(batch.source.size(1) for batch in batches) > 12


def test_limits_that_leave_no_pair_are_refused(configuration):
    batching = replace(configuration.batching, max_target_tokens=1)
    with pytest.raises(ValueError, match="none of 60 training pairs is within batching.max_source_tokens=256"):
        TranslationData(replace(configuration, batching=batching), prepare(configuration))


@pytest.mark.parametrize("world_size", [1, 2, 5, 9])
def test_ranks_share_the_validation_pairs_without_repeating_any(data, world_size):
    batches = [batch for rank in range(world_size) for batch in at(data, 0, rank, world_size).val_dataloader()]
    seen = [row for batch in batches for row in sentences(batch)]
    assert sorted(seen) == sorted(map(tuple, data.prepared.valid["source_ids"]))
    tokens = sum(int((batch.target_out != PAD_ID).sum()) for batch in batches)
    assert {batch.update_tokens for batch in batches} == {tokens}


@pytest.mark.parametrize("regularisation", [0, 0.2])
def test_workers_change_nothing(configuration, regularisation):
    configuration = regularised(configuration, regularisation)
    data = TranslationData(configuration, prepare(configuration))
    with_workers = TranslationData(
        replace(configuration, batching=replace(configuration.batching, num_workers=2)), data.prepared
    )
    alone, shared = (list(at(module, global_step=1).train_dataloader()) for module in (data, with_workers))
    assert len(alone) == len(shared) > 2
    for one, other in zip(alone, shared, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))
        assert one.update_tokens == other.update_tokens


def test_loading_leaves_the_global_random_numbers_alone(data):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(at(data).train_dataloader())
    list(at(data).val_dataloader())
    assert torch.equal(torch.get_rng_state(), before)


def test_pairs_sent_to_a_worker_carry_no_ids(data):
    sent = pickle.dumps(data.train)
    again = pickle.loads(sent)
    assert isinstance(again, EncodedPairs)
    assert (again.source_lengths == data.train.source_lengths).all()
    assert len(sent) < 5000


def two_corpora(configuration, **settings):
    """The sixty pairs as a corpus of which an epoch reads a third, and a small one that it reads three times."""
    folder = Path(configuration.output.data).parent
    small = [
        write_lines(folder / f"small.{side}", [f"{side} small {n} ra ke" for n in range(9)]) for side in ("a", "b")
    ]
    corpora = configuration.corpora
    parts = [CorpusConfig(train=corpora.train, weight=1 / 3), CorpusConfig(train=small, weight=3)]
    both = CorporaConfig(parts=parts, valid_size=7, test_size=0, **settings)
    return replace(configuration, corpora=both)


def test_corpora_are_read_as_often_as_their_weights_say(configuration):
    data = TranslationData(two_corpora(configuration), prepare(two_corpora(configuration)))
    first, second = data.sizes
    assert data.reads == [round(first / 3), 3 * second]
    updates = len(at(data).train_dataloader())
    read = Counter()
    for epoch in range(3):
        batches = list(at(data, global_step=epoch * updates).train_dataloader())
        assert len(batches) == updates
        read.update(row for batch in batches for row in sentences(batch))
    corpus = {tuple(row["source_ids"]): row["corpus"] for row in data.prepared.train}
    assert {count for row, count in read.items() if corpus[row] == 1} == {9}
    assert sum(count for row, count in read.items() if corpus[row] == 0) == 3 * data.reads[0]
    assert {count for row, count in read.items() if corpus[row] == 0} <= {1, 2}


def regularised(configuration, amount=0.3, **batching):
    return replace(
        configuration,
        tokenizer=replace(configuration.tokenizer, vocab_size=90, regularisation=amount),
        batching=replace(configuration.batching, **batching),
    )


def test_training_reads_other_segmentations_of_the_same_text_every_epoch(configuration):
    configuration = regularised(configuration)
    data = TranslationData(configuration, prepare(configuration))
    updates = len(at(data).train_dataloader())
    epochs = [list(at(data, global_step=number * updates).train_dataloader()) for number in (0, 1, 0)]
    seen = [[row for batch in batches for row in sentences(batch)] for batches in epochs]
    assert seen[0] == seen[2]
    assert {*seen[0]} != {*seen[1]} != {*map(tuple, data.prepared.train["source_ids"])}
    for rows in seen:
        assert sorted(data.prepared.tokenizers.source.decode(rows)) == sorted(data.prepared.train["source"])
    targets = [batch.target_out[batch.target_out != PAD_ID] for batch in epochs[0]]
    expected = sum(batch.update_tokens for batch in epochs[0])
    assert sum(map(len, targets)) == pytest.approx(expected, rel=0.1)
    best = [row for batch in at(data).val_dataloader() for row in sentences(batch)]
    assert sorted(best) == sorted(map(tuple, data.prepared.valid["source_ids"]))


@pytest.mark.parametrize("max_tokens", [256, 14])
def test_segmentations_keep_to_the_budget_and_the_limits(configuration, max_tokens):
    configuration = regularised(configuration, 0.9, max_source_tokens=max_tokens, max_target_tokens=max_tokens)
    data = TranslationData(configuration, prepare(configuration))
    longer = 0
    for batch in at(data).train_dataloader():
        assert len(batch.source) == 1 or max(batch.source.numel(), batch.target_in.numel()) <= 100
        assert max(batch.source.size(1), batch.target_in.size(1)) <= max_tokens + 1
        longer += int((batch.source != PAD_ID).sum()) - len(batch.source)
    assert longer > sum(len(ids) for ids in data.prepared.train["source_ids"] if len(ids) <= max_tokens)


def test_a_tag_stays_before_every_segmentation(configuration):
    configuration = regularised(configuration)
    configuration = replace(configuration, corpora=replace(configuration.corpora, tags=True))
    data = TranslationData(configuration, prepare(configuration))
    tag = data.prepared.tokenizers.source.tags["de"]
    for loader in (at(data).train_dataloader(), at(data).val_dataloader()):
        assert all(
            (batch.source[:, 0] == tag).all() and (batch.source == tag).sum() == len(batch.source) for batch in loader
        )


class Recorder(LightningModule):
    """A model of one weight that notes the sentences of every update."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, list]] = []

    def training_step(self, batch, index):
        self.seen.append((self.trainer.current_epoch, sentences(batch)))
        return self.weight * 1.0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def train(configuration, folder, max_steps, resume=None, every=None):
    callbacks = [ModelCheckpoint(folder, filename="{step}", every_n_train_steps=every, save_top_k=-1)] if every else []
    module = Recorder()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=max_steps,
        max_epochs=-1,
        accumulate_grad_batches=configuration.trainer.accumulate_batches,
        use_distributed_sampler=False,
        callbacks=callbacks,
        enable_checkpointing=bool(every),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        default_root_dir=folder,
    )
    trainer.fit(module, datamodule=TranslationData(configuration, prepare(configuration)), ckpt_path=resume)
    return module.seen


def test_weights_and_segmentations_are_resumed_exactly(configuration, tmp_path):
    configuration = two_corpora(regularised(configuration))
    updates = len(at(TranslationData(configuration, prepare(configuration))).train_dataloader())
    whole = train(configuration, tmp_path, max_steps=2 * updates + 2, every=1)
    assert {epoch for epoch, _ in whole} == {0, 1, 2}
    for step in (2, updates, updates + 3):
        resumed = train(configuration, tmp_path, 2 * updates + 2, resume=tmp_path / f"step={step}.ckpt")
        assert resumed == whole[step:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_run_sees_exactly_what_it_would_have_seen(configuration, tmp_path, num_workers):
    configuration = replace(
        configuration,
        batching=replace(configuration.batching, num_workers=num_workers),
        trainer=replace(configuration.trainer, accumulate_batches=2),
    )
    data = at(TranslationData(configuration, prepare(configuration)))
    updates = len(data.train_dataloader()) // 2
    assert updates > 3
    whole = train(configuration, tmp_path, max_steps=2 * updates + 2, every=1)
    assert sorted(row for epoch, rows in whole if epoch == 1 for row in rows) == sorted(
        map(tuple, data.prepared.train["source_ids"])
    )
    stops = [1, updates - 1, updates, updates + 1, 2 * updates] if num_workers == 0 else [2, updates]
    for step in stops:
        resumed = train(configuration, tmp_path, 2 * updates + 2, resume=tmp_path / f"step={step}.ckpt")
        assert resumed == whole[2 * step :]


def test_ranks_share_a_streams_windows_and_whoever_goes_on_reads_what_is_left(configuration, tmp_path):
    configuration = replace(
        configuration,
        corpora=replace(configuration.corpora, stream_window=25),
        preparation=PreparationConfig(workers=1),
        output=replace(configuration.output, run=str(tmp_path / "run")),
    )
    accumulating = replace(configuration, trainer=replace(configuration.trainer, accumulate_batches=2))
    prepared = prepare(configuration)
    alone = at(TranslationData(accumulating, prepared))
    ranks = [at(TranslationData(configuration, prepared), 0, rank, 2) for rank in (0, 1)]
    together = [alone, *ranks]
    read = []
    try:
        alone.setup("fit")
        for data in ranks:
            data.stream.start(2, node=0, makes=False)
        for _ in range(3):
            first_update = alone.trainer.global_step
            of_one, *of_ranks = ([sentences(batch) for batch in data.train_dataloader()] for data in together)
            assert of_one == [batch for update in zip(*of_ranks, strict=True) for batch in update]
            read += [row for batch in of_one for row in batch]

            alone.trainer.global_step = first_update + 1
            resumed = at(TranslationData(accumulating, prepared), first_update + 1)
            resumed.load_state_dict(alone.state_dict())
            resumed.stream.start(2, node=0, makes=False)
            assert [sentences(batch) for batch in resumed.train_dataloader()] == of_one[2:]
            assert len(resumed.train_dataloader()) == len(of_one)

            for data in together:
                data.trainer.global_step = first_update + len(of_one) // 2
        assert alone.state_dict()["window"] == 3 and alone.state_dict()["places"] == [[1, 15]]
    finally:
        for data in together:
            data.teardown("fit")
    texts = (prepared.tokenizers.source.encode(Path(configuration.corpora.train[0]).read_text().splitlines()) * 2)[:75]
    assert Counter(read) == Counter(map(tuple, texts))
