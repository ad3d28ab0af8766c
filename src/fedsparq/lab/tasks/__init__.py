"""What clients train: the Task protocol, and supervised learning as the task that comes with the package."""

from fedsparq.lab.settings import DataSpec, PerExample, Training
from fedsparq.lab.tasks.dataset import Dataset
from fedsparq.lab.tasks.task import Task, class_counts, load_task, train_examples

__all__ = ["DataSpec", "Dataset", "PerExample", "Task", "Training", "class_counts", "load_task", "train_examples"]
