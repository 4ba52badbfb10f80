"""Any torch module is counted by its layers; what torch itself counts on a real pass is the sum."""

import json
from types import SimpleNamespace

import pytest
import torch
from diffusers.models import DiTTransformer2DModel
from making import refused
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

import sim
from profiles.errors import DiffusimNote
from profiles.measuring.counting.configured import architecture
from profiles.measuring.counting.module import pass_of, token_side
from profiles.measuring.counting.networks import Experts
from profiles.measuring.counting.specs import CONFIGS
from profiles.measuring.counting.tally import Tally, total

pytestmark = pytest.mark.slow


def count(module, **sample):
    """The work of a module in one pass, by layer and in all."""
    trace, parts = pass_of(module, sample)
    work = Tally(trace, parts, {}).work
    layers = dict(zip((part.name for part in parts), work, strict=True))
    return SimpleNamespace(layers=layers, total=total(work))


DOUBLE = 8  # bytes


class Block(nn.Module):
    """Self-attention and an MLP."""

    def __init__(self, width=32):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens):
        heads = self.mix(self.norm(tokens)).unflatten(-1, (3, 4, -1)).transpose(1, 3).unbind(2)
        return tokens + self.mlp(scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Blocks in a list behind an embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(32, 100)

    def forward(self, numbers):
        hidden = self.embedding(numbers)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def convolutional():
    features = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, 2)
    )
    return nn.Sequential(features, nn.Flatten(), nn.Linear(4 * 16 * 16, 10))


def dit():
    return DiTTransformer2DModel(
        num_layers=2, num_attention_heads=2, attention_head_dim=16, sample_size=8, out_channels=8
    )


SAMPLES = {
    Transformer: lambda: {"numbers": torch.randint(0, 100, (2, 12))},
    convolutional: lambda: {"input": torch.randn(2, 3, 8, 8)},
    dit: lambda: {
        "hidden_states": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor([3, 4]),
        "class_labels": torch.tensor([1, 2]),
    },
}
MODULES = pytest.mark.parametrize("make", SAMPLES, ids=lambda make: make.__name__)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@MODULES
def test_parameters_and_flop_are_those_of_a_real_pass(make):
    module, sample = make().eval(), SAMPLES[make]()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(**sample)
    counted = count(module, **sample)
    assert len(counted.layers) > 1
    assert counted.total.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert counted.total.flop == counter.get_total_flops()


@pytest.mark.parametrize("make", [convolutional, dit], ids=lambda make: make.__name__)
def test_saved_bytes_are_what_autograd_keeps_in_a_real_pass(make):
    """Of modules whose attention is none, or fused on the CPU as well, which keeps the same tensors."""
    module, sample = make().eval(), SAMPLES[make]()
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # which keeps its address its own
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = module(**sample)
    del output
    assert count(module, **sample).total.saved_bytes == pytest.approx(sum(n for n, _ in kept.values()), 0.01)


def test_layers_are_blocks_and_hold_what_runs_before_them():
    layers = count(Transformer().double(), numbers=torch.zeros(1, 12, dtype=torch.long)).layers
    assert list(layers) == ["block0", "block1", "block2"]
    first, second, last = layers.values()
    block = sum(parameter.numel() for parameter in Block().parameters())
    assert [work.parameters for work in layers.values()] == [100 * 32 + block, block, block + 32 * 100 + 100]
    products = 2 * 12 * 32 * (3 + 2 + 2) * 32
    assert first.matmul_flop == second.matmul_flop == products
    assert last.matmul_flop == products + 2 * 12 * 32 * 100
    assert {work.attention_flop for work in layers.values()} == {2 * (2 * 12 * 12 * 32)}
    assert second.output_bytes == 12 * 32 * DOUBLE


def test_bytes_and_kernels_are_those_of_each_operator():
    """An activation reads and writes; a product streams its operands; a convolution's bias is a kernel of its own."""
    net = nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 4 * 4, 2)).double()
    layers = count(net, input=torch.empty(1, 3, 4, 4, dtype=torch.float64)).layers
    image = 5 * 4 * 4 * DOUBLE
    assert {name: (work.moved_bytes, work.kernels) for name, work in layers.items()} == {
        "0": (2 * image, 2), "1": (2 * image, 1), "2": (0, 0), "3": (0, 1)
    }  # fmt: skip


def test_a_block_that_runs_twice_is_one_layer_with_what_runs_it():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, tokens):
            return self.block(self.block(tokens))

    layers = count(Twice(), tokens=torch.empty(1, 4, 32)).layers
    assert len(layers) == 1
    assert count(nn.Linear(3, 5), input=torch.empty(1, 3)).layers.keys() == {"Linear"}


def test_experts_have_the_parameters_of_all_and_the_work_of_the_chosen():
    counted = count(Experts(width=8, inner=16, experts=4, chosen=2), tokens=torch.empty(1, 6, 8)).total
    expert = 3 * 8 * 16
    assert counted.parameters == 8 * 4 + (4 + 1) * expert
    assert counted.matmul_flop == 2 * 6 * (8 * 4 + (2 + 1) * expert)


def test_a_mask_with_contents_picks_as_many_tokens_as_it_says_and_attention_may_have_no_heads():
    class Picking(nn.Module):
        def forward(self, tokens, mask):
            picked = tokens[:, mask]
            return scaled_dot_product_attention(picked, picked, picked)

    mask = torch.tensor([True, False, True, True, False])
    counted = count(Picking(), tokens=torch.empty(1, 5, 8), mask=mask).total
    assert (counted.attention_flop, counted.kernels) == (2 * (2 * 3 * 3 * 8), 2)
    assert counted.moved_bytes == 2 * (3 * 8 * 4)  # of picking: attention moves nothing


def test_a_pass_that_needs_numbers_is_refused_in_one_line():
    class Peeking(nn.Module):
        def forward(self, tokens):
            return tokens * tokens.sum().item()

    with refused("Peeking cannot run on the meta device: "):
        count(Peeking(), tokens=torch.ones(3))


# Models


def test_a_module_is_a_model_that_runs():
    model = sim.count(Transformer(), {"numbers": torch.zeros(1, 12, dtype=torch.long)}, name="mine")
    counted = count(Transformer(), numbers=torch.zeros(1, 12, dtype=torch.long))
    (backbone,) = model.components
    assert [layer.name for layer in backbone.layers] == ["block0", "block1", "block2"]
    assert backbone.parameters == counted.total.parameters
    assert sum(layer.matmul_flop for layer in backbone.layers) == counted.total.matmul_flop
    result = sim.run(model, "1f1b", gpus=2, pipeline_degree=2, micro_batches=4, batch_size=8)
    assert (result.model, sum(of["parameters"] for of in result.stages)) == ("mine", backbone.parameters)
    with refused("tokens of an image are not known of backbone, only its work at 1: count it anew"):
        sim.run(model, "ddp", gpus=2, resolution=2)
    with pytest.raises(sim.InfeasibleError, match=r"sim\.count makes them where told the image's pixels"):
        sim.run(model, "distrifusion", gpus=2)
    assert sim.count(nn.Linear(3, 5), {"input": torch.empty(1, 3)}, guidance="none").guidance == "none"

    class Guided(nn.Linear):
        def forward(self, guidance):
            return super().forward(guidance)

    assert sim.count(Guided(1, 5), {"guidance": torch.empty(1)}).guidance == "embedded"
    with refused("name is 'sd21', must be a name that no shipped model has"):
        sim.count(nn.Linear(3, 5), {"input": torch.empty(1, 3)}, name="sd21")
    with refused("hidden is of 4 samples, must be of one: its first dimension 1"):
        sim.count(nn.Linear(3, 5), {"hidden": torch.empty(4, 3)})
    assert sim.count(nn.Linear(3, 5), {"input": torch.empty(1, 3)}).components[0].parameters == 20
    for module, inputs in ((nn.Linear, {}), (nn.Identity(), {}), (nn.Linear(3, 5), (torch.empty(1, 3),))):
        with refused("module is .*, must be an nn.Module with parameters|inputs is a tuple, must be a dict"):
            sim.count(module, inputs)


@pytest.mark.parametrize("shipped", ["pixart", pytest.param("sd3-medium", marks=pytest.mark.long)])
def test_a_module_exchanges_and_grows_as_the_shipped_model_of_its_class(shipped, tmp_path):
    of = architecture(shipped)
    spec = next(spec for spec in of.components if spec.trainable)
    with torch.device("meta"):
        module, inputs = spec.build(), spec.sample(of.height, of.width)
    size, folder = {"height": of.height, "width": of.width}, str(tmp_path / "mine")
    model = sim.count(module, inputs, name="mine", output=folder, **size)
    (mine,), (theirs,) = model.components, [c for c in sim.load_model(shipped).components if c.trainable]
    assert (mine.exchanges, mine.kernels[5]) == (theirs.exchanges, theirs.kernels[5])
    asked = {"gpus": 2, "steps": 2, "resolution": of.height // 2}
    drawn = sim.run(folder, "pipefusion", **asked)
    assert drawn.latency_s == sim.run(model, "pipefusion", **asked).latency_s
    (tmp_path / "mine.toml").write_text(json.dumps(drawn.to_json()))
    assert sim.run(**sim.load_experiment(tmp_path / "mine.toml")) == drawn


@pytest.mark.parametrize(
    ("tokens", "height", "width", "side"),
    [(2400, 480, 1280, 16), (4429, 1024, 1024, 16), (257, 256, 256, 16), (256, 224, 224, 14), (12, 1, 1, 0)],
)
def test_tokens_of_an_image_are_squares_beside_which_text_may_stand(tokens, height, width, side):
    assert token_side(tokens, height, width) == side


def test_a_configuration_is_the_backbone_of_the_shipped_model(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS["pixart_transformer"]))
    said = "config.json is counted as model pixarttransformer2dmodel, a backbone"
    with pytest.warns(DiffusimNote, match=said):
        result = sim.run(str(file), "ddp", gpus=2, batch_size=2)
    (backbone,) = result.source.scenario.model.components
    (theirs,) = (of for of in sim.load_model("pixart").components if of.trainable)
    assert (backbone.layers, backbone.kernels) == (theirs.layers, theirs.kernels)
    file.write_text(json.dumps(CONFIGS["wan_transformer"] | {"sample_size": 64}))
    said = r"makes videos; give the latent's --frames: `sim measure count --config .* --output DIR` takes it"
    with refused(said):
        sim.run(str(file), "ddp", gpus=2)
    file.write_text(json.dumps(CONFIGS["flux_transformer"] | {"num_layers": 1, "num_single_layers": 1}))
    with refused("config.json: sample_size is missing; resolution gives the pixels, such as 1024"):
        sim.run(str(file), "ddp", gpus=2)
    with pytest.warns(DiffusimNote, match="is counted"):
        assert sim.run(str(file), "ddp", gpus=2, batch_size=2, resolution=1024).resolution == "1024"
    file.write_text(json.dumps(CONFIGS["pixart_transformer"]))
    launch = sim.launch(result)
    assert json.loads(launch.files["config.json"]) == CONFIGS["pixart_transformer"]
    assert "height=1024, width=1024" in launch.files["train.py"]
