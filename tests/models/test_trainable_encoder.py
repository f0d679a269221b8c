"""The text encoder in torch gives the numbers of the one without, up to the rounding of its products."""

from __future__ import annotations

import numpy as np
import pytest

from metrist.models.loading import load_text_encoder
from tiny_text_encoders import write_text_encoder

torch = pytest.importorskip("torch", reason="torch is not installed")

from metrist.models.trainable_encoder import TrainableEncoder, collate_sequences  # noqa: E402

TEXTS = [("the dog sat on the mat.", "john has one old dog, and mary two."), ("rain!", "the river is big"), ("a", "b")]


def score_in_torch(model, sequences, spans):
    states = model(*collate_sequences(sequences))
    rows, starts, ends = torch.tensor([(row, *span) for row, own in enumerate(spans) for span in own]).T
    return model.score_spans("support", states, rows, starts, ends).detach().numpy()


@pytest.mark.parametrize("kind", ["bert", "nomic"])
def test_torch_and_the_shipped_runtime_agree(tmp_path, kind):
    folder = write_text_encoder(tmp_path / "model", kind=kind)
    encoder = load_text_encoder(str(folder))
    tokens = [[encoder.encode([text])[0].ids for text in pair] for pair in TEXTS]
    sequences = [encoder.join(*pair) for pair in tokens]
    spans = [[(1, 1 + len(first)), (1, 2)] for first, _ in tokens]
    expected = np.concatenate(encoder.score_spans("support", sequences, spans))[:, 0]
    computed = score_in_torch(TrainableEncoder.load(folder, "support"), sequences, spans)
    np.testing.assert_allclose(computed, expected, atol=0.4)
    assert np.corrcoef(computed, expected)[0, 1] > 0.99


@pytest.mark.parametrize("kind", ["bert", "nomic"])
def test_padding_changes_nothing(tmp_path, kind):
    model = TrainableEncoder.load(write_text_encoder(tmp_path / "model", kind=kind), "support")
    sequences = [(np.arange(4, 4 + length), 3) for length in (5, 9, 30)]
    spans = [[(1, 3)]] * 3
    together = score_in_torch(model, sequences, spans)
    alone = [score_in_torch(model, [sequence], [[(1, 3)]])[0] for sequence in sequences]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_an_exported_model_is_read_back(tmp_path):
    folder = write_text_encoder(tmp_path / "model")
    model = TrainableEncoder.load(folder, "support")
    out = tmp_path / "out"
    out.mkdir()
    model.export(folder, out, bits=7)
    assert {path.name for path in out.iterdir()} == {path.name for path in folder.iterdir()}
    again = TrainableEncoder.load(out, "support")
    sequences, spans = [(np.arange(4, 30), 9)], [[(1, 8)]]
    np.testing.assert_allclose(
        score_in_torch(again, sequences, spans), score_in_torch(model, sequences, spans), atol=0.05
    )
    # The other heads were not trained with it.
    assert load_text_encoder(str(out)).heads == ("support",)
