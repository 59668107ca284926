"""hFedF's autoencoder (Table 9), which summarizes a client's images in a few numbers."""

import flax.linen as nn

from fedjax_lab.models import layers
from fedjax_lab.models.kernels import CPU, Kernels
from fedjax_lab.types import Array


class Autoencoder(nn.Module):
    """Encoder: two convolutions and a dense layer; the decoder mirrors it.

    9,395 + 4,097 e parameters at 32x32x3.
    """

    latent: int  # e, size of the latent code
    kernels: Kernels = CPU

    @nn.compact
    def __call__(self, x: Array) -> tuple[Array, Array]:
        """x [B, H, W, C] in 0..1 -> reconstruction like x, latent [B, e]; H, W multiples of 4."""
        z = x
        for channels in (16, 32):
            z = layers.Conv(channels, 3, padding=1, pool=2, kernels=self.kernels)(z)
        code = layers.dense(z.reshape(x.shape[0], -1), self.latent)
        y = layers.dense(code, z[0].size).reshape(z.shape)
        y = nn.relu(_upsample(y, 16))
        return nn.sigmoid(_upsample(y, x.shape[-1])), code


def _upsample(x, channels):
    """A transposed convolution that doubles height and width, initialized as in PyTorch."""
    init = layers.torch_uniform(4 * channels)
    up = nn.ConvTranspose(
        channels, (2, 2), strides=(2, 2), padding="VALID", kernel_init=init, bias_init=init
    )
    return up(x)
