"""The placement of a run's arrays on its devices: replicated, or divided among them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from fedjax_lab import tree
from fedjax_lab.engine import fsdp, parallel, shards
from fedjax_lab.models.frozen import Model
from fedjax_lab.types import CLIENT_ROWS, POOL, Array, Federation, PyTree, State


class Placement(NamedTuple):
    """Puts the arrays of a run on its devices, or only describes them.

    Arrays with an entry for each client are padded with zeros to a multiple of the devices among
    which they are divided, and so is the pool of examples.
    """

    strategy: parallel.Strategy
    num_clients: int  # that are scored, without padding
    num_training: int  # that train: the same, or one that has all examples
    seeds: int  # length of the leading axis of arrays that depend on the seed; 0: no such axis
    abstract: bool  # return descriptions (`ShapeDtypeStruct`) instead of arrays

    @property
    def parts(self) -> int:
        """The number of devices among which the clients are divided."""
        sharding = self.strategy.by_client
        return 1 if sharding is None else parallel.num_parts(sharding)

    @property
    def padding(self) -> int:
        """The number of entries of padding after the last client that is scored."""
        return -self.num_clients % self.parts

    def put(self, a: PyTree, compared: bool = True) -> PyTree:
        """Copies arrays that every process has to all devices, as `parallel.put`."""
        if self.abstract:
            return self.described(a, self.strategy.sharding)
        return parallel.put(a, self.strategy.sharding, compared)

    def put_base(self, model: Model) -> PyTree:
        """The frozen weights of a model on all devices, or divided within groups of them."""
        whole = self.strategy.sharding
        if self.strategy.group == 1:
            return self.put(model.base if self.abstract else model.load())
        assert isinstance(whole, NamedSharding)
        divided = fsdp.shardings(whole, model.base)
        if self.abstract:
            return self.described(model.base, divided)
        return jax.tree.map(parallel.put, model.load(), divided)

    def put_pool(self, a: Any) -> Array:
        """An array with an entry for each example [R, ...], the same for all seeds."""
        if self.strategy.by_row is None:
            return self.put(a if self.abstract else np.asarray(a))
        return self._put_divided(a, self.strategy.by_row, axis=0)

    def dealt(self, federations: Sequence[Federation]) -> list[Federation]:
        """The federations of all seeds, with rows in the layout of the devices."""
        if self.strategy.by_client is None:
            return list(federations)
        rows = {name: [getattr(f, name) for f in federations] for name in CLIENT_ROWS}
        for name, of_seeds in rows.items():
            if of_seeds[0] is not None:
                rows[name] = shards.deal(of_seeds, self.parts)
        each = zip(federations, zip(*rows.values(), strict=True), strict=True)
        return [f._replace(**dict(zip(rows, of_seed, strict=True))) for f, of_seed in each]

    def put_rows(self, rows_by_seed: Sequence[Any]) -> Any:
        """Puts the `Rows` of these seeds, or None, as one tree."""
        return None if rows_by_seed[0] is None else self.put_clients(rows_by_seed)

    def put_clients(self, of_seeds: Sequence[PyTree]) -> PyTree:
        """Puts trees of NumPy arrays [C, ...] of clients, one per seed, as one tree."""
        joined = jax.tree.map(lambda *a: np.stack(a), *of_seeds) if self.seeds else of_seeds[0]
        sharding = self.client_sharding
        if sharding is None:
            return self.put(joined)
        axis = int(self.seeds > 0)
        return jax.tree.map(lambda a: self._put_divided(a, sharding, axis), joined)

    def put_segment(self, a: PyTree) -> PyTree:
        """This process's segment of arrays that are divided among the devices (`owners`)."""
        sharding = self.strategy.by_client
        if sharding is None:
            return self.put(a)
        if self.abstract:
            return self.described(a, sharding)
        return parallel.put_segment(a, sharding)

    def put_part(self, part: Federation) -> Federation:
        """A federation of some clients (`host.subsets`); its pool may already be on the devices.

        Its arrays of clients and examples are those of this process's segment.
        """
        names = (*CLIENT_ROWS, *(POOL if isinstance(part.x, np.ndarray) else ()))
        divided: dict[str, Any] = {name: getattr(part, name) for name in names}
        pool: dict[str, Any] = {name: getattr(part, name) for name in POOL}
        nothing: Any = dict.fromkeys((*POOL, *CLIENT_ROWS))
        rest = self.put(part._replace(**nothing), compared=False)
        return rest._replace(**{**pool, **self.put_segment(divided)})

    def _put_divided(self, a, sharding, axis):
        if self.abstract:
            shape = parallel.padded_shape(a.shape, sharding, axis)
            return jax.ShapeDtypeStruct(shape, a.dtype, sharding=sharding)
        return parallel.put_divided(a, sharding, axis)

    @property
    def client_sharding(self) -> NamedSharding | None:
        """The sharding of arrays with an entry for each client; None: as all other arrays."""
        return self._behind_seeds(self.strategy.by_client)

    @property
    def segment_sharding(self) -> Any:
        """The sharding of arrays from `put_segment`."""
        return self.strategy.by_client or self.strategy.sharding

    def state_shardings(self, state: State) -> Any:
        """The shardings of the parts of a state, whose leaves are arrays or their shapes."""
        whole, by_client = self.strategy.sharding, self.client_sharding
        if self.strategy.group > 1:
            assert isinstance(whole, NamedSharding)
            leading = int(self.seeds > 0)
            server = fsdp.shardings(whole, state.server, leading)
            private = fsdp.shardings(by_client or whole, state.private, leading + 1)
            return State(server, private)
        return whole if by_client is None else State(whole, by_client)

    def num_bytes(self, state: State) -> int:
        """The bytes of a state on one device, without padding and small arrays."""
        parts = tree.num_bytes(state.server), tree.num_bytes(state.private) // self.parts
        return sum(parts) // self.strategy.group

    @property
    def viewed_pool_sharding(self) -> Sharding | None:
        """The sharding of the pool of examples that a view computes for each seed."""
        if self.strategy.by_row is None:
            return self.strategy.sharding
        return self._behind_seeds(self.strategy.by_row)

    def _behind_seeds(self, sharding):
        if sharding is None or not self.seeds:
            return sharding
        return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))

    def padded(self, state: State) -> State:
        """A state of one seed, with its private part [C, ...] padded as on the devices."""

        def longer(a):
            missing = -a.shape[0] % self.parts  # arrays of the clients of a kind are shorter
            if not missing:
                return a
            if tree.is_key(a):
                bits = longer(jax.random.key_data(a))
                return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(a))
            return jnp.pad(a, ((0, missing), *((0, 0),) * (a.ndim - 1)))

        return state._replace(private=jax.tree.map(longer, state.private))

    def without_padding(self, state: State | None) -> State | None:
        """The inverse of `padded`."""
        if not self.padding or state is None:
            return state
        return state._replace(private=jax.tree.map(lambda a: a[: self.num_clients], state.private))

    def described(self, a: PyTree, sharding: Any) -> PyTree:
        """The shapes of arrays with these shardings; `sharding` is a sharding or a tree of them."""

        def one(x, sharding):
            x = x if hasattr(x, "dtype") else np.asarray(x, np.float32)
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

        def put_leaf(sharding, part):
            return jax.tree.map(lambda x: one(x, sharding), part)

        return jax.tree.map(put_leaf, sharding, a, is_leaf=lambda s: s is None)


class Jit(NamedTuple):
    """Jits functions of one seed for the seeds of a lane."""

    place: Placement
    precision: str | None  # `Simulation.precision`

    def wrap(self, function: Callable, seed_axes: Any, out: Any, **options) -> Any:
        """The jitted function. out: sharding of the results; None: as JAX chooses."""
        function = jax.vmap(function, seed_axes) if self.place.seeds else function
        if self.precision is not None:
            function = jax.default_matmul_precision(self.precision)(function)
        return jax.jit(function, out_shardings=out, **options)

    def runner(self, function: Callable, seed_axes: Any, out: Any = None) -> Callable:
        """The jitted function; it returns only shapes if the arrays are only described.

        out: sharding of the results; None: on all devices.
        """
        out = self.place.strategy.sharding if out is None else out
        jitted = self.wrap(function, seed_axes, out)
        if not self.place.abstract:
            return jitted
        return lambda *args: self.place.described(jax.eval_shape(jitted, *args), out)
