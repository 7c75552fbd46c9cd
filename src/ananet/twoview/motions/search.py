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

from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from ananet.twoview.motions.fits import Rows, fit_fundamental, refit, squared_sampson

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
# Weight of displacements relative to positions in clustering.
DISPLACEMENT = 1.5
STARTS = 2
# Changes with at most this estimated cost are tried: reassigning matches may lower it.
WORTH_TRYING = 15.0
# Parameters of a fundamental matrix.
PARAMETERS = 7
# Matches used by the search; more make it slower, not better.
MAX_SEARCHED = 300
# Keeps the distribution valid if all matches coincide.
TINY_CHANCE = 1e-12
# Mean-field iterations; few suffice, since most matches fit only one motion.
FIELD_STEPS = 3


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


@dataclass(frozen=True, eq=False)
class Search:
    """Matches in units of their extent, and their costs."""

    rows: Rows
    neighbours: np.ndarray
    """[k x N] nearest neighbours of each match."""
    right: np.ndarray
    """[N] cost of calling a match right, before that of its distance."""
    wrong: np.ndarray
    """[N] cost of calling it wrong."""

    @classmethod
    def of(cls, points0: np.ndarray, points1: np.ndarray, probability: np.ndarray) -> Search:
        """From [N x 2] points and [N] probabilities of being right."""
        probability = np.clip(probability, *PROBABILITIES)
        near = nearest(np.column_stack([points0, points1]), NEIGHBOURS)
        return cls(Rows.of(points0, points1), near, -np.log(probability), -np.log1p(-probability))

    def some(self, chosen: np.ndarray) -> Search:
        """Search over some of the matches."""
        rows = self.rows[chosen]
        near = nearest(np.column_stack([rows.points0[:, :2], rows.points1[:, :2]]), NEIGHBOURS)
        return Search(rows, near, self.right[chosen], self.wrong[chosen])

    @property
    def price(self) -> float:
        return max(MIN_PRICE, PRICE + PRICE_PER_MATCH * len(self.rows))

    def run(self, random: np.random.Generator) -> State:
        """Return the best state found, for at least `MIN_SUPPORT` matches."""
        if len(self.rows) > MAX_SEARCHED:
            some = self.some(np.sort(random.choice(len(self.rows), MAX_SEARCHED, replace=False))).run(random)
            return self.settle(self.describe(some.models, some.scale), 2)
        best = self.one_motion(random)
        if self.most_to_gain(best) <= self.price:
            return best
        for _ in range(STARTS):
            state = self.simplify(self.clusters(random))
            best = min(best, state, key=lambda state: state.energy)
            if len(state.models) == len(best.models) == 1:
                break  # all clusters were merged into one motion, as in the state to beat
        return best

    def one_motion(self, random: np.random.Generator) -> State:
        """One motion for all matches, from several starts."""
        count = len(self.rows)
        members = np.ones((8, count))
        for row in members[1:]:
            row[:] = 0.02
            row[random.choice(count, min(20, count), replace=False)] = 1
        models = refit(self.rows, fit_fundamental(self.rows, members), members, START_SCALE, 1)
        models = refit(self.rows, models, np.ones_like(members), START_SCALE, 2)
        squared, _ = squared_sampson(self.rows, models)
        best = np.log1p(squared / START_SCALE**2).sum(axis=1).argmin()
        return self.settle(self.describe(models[best : best + 1], START_SCALE), 3)

    def most_to_gain(self, state: State) -> float:
        """Upper bound of the energy that further motions can save."""
        least = np.minimum(student(np.zeros(1), MIN_SCALE) + self.right, self.wrong)
        return state.energy - self.price * len(state.models) - least.sum()

    def clusters(self, random: np.random.Generator) -> State:
        """Initial motions: one for each cluster of neighbouring, similarly moving matches."""
        points0, points1 = self.rows.points0[:, :2], self.rows.points1[:, :2]
        features = np.column_stack([points0 + points1, DISPLACEMENT * (points1 - points0)])
        count = min(MAX_CLUSTERS, max(1, len(features) // CLUSTER_SIZE))
        labels = k_means(features, count, random)
        members = (labels == np.arange(count)[:, None]).astype(float)
        large = members.sum(axis=1) >= MIN_SUPPORT
        members = members[large] if large.any() else np.ones((1, len(features)))
        models = refit(self.rows, fit_fundamental(self.rows, members), members, START_SCALE, 2)
        return self.describe(models, START_SCALE)

    def simplify(self, state: State) -> State:
        """Merge and drop motions as long as the energy decreases."""
        state = self.settle(state, 2)
        while len(state.models) > 1:
            simpler = self.merge(state) or self.drop(state)
            if simpler is None:
                break
            state = simpler
        return self.settle(state, 3)

    def describe(self, models: np.ndarray, scale: float) -> State:
        """Estimate labels and scale for given models. Motions of too few matches are removed."""
        squared = squared_sampson(self.rows, models)[0].T
        for steps in (1, FIELD_STEPS):
            costs = self.costs(squared, scale)
            members = self.field(costs, steps)
            labels = members.argmax(axis=1)
            scale = self.scale(squared, labels, scale)
        state = State(models, scale, members, labels, costs, self.energy(costs, labels))
        large = state.sizes >= MIN_SUPPORT
        if large.all() or not large.any():
            return state
        return self.describe(models[large], scale)

    def costs(self, squared: np.ndarray, scale: float) -> np.ndarray:
        """[N x L + 1] costs of belonging to each motion, and to none, from [N x L] squared distances."""
        return np.column_stack([student(squared, scale) + self.right[:, None], self.wrong])

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
        free = len(right) - PARAMETERS * count
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
        models = fit_fundamental(self.rows, together)
        models = refit(self.rows, models, together, 3 * state.scale, 1)
        models = refit(self.rows, models, together, state.scale, 2)
        costs = student(squared_sampson(self.rows, models)[0], state.scale) + self.right
        change = ((np.minimum(costs, self.wrong) - self.own_costs(state)) * together).sum(axis=1)
        sizes = state.sizes
        change -= self.price + PRICE_OF_FOLLOWERS * np.minimum(sizes[first], sizes[second])
        change -= self.cuts(state)[first, second]
        order = change.argsort(kind="stable")
        attempts = [order[k : k + 1] for k in range(min(3, len(order)))]
        if count > 3:
            attempts.insert(0, self.disjoint(order[change[order] < 0], first, second))
        for chosen in attempts:
            if len(chosen) == 0 or change[chosen].max() > WORTH_TRYING:
                continue
            others = np.delete(state.models, np.concatenate([first[chosen], second[chosen]]), axis=0)
            merged = self.describe(np.concatenate([others, models[chosen]]), state.scale)
            if merged.energy < state.energy:
                return self.settle(merged, 1)
        return None

    @staticmethod
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

    def drop(self, state: State) -> State | None:
        """Remove a motion and reassign its matches; None if that does not lower the energy."""
        count = len(state.models)
        own, labels = self.own_costs(state), state.labels
        others = state.costs.copy()
        others[np.arange(len(labels)), labels] = np.inf
        lost = np.bincount(labels, others.min(axis=1) - own, minlength=count + 1)[:count]
        change = lost - self.price - PRICE_OF_FOLLOWERS * state.sizes
        number = int(change.argmin())
        if change[number] > WORTH_TRYING:
            return None
        fewer = self.describe(np.delete(state.models, number, axis=0), state.scale)
        return self.settle(fewer, 1) if fewer.energy < state.energy else None

    def own_costs(self, state: State) -> np.ndarray:
        return state.costs[np.arange(len(state.labels)), state.labels]

    def cuts(self, state: State) -> np.ndarray:
        """[L x L] cost of neighbours with two different motions."""
        count = len(state.models) + 1
        pairs = state.labels * count + state.labels[self.neighbours]
        cuts = np.bincount(pairs.ravel(), minlength=count**2).reshape(count, count)
        cut = cuts * (SMOOTHNESS / max(len(self.neighbours), 1))
        return cut + cut.T


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
        chance = distance + TINY_CHANCE
        centres = np.concatenate([centres, features[random.choice(len(features), p=chance / chance.sum())][None]])
        distance = np.minimum(distance, ((features - centres[-1]) ** 2).sum(axis=1))
    for _ in range(8):
        labels = (((features[:, None] - centres) ** 2).sum(axis=2)).argmin(axis=1)
        member = (labels[:, None] == np.arange(count)).astype(float)
        size = member.sum(axis=0)[:, None]
        centres = np.where(size > 0, member.T @ features / np.maximum(size, 1), centres)
    return labels
