"""The reproduction: which runs it has."""

from fedsparq.lab.paper import plan


def test_reproduction_is_the_papers_experiments() -> None:
    small, full = plan(None, "small", None), plan(None, "full", 1)
    methods = {"fedavg", "float16", "fedpaq", "random-10", "top-10", "fedsparq"}
    for runs in (small, full):
        assert {run.dataset for run in runs} == {"mnist", "fashion-mnist", "cifar10"}
        assert methods <= {run.label for run in runs}
        assert all(run.clients == 3 and run.fraction == 1 for run in runs)
    cifar = [run for run in full if run.dataset == "cifar10"]
    assert {(run.model, run.rounds, run.train_limit) for run in cifar} == {("resnet18", 100, None)}
    assert all(run.note for run in small if run.dataset == "cifar10")
    assert {run.seed for run in small if run.dataset == "mnist"} == {0, 1, 2}
    assert {run.dataset for run in plan("fmnist", "small", 1)} == {"fashion-mnist"}
