"""The rivals of ANA-Net in numpy, from their equations and nothing of ours: one pair, one plain step after another.

`w` holds a network's weights by name. Batch norms are in use, so with the statistics that they have learned.
"""

import numpy as np
import torch

from ananet.networks import Network

CONTEXT_EPS, TORCH_EPS = 1e-3, 1e-5


def weights_of(net: Network) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in net.state_dict().items()}


def answer(by_hand, net: Network, matches: torch.Tensor) -> torch.Tensor:
    """[B x N] what the numpy version says with the network's weights."""
    return torch.from_numpy(np.stack([by_hand(weights_of(net), one.numpy()) for one in matches]))


def linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def context_norm(x, eps):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + eps)


def batch_norm(w, name, x, eps=TORCH_EPS):
    x = (x - w[f"{name}.running_mean"]) / np.sqrt(w[f"{name}.running_var"] + eps)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"] if f"{name}.weight" in w else x


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def count(w, prefix):
    """How many numbered parts there are."""
    return len({name.removeprefix(prefix).split(".")[0] for name in w if name.startswith(prefix)})


def cne(w, matches):
    x = linear(w, "encoder", matches)
    for n in range(count(w, "blocks.")):
        y = x
        for layer in "01":
            y = linear(w, f"blocks.{n}.linears.{layer}", y)
            # Its authors' framework adds 1e-3 to the variance in batch norms, too.
            y = relu(batch_norm(w, f"blocks.{n}.norms.{layer}", context_norm(y, CONTEXT_EPS), eps=1e-3))
        x = x + y
    return linear(w, "head", x)[:, 0]


def acne(w, matches):
    x = linear(w, "encoder", matches)
    for n in range(count(w, "blocks.")):
        y = x
        for layer in "01":
            y = linear(w, f"blocks.{n}.linears.{layer}", y)
            norm = f"blocks.{n}.norms.{layer}"
            globally, locally = linear(w, f"{norm}.attention", y).T
            attention = softmax(globally, 0) * sigmoid(locally)
            attention = attention[:, None] / attention.sum()
            mean = (attention * y).sum(0)
            y = (y - mean) / np.sqrt((attention * (y - mean) ** 2).sum(0) + CONTEXT_EPS)
            groups = y.reshape(len(y), 32, -1)
            mean, variance = groups.mean((0, 2), keepdims=True), groups.var((0, 2), keepdims=True)
            y = ((groups - mean) / np.sqrt(variance + TORCH_EPS)).reshape(y.shape)
            y = relu(y * w[f"{norm}.weight"] + w[f"{norm}.bias"])
        x = x + y
    return linear(w, "head", x)[:, 0]


def pre_activated(w, name, x, eps=CONTEXT_EPS):
    return linear(w, f"{name}.linear", relu(batch_norm(w, f"{name}.norm", context_norm(x, eps))))


def point_cn(w, name, x):
    past = linear(w, f"{name}.shortcut", x) if f"{name}.shortcut.weight" in w else x
    return past + pre_activated(w, f"{name}.second", pre_activated(w, f"{name}.first", x))


def order_aware(w, name, clusters):
    first = pre_activated(w, f"{name}.first", clusters)
    mixed = first.T
    for n in range(count(w, f"{name}.mixes.")):
        mixed = linear(w, f"{name}.mixes.{n}", relu(batch_norm(w, f"{name}.norms.{n}", mixed)))
    return clusters + pre_activated(w, f"{name}.last", first + mixed.T)


def pooled(w, name, x):
    return softmax(pre_activated(w, f"{name}.assign", x), axis=0).T @ x


def unpooled(w, name, x, clusters):
    return softmax(pre_activated(w, f"{name}.assign", x), axis=1) @ clusters


def oanet(w, matches):
    given, logits = matches, None
    for n in range(count(w, "parts.")):
        if logits is not None:
            weights = relu(np.tanh(logits))
            given = np.column_stack([matches, plain_residual(matches, weights), weights])
        logits = oanet_stage(
            {k.removeprefix(f"parts.{n}."): v for k, v in w.items() if k.startswith(f"parts.{n}.")}, given
        )
    return logits


def oanet_stage(w, given):
    x = linear(w, "encoder", given)
    for n in range(count(w, "before.")):
        x = point_cn(w, f"before.{n}", x)
    clusters = pooled(w, "pool", x)
    for n in range(count(w, "between.")):
        clusters = order_aware(w, f"between.{n}", clusters)
    x = np.concatenate([x, unpooled(w, "unpool", x, clusters)], axis=1)
    for n in range(count(w, "after.")):
        x = point_cn(w, f"after.{n}", x)
    return linear(w, "head", x)[:, 0]


def plain_residual(matches, weights):
    """Squared symmetric epipolar distances to the weighted eight-point solution of the coordinates as they are."""
    x0, y0, x1, y1 = matches.T
    one = np.ones(len(matches))
    X = np.column_stack([x1 * x0, x1 * y0, x1, y1 * x0, y1 * y0, y1, x0, y0, one])
    E = np.linalg.eigh(X.T @ np.diag(weights) @ X)[1][:, 0].reshape(3, 3)
    p0, p1 = np.column_stack([x0, y0, one]), np.column_stack([x1, y1, one])
    lines1, lines0 = p0 @ E.T, p1 @ E
    return (p1 * lines1).sum(1) ** 2 * (1 / (lines0[:, :2] ** 2).sum(1) + 1 / (lines1[:, :2] ** 2).sum(1))


def lmcnet(w, matches, neighbours=8, vectors=32, sigma=0.1, floor=0.05):
    squared = ((matches[:, None] - matches[None]) ** 2).sum(-1)
    near = np.array(
        [[m for m in np.argsort(row, kind="stable") if m != n][:neighbours] for n, row in enumerate(squared)]
    )
    adjacency = np.zeros_like(squared)
    for n, others in enumerate(near):
        adjacency[n, others] = np.maximum(np.exp(-squared[n, others] / sigma**2), floor)
    adjacency = (adjacency + adjacency.T) / 2
    degree = adjacency.sum(1)
    adjacency = adjacency / np.sqrt(np.outer(degree, degree))
    values, U = np.linalg.eigh(np.diag(adjacency.sum(1)) - adjacency)
    values, U = values[:vectors], U[:, :vectors]

    def residual(fields, eta):
        return U @ ((U.T @ fields) / (1 + eta * values[:, None])) - fields

    def local(name, x):
        own = linear(w, f"{name}.reduce", x)
        among = np.column_stack([np.arange(len(x)), near[:, :-1]])
        differences = linear(w, f"{name}.first", own[:, None] - own[among])
        differences = linear(w, f"{name}.second", relu(batch_norm(w, f"{name}.norm", differences)))
        return linear(w, f"{name}.expand", differences.max(1))

    def half(block, n, x):
        x = point_cn(w, f"{block}.context.{n}", x + local(f"{block}.local.{n}", x))
        name = f"{block}.coherence.{n}"
        left = residual(x, w[f"{name}.eta"])
        return x + pre_activated(w, f"{name}.second", pre_activated(w, f"{name}.first", left, TORCH_EPS), TORCH_EPS)

    motion = matches[:, 2:] - matches[:, :2]
    x = point_cn(w, "context", linear(w, "encoder", np.column_stack([matches, residual(motion, 10.0)])))
    for n in range(count(w, "blocks.")):
        block = f"blocks.{n}"
        x = half(block, 0, x)
        clusters = order_aware(w, f"{block}.clusters", pooled(w, f"{block}.pool", x))
        x = half(block, 1, x + unpooled(w, f"{block}.unpool", x, clusters))
    return linear(w, "head", relu(batch_norm(w, "norm", x)))[:, 0]


def mlp(w, name, x):
    last = count(w, f"{name}.linears.") - 1
    for n in range(last):
        x = relu(batch_norm(w, f"{name}.norms.{n}", linear(w, f"{name}.linears.{n}", x)))
    return linear(w, f"{name}.linears.{last}", x)


def dematch(w, matches, heads=4):
    def gather(name, x, others, kept=None):
        query, key, value = (
            linear(w, f"{name}.{part}", given).reshape(len(given), heads, -1)
            for part, given in (("query", x), ("key", others), ("value", others))
        )
        gathered = []
        for head in range(heads):
            scores = query[:, head] @ key[:, head].T
            if kept is not None:
                scores[:, ~kept] = -1e6
            gathered.append(softmax(scores / np.sqrt(key.shape[-1]), 1) @ value[:, head])
        merged = np.column_stack([x, linear(w, f"{name}.out", np.column_stack(gathered))])
        return x + mlp(w, f"{name}.merge", merged)

    x = mlp(w, "motion", matches[:, 2:] - matches[:, :2]) + mlp(w, "position", matches[:, :2])
    kept = None
    for n in range(count(w, "blocks.")):
        tokens = w["tokens"]
        for layer in "01":
            tokens = gather(f"blocks.{n}.from_matches.{layer}", tokens, x, kept)
        for layer in "0123":
            tokens = gather(f"blocks.{n}.among_tokens.{layer}", tokens, tokens)
        before, x = x, gather(f"blocks.{n}.from_tokens", x, tokens)
        y, predictor = x - before, f"blocks.{n}.predictor"
        for layer in "012":
            y = linear(w, f"{predictor}.linears.{layer}", y)
            y = relu(batch_norm(w, f"{predictor}.norms.{layer}", context_norm(y, CONTEXT_EPS)))
        logits = linear(w, f"{predictor}.last", y)[:, 0]
        kept = logits > 0
    return logits
