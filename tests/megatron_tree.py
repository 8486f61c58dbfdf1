"""Modules with the names and signatures of Megatron-Core 0.16.1, which transfer nothing.

What calls what, and which handle is kept where, is as in its ``p2p_communication.py``,
``param_and_grad_buffer.py``, ``distributed_data_parallel.py`` and ``optimizer.py``.
"""

import sys
import types
from contextlib import contextmanager
from copy import copy

P2P = "megatron.core.pipeline_parallel.p2p_communication"
BUFFER = "megatron.core.distributed.param_and_grad_buffer"


class Work:
    """A transfer, or the coalescing manager, which is the handle of a bucket."""

    def __init__(self):
        self.waits = 0

    def wait(self):
        self.waits += 1


class Group:
    """A process group of the stage's one replica."""

    def size(self):
        return 1


def _requests(**tensors):
    return {name: Work() for name, tensor in tensors.items() if tensor is not None}


def _p2p_ops(
    *,
    tensor_send_prev,
    tensor_recv_prev,
    tensor_send_next,
    tensor_recv_next,
    group,
    prev_pipeline_rank,
    next_pipeline_rank,
):
    return _requests(
        recv_prev=tensor_recv_prev,
        send_next=tensor_send_next,
        recv_next=tensor_recv_next,
        send_prev=tensor_send_prev,
    )


def _batched_p2p_ops(
    *,
    tensor_send_prev,
    tensor_recv_prev,
    tensor_send_next,
    tensor_recv_next,
    group,
    prev_pipeline_rank,
    next_pipeline_rank,
):
    tensors = (tensor_send_prev, tensor_recv_prev, tensor_send_next, tensor_recv_next)
    return [Work() for tensor in tensors if tensor is not None]


class P2PCommunicator:
    """Calls one of the functions above, and waits unless the schedule does."""

    def __init__(self, batch_p2p_comm=False):
        self.batched, self.called = batch_p2p_comm, []

    def _communicate(
        self,
        *,
        tensor_send_next,
        tensor_send_prev,
        recv_prev,
        recv_next,
        tensor_shape,
        wait_on_reqs=True,
    ):
        self.called.append((tensor_send_next, tensor_send_prev, recv_prev, recv_next))
        prev, following = object() if recv_prev else None, object() if recv_next else None
        module = sys.modules[P2P]
        reqs = (module._batched_p2p_ops if self.batched else module._p2p_ops)(
            tensor_send_prev=tensor_send_prev,
            tensor_recv_prev=prev,
            tensor_send_next=tensor_send_next,
            tensor_recv_next=following,
            group=None,
            prev_pipeline_rank=0,
            next_pipeline_rank=0,
        )
        if wait_on_reqs and len(reqs) > 0:
            for req in reqs if isinstance(reqs, list) else reqs.values():
                req.wait()
            reqs = None
        return prev, following, reqs


@contextmanager
def _coalescing_manager(group=None, device=None, async_ops=False):
    yield Work()


class _ParamAndGradBucketGroup:
    """A group of buckets of the distributed optimizer."""

    def __init__(self, overlap, is_first_batch=False, own_handle=None):
        self.overlap, self.is_first_batch, self.own_handle = overlap, is_first_batch, own_handle
        self.intra_distributed_optimizer_instance_group = Group()
        self.param_gather_handle = self.grad_reduce_handle = None
        self.next_param_gather_bucket_group, self.param_gather_dispatched = None, False
        self.buckets = [types.SimpleNamespace(grad_data=types.SimpleNamespace(nbytes=0))]

    def start_param_sync(self, force_sync=False):
        if force_sync:
            if self.param_gather_handle is not None:
                self.param_gather_handle.wait()
                self.param_gather_handle = None
                return
        else:
            assert self.param_gather_handle is None
        async_op = self.overlap and not force_sync
        group = self.intra_distributed_optimizer_instance_group
        with sys.modules[BUFFER]._coalescing_manager(group, async_ops=async_op) as cm:
            pass
        self.param_gather_handle = cm if async_op else None
        self.param_gather_dispatched = True

    def finish_param_sync(self, skip_next_bucket_dispatch=False):
        if not self.param_gather_dispatched:
            self.start_param_sync()
        if self.param_gather_handle is not None:
            self.param_gather_handle.wait()
            self.param_gather_handle = None
            if self.next_param_gather_bucket_group is not None and not skip_next_bucket_dispatch:
                self.next_param_gather_bucket_group.start_param_sync()

    def start_grad_sync(self, force_all_reduce=False):
        if self.is_first_batch and self.grad_reduce_handle is not None:
            return
        assert self.grad_reduce_handle is None
        group = self.intra_distributed_optimizer_instance_group
        with sys.modules[BUFFER]._coalescing_manager(group, async_ops=self.overlap) as cm:
            pass
        self.grad_reduce_handle = (self.own_handle or cm) if self.overlap else None

    def finish_grad_sync(self, force_all_reduce=False):
        self.param_gather_dispatched = False
        if not self.overlap:
            self.start_grad_sync(force_all_reduce=force_all_reduce)
            return
        if self.is_first_batch:
            self.start_grad_sync(force_all_reduce=force_all_reduce)
        self.grad_reduce_handle.wait()
        self.grad_reduce_handle = None


class DistributedDataParallel:
    """A chunk of the model and its groups of buckets, of which each gathers ahead for the next."""

    def __init__(self, module, buckets=1, overlap=False):
        self.module = module
        make = sys.modules[BUFFER]._ParamAndGradBucketGroup
        self.bucket_groups = [make(overlap) for _ in range(buckets)]
        self.expert_parallel_bucket_groups = []
        for group, following in zip(self.bucket_groups, self.bucket_groups[1:], strict=False):
            following.next_param_gather_bucket_group = group

    def start_param_sync(self, *unused, force_sync=False, force_dispatch=False):
        for group in self.bucket_groups:
            group.start_param_sync(force_sync=force_sync)

    def finish_grad_sync(self, force_all_reduce=False):
        for group in self.bucket_groups:
            group.finish_grad_sync(force_all_reduce=force_all_reduce)
        return "synced"


class MegatronOptimizer:
    def clip_grad_norm(self, clip_grad):
        return self.get_grad_norm()

    def get_grad_norm(self):
        return 1.0


class MixedPrecisionOptimizer(MegatronOptimizer):
    def step_with_ready_grads(self):
        return True

    def step(self):
        self.clip_grad_norm(1.0)
        return self.step_with_ready_grads()


class FP32Optimizer(MixedPrecisionOptimizer):
    def step_with_ready_grads(self):
        return True


class ChainedOptimizer(MegatronOptimizer):
    def __init__(self, optimizers):
        self.chained_optimizers = optimizers

    def get_grad_norm(self):
        return max(each.get_grad_norm() for each in self.chained_optimizers)

    def step_with_ready_grads(self):
        return all(each.step_with_ready_grads() for each in self.chained_optimizers)

    def step(self):
        self.get_grad_norm()
        return self.step_with_ready_grads()


def forward_step(
    forward_step_func,
    data_iterator,
    model,
    num_microbatches,
    input_tensor,
    forward_data_store,
    config,
    cp_group_size,
    collect_non_loss_data=False,
    checkpoint_activations_microbatch=None,
    is_first_microbatch=False,
    current_microbatch=None,
    vp_stage=None,
    is_last_stage=True,
):
    for buckets in reversed(getattr(model, "bucket_groups", ())):
        if buckets.overlap:
            buckets.finish_param_sync()
    return [object()], 7


def backward_step(input_tensor, output_tensor, output_tensor_grad, model_type, config):
    return "gradient"


def forward_backward_no_pipelining(*, forward_step_func, model, **_):
    return forward_step_func(model)


def installed(monkeypatch):
    """The modules by their last names; every one a fresh copy."""

    def fresh(cls, *bases):
        return type(cls.__name__, bases or cls.__bases__, dict(vars(cls)))

    base = fresh(MegatronOptimizer)
    mixed = fresh(MixedPrecisionOptimizer, base)
    distributed = type(
        "DistributedOptimizer",
        (mixed,),
        {"step_with_ready_grads": lambda self: mixed.step_with_ready_grads(self)},
    )
    trees = {
        "megatron": {},
        "megatron.core": {},
        "megatron.core.parallel_state": {
            "model_parallel_is_initialized": lambda: True,
            "get_data_parallel_world_size": lambda with_context_parallel=False: 1,
            "get_pipeline_model_parallel_world_size": lambda: 2,
            "get_tensor_model_parallel_world_size": lambda: 1,
            "get_context_parallel_world_size": lambda: 1,
            "get_virtual_pipeline_model_parallel_world_size": lambda: None,
            "get_data_parallel_rank": lambda: 0,
            "get_pipeline_model_parallel_rank": lambda: 1,
        },
        "megatron.core.pipeline_parallel": {},
        "megatron.core.pipeline_parallel.schedules": {
            "forward_step": forward_step,
            "backward_step": backward_step,
            "forward_backward_no_pipelining": forward_backward_no_pipelining,
            "forward_backward_pipelining_without_interleaving": lambda **_: None,
            "forward_backward_pipelining_with_interleaving": lambda **_: None,
        },
        P2P: {
            "P2PCommunicator": fresh(P2PCommunicator),
            "_p2p_ops": _p2p_ops,
            "_batched_p2p_ops": _batched_p2p_ops,
        },
        "megatron.core.distributed": {},
        BUFFER: {
            "_coalescing_manager": _coalescing_manager,
            "_ParamAndGradBucketGroup": fresh(_ParamAndGradBucketGroup),
        },
        "megatron.core.distributed.distributed_data_parallel": {
            "DistributedDataParallel": fresh(DistributedDataParallel)
        },
        "megatron.core.distributed.finalize_model_grads": {
            "_allreduce_non_tensor_model_parallel_grads": lambda *_: None,
            "_allreduce_word_embedding_grads": lambda *_: None,
        },
        "megatron.core.optimizer": {},
        "megatron.core.optimizer.optimizer": {
            "MegatronOptimizer": base,
            "MixedPrecisionOptimizer": mixed,
            "FP32Optimizer": fresh(FP32Optimizer, mixed),
            "ChainedOptimizer": fresh(ChainedOptimizer, base),
        },
        "megatron.core.optimizer.distrib_optimizer": {"DistributedOptimizer": distributed},
    }
    modules = {}
    for name, contents in trees.items():
        module = types.ModuleType(name)
        vars(module).update(copy(contents))
        monkeypatch.setitem(sys.modules, name, module)
        modules[name.rpartition(".")[2]] = module
    return modules
