"""Wrappers of any method that change what is uploaded, or how uploads are aggregated.

A transform is a function (method, task, *, settings) -> Method; one that makes a run private gets
`guarantee.Setup` as its third argument and sets `Method.guarantee`. It may change anything in the
method; most change its updates alone, each client's (`uplink`) or those of a whole round at once
(`cohort`). BadInput where the method cannot be changed so; the reader sees it after the method's
name, so its subject is "it".
"""

from fedjax_lab.transforms.guarantee import Setup
from fedjax_lab.types import Method, Task


def none(method: Method, task: Task, setup: Setup | None = None) -> Method:
    """The method as it is."""
    return method
