"""What is held: the parameters of each layer that lie on a GPU, of which tensor parallelism leaves some whole."""

import numpy as np

from profiles.architectures.shares import divided_parameters
from profiles.costs.layers import FloatArray
from strategies.sampling_scenario import SamplingScenario


def held_parameters(scenario: SamplingScenario, tensor: int = 1) -> FloatArray:
    """Parameters of each of the backbone's layers on a GPU, shape (layers,).

    Matrices that tokens pass, and convolutions, are divided; norms, embeddings and modulations are whole, as in
    DistriFusion's baseline and in vLLM-Omni (vllm_omni/diffusion/models). SGLang divides those of some models.

    Args:
        scenario: its model.
        tensor: devices that divide the matrices.
    """
    return scenario.remember(("held", tensor), lambda: _held_parameters(scenario, tensor))


def _held_parameters(scenario: SamplingScenario, tensor: int) -> FloatArray:
    of = scenario.backbone
    whole = np.array([layer.parameters for layer in of.layers], dtype=np.float64)
    if tensor == 1:
        return whole
    layers = range(len(of.layers))
    divided = np.array([divided_parameters(of, layer, convolutions=True) for layer in layers])
    held: FloatArray = whole - divided + divided / tensor
    return held
