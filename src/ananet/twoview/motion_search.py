"""Search for the motions that describe matches with the lowest energy.

The energy, in nats, is

    sum_i cost(match i, its motion)  +  price of the motions  +  smoothness * neighbours with different motions

as in PEARL (Isack and Boykov, IJCV 2012). The cost of belonging to a motion is the negative log-likelihood of the
Sampson distance under Student's t-distribution with two degrees of freedom; the cost of belonging to none is that of a
uniform distribution over the image. Both are weighted by the pruner's probability. All motions share one scale of
distances, which is estimated.

The search starts from more clusters of neighbouring, similarly moving matches than there are motions, and merges those
that one fundamental matrix explains: planes of one rigid object become one motion, independent objects do not.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple

import cv2
import numpy as np

# Matches of a motion; a fundamental matrix explains any seven.
MIN_SUPPORT = 8
# Price of another motion: constant, per match, per match of all motions but the largest, and its minimum. Photos of one
# rigid scene often fit two matrices better than one, the more so the more matches there are. With these prices few such
# scenes are split, and motions with less than a tenth of the matches are mostly missed.
PRICE, PRICE_PER_MATCH, PRICE_OF_FOLLOWERS, MIN_PRICE = 5.0, 0.25, 0.3, 35.0
# Cost of neighbours with different motions, or one with none, as shares of all neighbours of a match.
SMOOTHNESS, SMOOTHNESS_OF_NONE = 3.0, 0.5
NEIGHBOURS = 8
# Scale of distances in units of the matches' extent: initial value and limits.
START_SCALE, MIN_SCALE, MAX_SCALE = 1.5e-3, 5e-4, 3e-3
# Limits of the pruner's probabilities.
PROBABILITIES = (0.3, 0.97)
# Matches of an initial cluster, and largest number of clusters.
CLUSTER_SIZE, MAX_CLUSTERS = 14, 8
# Changes with at most this estimated cost are tried: reassigning matches may lower it.
WORTH_TRYING = 15.0
# Matches used by the search; more make it slower, not better.
MAX_SEARCHED = 300
# Upper half of a symmetric 9 x 9 matrix.
UPPER = np.triu_indices(9)
# Keeps divisions finite if all points of a fit coincide, or a line has no direction.
TINY = 1e-18
# Cyclic shift of rows or columns.
TURNED = np.array([1, 2, 0])


class Rows:
    """Rows of the eight-point algorithm for N matches.

    A fit minimises f^T M f, where M is the weighted sum of the rows' outer products, so the matrices M of many fits are
    one matrix product.
    """

    def __init__(self, points0: np.ndarray, points1: np.ndarray) -> None:
        """From [N x 2] points."""
        # [N x 3] homogeneous, [N x 9] p1 p0^T, and [N x 45] upper halves of their outer products.
        self.points0, self.points1 = (np.column_stack([points, np.ones(len(points))]) for points in (points0, points1))
        self.rows = (self.points1[:, :, None] * self.points0[:, None, :]).reshape(-1, 9)
        self.products = self.rows[:, UPPER[0]] * self.rows[:, UPPER[1]]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: np.ndarray) -> Rows:
        some = copy(self)
        vars(some).update({name: values[chosen] for name, values in vars(self).items()})
        return some


def fit_fundamental(rows: Rows, weights: np.ndarray) -> np.ndarray:
    """[L x 3 x 3] matrices of rank 2 and norm 1 by the normalised eight-point algorithm, from weights [L x N]."""
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), TINY)
    sums = weights @ rows.products
    moments = np.empty((len(weights), 9, 9))
    moments[:, UPPER[0], UPPER[1]] = moments[:, UPPER[1], UPPER[0]] = sums
    # The last row and column of p1 p0^T are the points, so moments contain their means and squares.
    T0 = _centring(moments[:, [6, 7], 8], moments[:, [6, 7], [6, 7]])
    T1 = _centring(moments[:, [2, 5], 8], moments[:, [2, 5], [2, 5]])
    change = (T1[:, :, None, :, None] * T0[:, None, :, None, :]).reshape(-1, 9, 9)
    F = T1.transpose(0, 2, 1) @ _of_rank_two(change @ moments @ change.transpose(0, 2, 1)) @ T0
    return F / np.linalg.norm(F, axis=(1, 2), keepdims=True)


def _of_rank_two(moments: np.ndarray) -> np.ndarray:
    """[L x 3 x 3] approximate minima of f^T M f with norm 1 and determinant 0.

    Optimal rank correction of the unconstrained minimum (Kanatani and Sugaya, Compact fundamental matrix computation,
    2010). Zeroing a singular value instead fails for motions that are nearly planar.
    """
    values, vectors = np.linalg.eigh(moments)
    start, directions = vectors[:, :, 0], vectors[:, :, 1:]
    freedom = 1 / np.maximum(values[:, 1:], 1e-10 * values[:, -1:] + TINY)
    f = start
    for _ in range(2):  # Newton steps towards determinant 0
        F = f.reshape(-1, 3, 3)
        following, last = F[:, TURNED], F[:, TURNED[TURNED]]
        slope = following[..., TURNED] * last[..., TURNED[TURNED]] - following[..., TURNED[TURNED]] * last[..., TURNED]
        determinant = (F[:, 0] * slope[:, 0]).sum(axis=1)
        slope = slope.reshape(-1, 9)
        along = (slope[:, None] @ directions)[:, 0]
        step = (directions @ (freedom * along)[..., None])[..., 0]
        missing = ((start - f) * slope).sum(axis=1) + determinant
        f = start - step * (missing / np.maximum((freedom * along**2).sum(axis=1), TINY))[:, None]
        f = f / np.linalg.norm(f, axis=1, keepdims=True)
    U, values, Vt = np.linalg.svd(f.reshape(-1, 3, 3))
    values[:, 2] = 0
    return (U * values[:, None]) @ Vt


def _centring(mean: np.ndarray, square: np.ndarray) -> np.ndarray:
    """[L x 3 x 3] transforms that bring points to mean 0 and mean squared norm 2 (Hartley 1997)."""
    scale = np.sqrt(2 / np.maximum((square - mean**2).sum(axis=1), 1e-9))
    T = np.zeros((len(mean), 3, 3))
    T[:, 0, 0] = T[:, 1, 1] = scale
    T[:, :2, 2] = -scale[:, None] * mean
    T[:, 2, 2] = 1
    return T


def squared_sampson(rows: Rows, F: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[L x N] squared Sampson distances to L matrices, and the squared gradients they are divided by."""
    residual = F.reshape(-1, 9) @ rows.rows.T
    lines1 = (F[:, :2].reshape(-1, 3) @ rows.points0.T).reshape(len(F), 2, -1)
    lines0 = (F[:, :, :2].transpose(0, 2, 1).reshape(-1, 3) @ rows.points1.T).reshape(len(F), 2, -1)
    gradient = np.einsum("lin,lin->ln", lines0, lines0)
    gradient += np.einsum("lin,lin->ln", lines1, lines1)
    np.maximum(gradient, TINY, out=gradient)
    return residual**2 / gradient, gradient


def refit(rows: Rows, F: np.ndarray, members: np.ndarray, scale: float, rounds: int) -> np.ndarray:
    """Refine [L x 3 x 3] by reweighted least squares of Sampson distances (Student's t), with weights [L x N]."""
    for _ in range(rounds):
        squared, gradient = squared_sampson(rows, F)
        F = fit_fundamental(rows, members / (gradient * (1 + squared / (2 * scale**2))))
    return F


class State(NamedTuple):
    """Motions, and the assignment of matches to them."""

    models: np.ndarray
    """[L x 3 x 3] fundamental matrices."""
    scale: float
    members: np.ndarray
    """[N x L + 1] probability of belonging to each motion, and to none."""
    labels: np.ndarray
    """[N] the most likely motion; L for none."""
    costs: np.ndarray
    """[N x L + 1]"""
    energy: float

    @property
    def sizes(self) -> np.ndarray:
        """[L] number of matches of each motion."""
        return np.bincount(self.labels, minlength=len(self.models) + 1)[: len(self.models)]

    @property
    def own_costs(self) -> np.ndarray:
        """[N] cost of the most likely motion."""
        return self.costs[np.arange(len(self.labels)), self.labels]


class Search:
    """Search over matches in units of their extent, with [N] probabilities of being right."""

    def __init__(self, rows: Rows, probability: np.ndarray) -> None:
        self.rows, self.probability = rows, np.clip(probability, *PROBABILITIES)
        # [k x N] nearest neighbours of each match.
        self.neighbours = nearest(np.column_stack([rows.points0[:, :2], rows.points1[:, :2]]), NEIGHBOURS)
        # [N] costs of calling a match right, before that of its distance, and of calling it wrong.
        self.right, self.wrong = -np.log(self.probability), -np.log1p(-self.probability)

    @property
    def price(self) -> float:
        return max(MIN_PRICE, PRICE + PRICE_PER_MATCH * len(self.rows))

    def run(self, random: np.random.Generator) -> State:
        """Return the best state found, for at least `MIN_SUPPORT` matches."""
        if len(self.rows) > MAX_SEARCHED:
            some = np.sort(random.choice(len(self.rows), MAX_SEARCHED, replace=False))
            found = Search(self.rows[some], self.probability[some]).run(random)
            return self.settle(self.describe(found.models, found.scale), 2)
        best = self.one_motion(random)
        if self.most_to_gain(best) <= self.price:
            return best
        for _ in range(2):
            # Merge and drop motions as long as the energy decreases.
            state = self.settle(self.clusters(random), 2)
            while len(state.models) > 1 and (simpler := self.merge(state) or self.drop(state)):
                state = simpler
            state = self.settle(state, 3)
            best = min(best, state, key=lambda state: state.energy)
            if len(state.models) == len(best.models) == 1:
                break  # all clusters were merged into one motion, as in the state to beat
        return best

    def one_motion(self, random: np.random.Generator) -> State:
        """One motion for all matches, from several starts."""
        count = len(self.rows)
        members = np.full((8, count), 0.02)
        members[0] = 1
        for row in members[1:]:
            row[random.choice(count, min(20, count), replace=False)] = 1
        models = refit(self.rows, fit_fundamental(self.rows, members), members, START_SCALE, 1)
        models = refit(self.rows, models, np.ones_like(members), START_SCALE, 2)
        best = np.log1p(squared_sampson(self.rows, models)[0] / START_SCALE**2).sum(axis=1).argmin()
        return self.settle(self.describe(models[best : best + 1], START_SCALE), 3)

    def most_to_gain(self, state: State) -> float:
        """Upper bound of the energy that further motions can save."""
        least = np.minimum(student(np.zeros(1), MIN_SCALE) + self.right, self.wrong)
        return state.energy - self.price * len(state.models) - least.sum()

    def clusters(self, random: np.random.Generator) -> State:
        """Initial motions: one for each cluster of neighbouring, similarly moving matches."""
        points0, points1 = self.rows.points0[:, :2], self.rows.points1[:, :2]
        features = np.column_stack([points0 + points1, 1.5 * (points1 - points0)])
        count = min(MAX_CLUSTERS, max(1, len(features) // CLUSTER_SIZE))
        labels = k_means(features, count, random)
        members = (labels == np.arange(count)[:, None]).astype(float)
        large = members.sum(axis=1) >= MIN_SUPPORT
        members = members[large] if large.any() else np.ones((1, len(features)))
        models = refit(self.rows, fit_fundamental(self.rows, members), members, START_SCALE, 2)
        return self.describe(models, START_SCALE)

    def describe(self, models: np.ndarray, scale: float) -> State:
        """Estimate labels and scale for given models. Motions of too few matches are removed."""
        squared = squared_sampson(self.rows, models)[0].T
        for steps in (1, 3):  # few suffice, since most matches fit only one motion
            costs = np.column_stack([student(squared, scale) + self.right[:, None], self.wrong])
            members = self.field(costs, steps)
            labels = members.argmax(axis=1)
            scale = self.scale(squared, labels, scale)
        state = State(models, scale, members, labels, costs, self.energy(costs, labels))
        large = state.sizes >= MIN_SUPPORT
        return state if large.all() or not large.any() else self.describe(models[large], scale)

    def field(self, costs: np.ndarray, steps: int) -> np.ndarray:
        """[N x L + 1] probabilities of labels by mean-field iteration: neighbours tend to agree."""
        members = _probabilities(costs)
        apart = SMOOTHNESS * (1 - np.eye(costs.shape[1]))
        apart[-1, :-1] = apart[:-1, -1] = SMOOTHNESS_OF_NONE
        for _ in range(steps):
            around = members[self.neighbours].sum(axis=0) / max(len(self.neighbours), 1)
            # Factor 2: each match is also a neighbour of its neighbours.
            members = _probabilities(costs + 2 * (around @ apart))
        return members

    def energy(self, costs: np.ndarray, labels: np.ndarray) -> float:
        none = costs.shape[1] - 1
        around = labels[self.neighbours]
        apart = np.where((around == none) | (labels == none), SMOOTHNESS_OF_NONE, SMOOTHNESS) * (around != labels)
        smoothness = apart.sum() / max(len(around), 1)
        sizes = np.bincount(labels, minlength=none + 1)[:none]
        price = self.price * none + PRICE_OF_FOLLOWERS * (sizes.sum() - sizes.max())
        return float(costs[np.arange(len(labels)), labels].sum() + smoothness + price)

    def scale(self, squared: np.ndarray, labels: np.ndarray, scale: float) -> float:
        """Maximum-likelihood scale, corrected for the degrees of freedom of the models."""
        count = squared.shape[1]
        right = np.flatnonzero(labels < count)
        free = len(right) - 7 * count  # parameters of a fundamental matrix
        if free < MIN_SUPPORT:
            return scale
        distances = squared[right, labels[right]]
        for _ in range(4):
            weights = 3 / (2 + distances / scale**2)
            scale = float(np.clip(np.sqrt((weights * distances).sum() / free), MIN_SCALE, MAX_SCALE))
        return scale

    def settle(self, state: State, rounds: int) -> State:
        """Alternate between refitting models and reassigning matches while the energy decreases."""
        for _ in range(rounds):
            models = refit(self.rows, state.models, state.members[:, :-1].T, state.scale, 2)
            better = self.describe(models, state.scale)
            if better.energy >= state.energy - 1e-6:
                break
            state = better
        return state

    def merge(self, state: State) -> State | None:
        """Merge two motions, or several disjoint pairs; None if no merge lowers the energy."""
        count = len(state.models)
        first, second = np.triu_indices(count, 1)
        member = np.eye(count + 1)[state.labels][:, :count]
        together = (member[:, first] + member[:, second]).T
        models = refit(self.rows, fit_fundamental(self.rows, together), together, 3 * state.scale, 1)
        models = refit(self.rows, models, together, state.scale, 2)
        costs = student(squared_sampson(self.rows, models)[0], state.scale) + self.right
        change = ((np.minimum(costs, self.wrong) - state.own_costs) * together).sum(axis=1)
        change -= self.price + PRICE_OF_FOLLOWERS * np.minimum(state.sizes[first], state.sizes[second])
        # Neighbours with two different motions.
        pairs = state.labels * (count + 1) + state.labels[self.neighbours]
        cuts = np.bincount(pairs.ravel(), minlength=(count + 1) ** 2).reshape(count + 1, count + 1)
        cut = cuts * (SMOOTHNESS / max(len(self.neighbours), 1))
        change -= (cut + cut.T)[first, second]
        order = change.argsort(kind="stable")
        attempts = [order[k : k + 1] for k in range(min(3, len(order)))]
        if count > 3:
            attempts.insert(0, disjoint(order[change[order] < 0], first, second))
        for chosen in attempts:
            if len(chosen) == 0 or change[chosen].max() > WORTH_TRYING:
                continue
            others = np.delete(state.models, np.concatenate([first[chosen], second[chosen]]), axis=0)
            merged = self.describe(np.concatenate([others, models[chosen]]), state.scale)
            if merged.energy < state.energy:
                return self.settle(merged, 1)
        return None

    def drop(self, state: State) -> State | None:
        """Remove a motion and reassign its matches; None if that does not lower the energy."""
        count = len(state.models)
        labels, others = state.labels, state.costs.copy()
        others[np.arange(len(labels)), labels] = np.inf
        lost = np.bincount(labels, others.min(axis=1) - state.own_costs, minlength=count + 1)[:count]
        change = lost - self.price - PRICE_OF_FOLLOWERS * state.sizes
        number = int(change.argmin())
        if change[number] > WORTH_TRYING:
            return None
        fewer = self.describe(np.delete(state.models, number, axis=0), state.scale)
        return self.settle(fewer, 1) if fewer.energy < state.energy else None


def disjoint(order: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Pairs, best first, that share no motion with a better one."""
    taken: set[int] = set()
    chosen = []
    for number in order:
        pair = {int(first[number]), int(second[number])}
        if not pair & taken:
            chosen.append(number)
        taken |= pair
    return np.array(chosen, np.int64)


def student(squared: np.ndarray, scale: float) -> np.ndarray:
    """Negative log-likelihood of squared distances under Student's t-distribution, two degrees of freedom."""
    return np.log(2 * np.sqrt(2) * scale) + 1.5 * np.log1p(squared / (2 * scale**2))


def _probabilities(costs: np.ndarray) -> np.ndarray:
    likely = np.exp(costs.min(axis=1, keepdims=True) - costs)
    return likely / likely.sum(axis=1, keepdims=True)


def nearest(places: np.ndarray, count: int) -> np.ndarray:
    """[k x N] the k nearest other rows of each row, or all if there are fewer."""
    count = min(count, len(places) - 1)
    if count < 1:
        return np.zeros((0, len(places)), np.int64)
    places = places.astype(np.float32)
    _, found = cv2.batchDistance(places, places, cv2.CV_32F, K=count + 1, normType=cv2.NORM_L2)
    # Each row is its own nearest, unless others coincide with it.
    own = found == np.arange(len(places))[:, None]
    own[~own.any(axis=1), -1] = True
    return found[~own].reshape(len(places), count).T.copy()


def k_means(features: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """[N] cluster of each row: k-means++ and a few rounds of Lloyd's algorithm."""
    centres = features[random.integers(len(features))][None]
    distance = ((features - centres[0]) ** 2).sum(axis=1)
    for _ in range(count - 1):
        chance = distance + 1e-12  # a valid distribution also if all matches coincide
        centres = np.concatenate([centres, features[random.choice(len(features), p=chance / chance.sum())][None]])
        distance = np.minimum(distance, ((features - centres[-1]) ** 2).sum(axis=1))
    for _ in range(8):
        labels = (((features[:, None] - centres) ** 2).sum(axis=2)).argmin(axis=1)
        member = (labels[:, None] == np.arange(count)).astype(float)
        size = member.sum(axis=0)[:, None]
        centres = np.where(size > 0, member.T @ features / np.maximum(size, 1), centres)
    return labels
