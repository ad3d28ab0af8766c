"""A strategy with a loop of its own: a learning-rate schedule, a checkpoint of each best model, results as JSON."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result


class CustomFedAvg(FedAvg):
    def set_save_path(self, path: Path) -> None:
        self.save_path = path

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round == 3:
            config["lr"] = config["lr"] * 0.5
        return super().configure_train(server_round, arrays, config, grid)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        self.best_accuracy, self.results = 0.0, []
        arrays, result = initial_arrays, Result()
        for number in range(1, num_rounds + 1):
            messages = self.configure_train(number, arrays, train_config, grid)
            replies = list(grid.send_and_receive(messages=messages, timeout=timeout))
            counted = sum(reply.has_content() for reply in replies)
            averaged, metrics = self.aggregate_train(number, replies)
            if averaged is not None:
                result.arrays = arrays = averaged
                result.train_metrics_clientapp[number] = metrics
            measured = result.evaluate_metrics_serverapp[number] = evaluate_fn(number, arrays)
            self._keep_if_best(number, measured["accuracy"], arrays)
            self.results.append({"round": number, "lr": train_config["lr"], "nodes": counted, **measured})
            (self.save_path / "results.json").write_text(json.dumps(self.results))
        return result

    def _keep_if_best(self, number: int, accuracy: float, arrays: ArrayRecord) -> None:
        if accuracy > self.best_accuracy:
            self.best_accuracy = accuracy
            torch.save(arrays.to_torch_state_dict(), self.save_path / f"best_model_round_{number}.pt")
