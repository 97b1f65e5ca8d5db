"""Throughput under stale-synchronous parallel, without any event queue: the golden numbers of bench/sim/tests/exact_laws.rs.

Let end(i, c) be when worker i completes its iteration c (from 0). It begins iteration c when it has completed c - 1 itself and when
everybody has completed iteration c - s - 1 (then the smallest clock is c - s):

    end(i, c) = max(end(i, c - 1), max over j of end(j, c - s - 1)) + duration(i, c)

Throughput is the number of iterations completed before the first worker runs out of iterations, over that time. Printed are ratios to
the throughput at s = 0. Only the standard library is used: python3 tests/golden/ssp_throughput.py
"""
import math
import random

BOUNDS = [0, 1, 4, 8, None]
ITERATIONS = 4000
SEEDS = range(4)


def steady(chance):
    """The factor of a time that is nearly constant: evenly within five per cent of one."""
    return chance.uniform(0.95, 1.05)


def rotating(chance, worker, iteration, workers):
    turn = iteration // 5 % workers
    return (4.0 if turn == worker % workers else 1.0) * steady(chance)


KINDS = {
    "exp": lambda chance, worker, iteration, workers: chance.expovariate(1.0),
    "lognormal": lambda chance, worker, iteration, workers: math.exp(chance.gauss(-0.125, 0.5)),
    "transient": lambda chance, worker, iteration, workers: (10.0 if chance.random() < 0.05 else 1.0) * steady(chance),
    "permanent2": lambda chance, worker, iteration, workers: (2.0 if worker == 0 else 1.0) * steady(chance),
    "permanent4": lambda chance, worker, iteration, workers: (4.0 if worker == 0 else 1.0) * steady(chance),
    "rotating": rotating,
}


def throughput(duration, workers, bound, seed):
    chance = random.Random(seed)
    last = [0.0] * workers
    everybody = []
    ends = []
    for iteration in range(ITERATIONS):
        gate = 0.0
        if bound is not None and iteration > bound:
            gate = everybody[iteration - bound - 1]
        for worker in range(workers):
            last[worker] = max(last[worker], gate) + duration(chance, worker, iteration, workers)
            ends.append(last[worker])
        everybody.append(max(last))
    horizon = min(last)
    return sum(end <= horizon for end in ends) / horizon


def ratios(duration, workers):
    means = [sum(throughput(duration, workers, bound, seed) for seed in SEEDS) for bound in BOUNDS]
    return [mean / means[0] for mean in means]


if __name__ == "__main__":
    for name, duration in KINDS.items():
        print(name, 8, " ".join(f"{ratio:.3f}" for ratio in ratios(duration, 8)))
    for workers in (4, 8, 16):
        harmonic = sum(1 / rank for rank in range(1, workers + 1))
        print("exp", workers, f"asp/bsp {ratios(KINDS['exp'], workers)[-1]:.3f}, harmonic number {harmonic:.3f}")
