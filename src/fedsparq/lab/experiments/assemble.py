"""The method of a run, complete: with what its server's parts need of the task."""

from __future__ import annotations

from fedsparq.aggregate import FLTrust
from fedsparq.errors import OptionError
from fedsparq.federate.model import Model
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks import Task
from fedsparq.lab.tasks.task import TrainsClean
from fedsparq.method import Method


def method_of(spec: RunSpec, task: Task) -> Method:
    """What a spec names, with the noise and the clean set that its aggregator may need."""
    method = with_clean_set(spec.chosen_method(), task)
    if not (spec.privacy.wanted and spec.privacy.secure_sums):
        return method
    terms = spec.privacy.terms(method, task.layout, spec.folder_name, 1, spec.clients_a_round)
    return spec.privacy.with_own_noise(method, task.layout, terms)


def with_clean_set(method: Method, task: Task) -> Method:
    """The method, its server's clean set being one that the task draws, where its aggregator needs one."""
    rule = method.aggregator
    if not isinstance(rule, FLTrust) or rule.train is not None:
        return method
    if not isinstance(task, TrainsClean):
        raise OptionError(f"fltrust needs a task with a method `train_clean`, which {type(task).__name__} has not")
    examples, train = rule.examples, task.train_clean
    own = lambda vector, buffers, number: train(Model(vector, buffers), number, examples).update  # noqa: E731
    return method.with_server(aggregator=FLTrust(examples, own))
