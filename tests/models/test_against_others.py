"""With the same weights, our Transformer is torch's and Hugging Face's."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from models.config import ModelConfig
from models.transformer import Transformer

V = 17
D = 16
SMALL = ModelConfig(encoder_layers=2, decoder_layers=3, d_model=D, d_ff=32, num_heads=4)
SOURCE = torch.tensor([[4, 5, 6, 7, 8, 3], [9, 10, 3, 0, 0, 0]])
TARGET_IN = torch.tensor([[2, 5, 6, 7], [2, 8, 9, 10]])


def randomise(module):
    """Biases and norms too, which start at zero and one."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


@pytest.mark.parametrize("kernel", ["plain", "fused"])
@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_equals_torch(norm_order, kernel):
    ours = Transformer(replace(SMALL, norm_order=norm_order, attention_kernel=kernel), V, V, 0).eval()
    randomise(ours)
    # torch's own constructor ends post-norm stacks with one norm more than the paper.
    layer = {"dim_feedforward": 32, "dropout": 0.0, "batch_first": True, "norm_first": norm_order == "pre"}
    stacks = {
        "custom_encoder": nn.TransformerEncoder(
            nn.TransformerEncoderLayer(D, 4, **layer), 2, ours.encoder_norm, enable_nested_tensor=False
        ),
        "custom_decoder": nn.TransformerDecoder(nn.TransformerDecoderLayer(D, 4, **layer), 3, ours.decoder_norm),
    }
    theirs = nn.Transformer(D, 4, **stacks, **layer).eval()

    def copy(attention, query_key_value, output):
        for kind in "weight", "bias":
            joint = torch.cat([getattr(linear, kind).data for linear in query_key_value])
            getattr(attention, f"in_proj_{kind}").data.copy_(joint)
        attention.out_proj.load_state_dict(output.state_dict())

    for mine, other in zip(
        [*ours.encoder, *ours.decoder], [*theirs.encoder.layers, *theirs.decoder.layers], strict=True
    ):
        copy(other.self_attn, [mine.self_attention.query_key_value], mine.self_attention.output)
        if hasattr(other, "multihead_attn"):
            cross = mine.cross_attention
            copy(other.multihead_attn, [cross.query, cross.key_value], cross.output)
        other.linear1.load_state_dict(mine.feed_forward[0].state_dict())
        other.linear2.load_state_dict(mine.feed_forward[-1].state_dict())
        for number, residual in enumerate(mine.residuals, start=1):
            getattr(other, f"norm{number}").load_state_dict(residual.norm.state_dict())

    padding = SOURCE == 0
    hidden = theirs(
        ours.embed(SOURCE, ours.source_embedding, ours.source_positions),
        ours.embed(TARGET_IN, ours.target_embedding, ours.target_positions),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(4).isinf(),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    assert_close(ours.decode(TARGET_IN, ours.encode(SOURCE)), hidden, atol=1e-5, rtol=1e-5)
    assert_close(ours(SOURCE, TARGET_IN), hidden @ ours.output_weight.T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kernel", ["plain", "fused"])
def test_equals_marian(kernel):
    transformers = pytest.importorskip("transformers")
    ours = Transformer(replace(SMALL, norm_order="post", attention_kernel=kernel), V, V, 0).eval()
    randomise(ours)
    config = transformers.MarianConfig(
        vocab_size=V,
        d_model=D,
        encoder_layers=2,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        activation_function="relu",
        scale_embedding=True,
        normalize_before=False,
        pad_token_id=0,
        eos_token_id=3,
        decoder_start_token_id=2,
        max_position_embeddings=32,
        tie_word_embeddings=True,
        dropout=0.0,
        attn_implementation="eager",
    )
    theirs = transformers.MarianMTModel(config).eval()
    # The paper interleaves sines and cosines, Marian puts all sines first: the same model in another order of width.
    width = torch.cat([torch.arange(0, D, 2), torch.arange(1, D, 2)])

    def copy(linear, weight, bias, inner=False, outer=False):
        """``inner``, ``outer``: that side of the matrix lies in the permuted width."""
        weight = weight[:, width] if inner else weight
        linear.weight.data.copy_(weight[width] if outer else weight)
        linear.bias.data.copy_(bias[width] if outer else bias)

    def copy_attention(attention, projections, output):
        weights = torch.cat([linear.weight.data for linear in projections]).chunk(3)
        biases = torch.cat([linear.bias.data for linear in projections]).chunk(3)
        for name, weight, bias in zip(["q_proj", "k_proj", "v_proj"], weights, biases, strict=True):
            copy(getattr(attention, name), weight, bias, inner=True)
        copy(attention.out_proj, output.weight, output.bias, outer=True)

    model = theirs.model
    model.shared.weight.data.copy_(ours.output_weight[:, width])
    for mine, other in zip([*ours.encoder, *ours.decoder], [*model.encoder.layers, *model.decoder.layers], strict=True):
        norms = [other.self_attn_layer_norm, other.final_layer_norm]
        copy_attention(other.self_attn, [mine.self_attention.query_key_value], mine.self_attention.output)
        if hasattr(other, "encoder_attn"):
            cross = mine.cross_attention
            copy_attention(other.encoder_attn, [cross.query, cross.key_value], cross.output)
            norms.insert(1, other.encoder_attn_layer_norm)
        copy(other.fc1, mine.feed_forward[0].weight, mine.feed_forward[0].bias, inner=True)
        copy(other.fc2, mine.feed_forward[-1].weight, mine.feed_forward[-1].bias, outer=True)
        for norm, residual in zip(norms, mine.residuals, strict=True):
            copy(norm, residual.norm.weight, residual.norm.bias, outer=True)

    logits = theirs(input_ids=SOURCE, attention_mask=(SOURCE != 0).long(), decoder_input_ids=TARGET_IN).logits
    assert_close(ours(SOURCE, TARGET_IN), logits, atol=1e-5, rtol=1e-5)
