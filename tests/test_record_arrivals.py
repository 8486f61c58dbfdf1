"""Which gradients are watched, on parameters that are made here."""

import pytest

from paceline.record.arrivals import AGREED, RECHECK, Arrivals

OF, SIZES = [1, 1, 0, 0], [2, 2]  # DDP fills its buckets from the last parameter


class Handle:
    def __init__(self, hooks, hook):
        self.hooks, self.hook = hooks, hook

    def remove(self):
        self.hooks.remove(self.hook)


class Parameter:
    def __init__(self):
        self.hooks, self.registered = [], 0

    def register_post_accumulate_grad_hook(self, hook):
        self.registered += 1
        self.hooks.append(hook)
        return Handle(self.hooks, hook)


class Model:
    def __init__(self):
        self.parameters = [Parameter() for _ in OF]
        self.events, self.errors = [], []
        self.arrivals = Arrivals(self.parameters, self.ready, self.errors.append)

    def ready(self, bucket):
        self.events.append(("ready", bucket))

    def backward(self, order=(3, 2, 1, 0), settled=True, raises=False):
        """Gradients as they come, and between them the buckets that are ready."""
        self.arrivals.begin(OF, SIZES, settled=settled)
        self.events = []
        for number in order:
            self.events.append(number)
            for hook in list(self.parameters[number].hooks):
                hook(None)
        if not raises:
            self.arrivals.end()
        return self.events

    def registered(self):
        return sum(parameter.registered for parameter in self.parameters)

    def hooked(self):
        return [number for number, one in enumerate(self.parameters) if one.hooks]


IN_ORDER = [3, 2, ("ready", 0), 1, 0, ("ready", 1)]


def test_only_the_last_gradients_are_watched_once_they_agree():
    model = Model()
    for _ in range(AGREED):
        assert model.backward() == IN_ORDER
        assert model.hooked() == []
    assert model.registered() == AGREED * len(OF)
    for _ in range(5):
        assert model.backward() == IN_ORDER
    assert model.hooked() == [0, 2]
    assert model.registered() == AGREED * len(OF) + len(SIZES)


def test_all_are_watched_where_buckets_may_change():
    model = Model()
    for _ in range(AGREED + 3):
        assert model.backward(settled=False) == IN_ORDER
    assert model.registered() == (AGREED + 3) * len(OF)


def test_another_order_is_seen_at_the_next_check_and_all_are_watched_from_then_on():
    model = Model()
    for _ in range(RECHECK - 1):
        model.backward()
    other = [2, 3, ("ready", 0), 1, 0, ("ready", 1)]
    assert model.backward((2, 3, 1, 0)) == other
    for _ in range(2 * RECHECK):
        assert model.backward((2, 3, 1, 0)) == other
        assert model.hooked() == []


def test_a_backward_that_raised_leaves_nothing_behind():
    model = Model()
    model.backward((3, 2), raises=True)
    assert model.backward() == IN_ORDER
    assert model.hooked() == []
    for _ in range(AGREED):
        model.backward()
    model.backward((3, 2), raises=True)
    assert model.backward() == IN_ORDER
    assert model.errors == []


@pytest.mark.parametrize("before", [0, AGREED])
def test_an_error_is_told_not_raised(before):
    model = Model()
    for _ in range(before):
        model.backward()
    error = RuntimeError("a step with too many operations")

    def ready(_):
        raise error

    model.arrivals._ready = ready
    model.backward()
    assert model.errors == [error, error]
