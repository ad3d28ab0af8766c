"""Model, text and training. Weights are drawn from a seed, the same on all nodes, so nothing is downloaded."""

from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, WINDOW = 2, 64


def new_model(config) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"n_layer": config["layers"], "n_embd": config["width"], "n_head": config["heads"]}
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    if config["lora"]:
        adapter = LoraConfig(r=config["lora"], target_modules=["c_attn"], fan_in_fan_out=True)
        return get_peft_model(model, adapter)
    return model


def arrays_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """What travels: the adapter, or all parameters. GPT-2's output layer is its embedding, and so is not listed."""
    if isinstance(model, PeftModel):
        return get_peft_model_state_dict(model)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def load_arrays(model: nn.Module, arrays: dict[str, torch.Tensor]) -> None:
    own = arrays_of(model)
    if own.keys() != arrays.keys():
        raise ValueError(f"these arrays are of another model: {sorted(own.keys() ^ arrays.keys())[:3]}")
    if isinstance(model, PeftModel):
        set_peft_model_state_dict(model, arrays)
    else:
        for name, tensor in own.items():
            tensor.copy_(arrays[name])


def tokens(text: str) -> torch.Tensor:
    """A text's bytes, or the characters of the data set `shakespeare`, by their numbers."""
    if text == "shakespeare":
        from fedsparq.lab.tasks.load import load

        return torch.from_numpy(load("shakespeare").train[0].copy()).reshape(-1)
    data = Path(text or Path(__file__).with_name("sonnets.md")).read_bytes()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).long()


def train_on_part(model: nn.Module, config, part: int, parts: int, order: dict) -> tuple[int, float]:
    """Some steps on one part of the text, as the server orders; returns the number of tokens and the mean loss."""
    torch.set_num_threads(1)
    own, mu = tokens(config["text"]).chunk(parts)[part], order.get("proximal-mu", 0.0)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in trained] if mu else None
    optimizer = torch.optim.AdamW(trained, lr=1e-3 if config["lora"] else 1e-4)
    generator, losses = torch.Generator().manual_seed(1000 * order["server-round"] + part), []
    model.train()
    for _ in range(config["steps"]):
        places = torch.randint(len(own) - WINDOW, (BATCH,), generator=generator)
        batch = torch.stack([own[place : place + WINDOW] for place in places.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        if start:
            for parameter, before in zip(trained, start, strict=True):
                parameter.grad.add_(parameter.detach() - before, alpha=mu)
        optimizer.step()
        losses.append(loss.item())
    return config["steps"] * BATCH * WINDOW, sum(losses) / len(losses)
