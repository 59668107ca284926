"""Generated patients of hospitals that measure on unlike scales and treat unlike patients.

  z     ~ N(m_h, I),  m_h ~ N(0, shift^2 I)                   what a patient of hospital h has
  x     = a_h z + b_h,  log a_h and b_h ~ N(0, device^2 I)    what the hospital measures
  days  = 10 exp(w . z / (2 sqrt(D))) + e,  e ~ N(0, 1)       the length of the stay

The numbers of patients are log-normal. One w ~ N(0, I) is drawn for all hospitals.
"""

import numpy as np

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.sources._generated import (
    Spread,
    draw_sizes,
    training_counts,
    user_dataset,
)
from fedjax_lab.ranges import BelowOne, NotNegative, Positive, checked

SPREAD = 0.7  # standard deviation of the logarithm of a hospital's number of patients
LEAST = 5  # smallest number of patients of a hospital


@checked("data")
def hospitals(
    *,
    num_users: Positive[int] = 12,
    patients: Positive[int] = 200,
    dimension: Positive[int] = 8,
    shift: Spread = 0.5,
    device: Spread = 0.2,
    longer_than: NotNegative[float] = 0.0,
    test_share: BelowOne = 0.2,
    seed: NotNegative[int] = 0,
    normalize: str = "standard",
) -> Dataset:
    """Hospitals: examples x [R, D] float32 with the days of the stay as labels y [R] float32.

    num_users: the number of hospitals, the natural users for partition by_client.
    patients: the median number of patients of a hospital.
    dimension: D, the number of measurements of a patient.
    shift: how far the means of the hospitals' patients are apart.
    device: how far the scales and the offsets of the hospitals' devices are apart.
    longer_than: if above 0, the label is whether the stay has more days, for the task binary.
    test_share: the fraction of each hospital's patients that is for testing.
    seed: the random seed.
    normalize: config.data.normalize.
    """
    rng = np.random.default_rng(seed)

    def draw(count):
        return np.maximum(LEAST, patients * np.exp(SPREAD * rng.normal(size=count)))

    w = rng.normal(size=dimension)
    sizes = draw_sizes(draw, num_users, least=LEAST, example_bytes=8 * dimension)
    m, b = (rng.normal(0, scale, (num_users, dimension)) for scale in (shift, device))
    a, of = np.exp(rng.normal(0, device, b.shape)), np.repeat(np.arange(num_users), sizes)
    z = rng.normal(m[of])
    days = 10 * np.exp(z @ w / np.sqrt(dimension) / 2) + rng.normal(size=len(z))
    x, y = (a[of] * z + b[of]).astype(np.float32), days.astype(np.float32)
    if longer_than:
        y = (days > longer_than).astype(np.int32)
    made = user_dataset(
        x,
        y,
        sizes,
        training_counts(sizes, test_share),
        classes=("shorter", "longer") if longer_than else (),
        domains=("hospitals",),
    )
    return made._replace(users=tuple(f"hospital {h}" for h in range(num_users)))
