"""Bytes of tensors that a real torch program holds: alive at its peak, and saved for a backward."""

import weakref
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Bytes of storages that operators made and that are still referred to; ``peak`` of these."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = {
            x.untyped_storage().data_ptr()
            for x in tree_leaves((args, kwargs))
            if isinstance(x, torch.Tensor)
        }
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in inputs:
                self._add(x.untyped_storage())
        return result

    def _add(self, storage):
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key, size):
        self._seen.discard(key)
        self.now -= size


@contextmanager
def saved_bytes(module):
    """Yields a function that says how many bytes autograd saved, the module's own not counted."""
    own = {p.untyped_storage().data_ptr() for p in (*module.parameters(), *module.buffers())}
    storages = {}

    def pack(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield lambda: sum(storages.values())
