"""Wrappers of any method that change its examples, its messages or its aggregation.

A transform is a function (method, task, *, settings) -> Method. A transform that makes a run
private also gets a `guarantee.Setup` as its third argument and sets `Extra.guarantee`. A transform
may change anything in the method; most of them only change its updates: those of each client on its
own (`uplink`), or those of a whole round at once (`cohort`). A transform raises BadInput for a
method that it cannot change. The message is printed after the method's name, so it refers to the
method as "it".
"""

from fedjax_lab.transforms.guarantee import Setup
from fedjax_lab.types import Method, Task


def none(method: Method, task: Task, setup: Setup | None = None) -> Method:
    """Returns the method unchanged."""
    return method
