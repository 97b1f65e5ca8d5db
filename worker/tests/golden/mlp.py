#!/usr/bin/env python3
"""Writes the golden numbers that worker/tests/golden.rs compares with, from PyTorch in double precision.

Run by hand after a change of the cases: `python3 worker/tests/golden/mlp.py`, with Debian's python3-torch (the stored
numbers are from 1.13.1). Inputs, labels and weights come from formulas that both sides know, so that only results are
stored. PyTorch keeps the weight of a linear layer as (outputs, inputs), Slackline as (inputs, outputs); the numbers
are stored in Slackline's layout: layer by layer, weight row-major, then bias.
"""

import json
import math
import pathlib

import torch

SAMPLES = 12
STEPS = 50
RATE = 0.1
MOMENTUM = 0.9
CASES = {"softmax": [8, 4], "mlp": [8, 6, 4]}


def value(key):
    return 0.6 * math.sin(1.3 * key + 0.2)


def examples(widths):
    inputs = [[math.sin(0.7 * (i * widths[0] + j)) for j in range(widths[0])] for i in range(SAMPLES)]
    labels = [(i * 7 + i // 4) % widths[-1] for i in range(SAMPLES)]
    return torch.tensor(inputs), torch.tensor(labels)


def network(widths):
    layers, key = [], 0
    for inputs, outputs in zip(widths, widths[1:]):
        layer = torch.nn.Linear(inputs, outputs)
        with torch.no_grad():
            weight = [value(key + i) for i in range(inputs * outputs)]
            layer.weight.copy_(torch.tensor(weight).reshape(inputs, outputs).T)
            key += inputs * outputs
            layer.bias.copy_(torch.tensor([value(key + i) for i in range(outputs)]))
            key += outputs
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def flat(model, pick):
    out = []
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            out += pick(layer.weight).T.reshape(-1).tolist() + pick(layer.bias).tolist()
    return out


def case(widths):
    inputs, labels = examples(widths)
    model = network(widths)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    losses, gradient = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        losses.append(loss.item())
        gradient = gradient or flat(model, lambda tensor: tensor.grad)
        optimizer.step()
    return {
        "widths": widths,
        "samples": SAMPLES,
        "rate": RATE,
        "momentum": MOMENTUM,
        "gradient": gradient,
        "losses": losses,
        "values": flat(model, lambda tensor: tensor.detach()),
    }


def main():
    torch.set_default_dtype(torch.float64)
    here = pathlib.Path(__file__).parent
    for name, widths in CASES.items():
        (here / f"{name}.json").write_text(json.dumps(case(widths), indent=1) + "\n")


if __name__ == "__main__":
    main()
