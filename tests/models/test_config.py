"""Choices that do not go together are refused where they are read, with option, value and remedy."""

from dataclasses import replace

import pytest

from models.config import ModelConfig

RECURRENT = ModelConfig(architecture="recurrent", d_model=8, num_heads=2)


@pytest.mark.parametrize(
    "choice, remedy",
    [
        ({"attention": "performer"}, "dot_product"),
        ({"attention": "elu"}, "dot_product"),
        ({"positions": "rotary"}, "sinusoidal"),
        ({"attention_kernel": "flex"}, "auto"),
        ({"attention_window": 4}, "0"),
        ({"num_key_value_heads": 1}, "0"),
        ({"norm": "rms"}, "layer"),
        ({"norm_order": "post"}, "pre"),
        ({"activation": "swiglu"}, "relu"),
        ({"activation_dropout": 0.1}, "0"),
    ],
    ids=str,
)
def test_what_only_the_transformer_has_is_refused_by_the_recurrent_model(choice, remedy):
    [(name, value)] = choice.items()
    message = f"model.{name}={value} does not go with model.architecture=recurrent: set model.{name}={remedy}"
    with pytest.raises(ValueError, match=message):
        replace(RECURRENT, **choice)


@pytest.mark.parametrize("attention", ["dot_product", "additive", "none"])
def test_the_recurrent_model_takes_any_attention_that_it_has(attention):
    assert replace(RECURRENT, attention=attention, positions="none", num_key_value_heads=2).attention == attention


def test_where_there_is_no_attention_there_are_no_weights_to_drop():
    with pytest.raises(ValueError, match=r"attention_dropout=0\.1 does not go with model\.attention=none"):
        replace(RECURRENT, attention="none", attention_dropout=0.1)
