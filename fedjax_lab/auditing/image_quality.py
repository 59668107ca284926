"""How alike images are: PSNR, SSIM, and which of several stands for which."""

from typing import NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.optimize import linear_sum_assignment

MOST = 100.0  # dB, of images that are equal
SIGMA, RADIUS = 1.5, 5  # of SSIM's Gaussian window


def psnr(mse: np.ndarray) -> np.ndarray:
    """The peak signal-to-noise ratio in dB for these mean squared errors of images in 0..1."""
    return -10 * np.log10(np.maximum(mse, 10 ** (-MOST / 10)))


def matched(true: np.ndarray, made: np.ndarray) -> np.ndarray:
    """For each true example [N, D] the number of the one that was made for it, each used once.

    The assignment is the one with the smallest sum of squared errors.
    """
    errors = ((true[:, None] - made[None]) ** 2).mean(-1)
    return linear_sum_assignment(errors)[1]


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """The structural similarity of two images [H, W, ...] in 0..1 (Wang et al., TIP 2004).

    It is 1 for equal images, and the mean over all pixels that are far enough from the border for
    the window of 11 x 11 pixels; over all pixels of an image that is smaller than it.
    """
    size = (SIGMA, SIGMA, *[0.0] * (a.ndim - 2))

    def mean(x):
        return gaussian_filter(x, size, radius=[RADIUS, RADIUS, *[0] * (a.ndim - 2)])

    a, b = a.astype(np.float64), b.astype(np.float64)
    mu_a, mu_b = mean(a), mean(b)
    var_a, var_b = mean(a * a) - mu_a**2, mean(b * b) - mu_b**2
    cov = mean(a * b) - mu_a * mu_b
    c1, c2 = 0.01**2, 0.03**2
    each = (2 * mu_a * mu_b + c1) * (2 * cov + c2)
    each /= (mu_a**2 + mu_b**2 + c1) * (var_a + var_b + c2)
    inside = tuple(slice(RADIUS, -RADIUS) if n > 2 * RADIUS else slice(None) for n in a.shape[:2])
    return float(each[inside].mean())


class Likeness(NamedTuple):
    """How alike true and made examples are, one number each."""

    psnr: np.ndarray  # [N] dB
    ssim: np.ndarray | None  # [N]; None: they are no images


def compare(true: np.ndarray, made: np.ndarray) -> Likeness:
    """Compares examples [N, ...] in 0..1, in this order."""
    flat = [each.reshape(len(each), -1) for each in (true, made)]
    ratio = psnr(((flat[0] - flat[1]) ** 2).mean(1))
    if true.ndim < 3:
        return Likeness(ratio, None)
    return Likeness(ratio, np.array([ssim(a, b) for a, b in zip(true, made, strict=True)]))
