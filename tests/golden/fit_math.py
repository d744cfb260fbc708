"""Fits the polynomials of lib/numeric/math.h; prints C++ constants.

Each is a minimax fit in relative error, found by Lawson's iteration (least squares whose weights
are multiplied by the error at every round) on Chebyshev nodes. The coefficients are then rounded to
fp32 one by one, lowest order first, refitting the rest. Needs numpy and mpmath.
"""

import mpmath
import numpy as np

mpmath.mp.dps = 40


def lawson(basis, target, weight, rounds=400):
    w = np.ones(len(target)) / len(target)
    best, best_error = None, np.inf
    for _ in range(rounds):
        root = np.sqrt(w)[:, None]
        scaled = weight[:, None] * root
        c = np.linalg.lstsq(basis * scaled, target * scaled[:, 0], rcond=None)[0]
        error = np.abs(weight * (basis @ c - target))
        if error.max() < best_error:
            best, best_error = c, error.max()
        w = w * error
        w /= w.sum()
    return best, best_error


def fit(name, degree, low, high, target, weight, nodes=3000):
    x = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    t = np.array([float(target(mpmath.mpf(v))) for v in x])
    w = np.array([float(weight(mpmath.mpf(v))) for v in x])
    powers = np.vander(x, degree + 1, increasing=True)
    fixed = []
    for order in range(degree + 1):
        rest = t - (powers[:, :order] @ np.array(fixed) if order else 0.0)
        c, error = lawson(powers[:, order:], rest, w)
        if order == 0:
            exact_error = error
        fixed.append(float(np.float32(c[0])))
    error = np.abs(w * (powers @ np.array(fixed) - t)).max()
    print(
        f"// {name}: relative error {error:.2e} (before rounding the coefficients "
        f"{exact_error:.2e})"
    )
    for order, value in enumerate(fixed):
        print(f"//   c{order} = {value:.9g}F")


half_ln2 = float(mpmath.log(2) / 2) * 1.0005
fit("exp(r) = 1 + r + r^2 c(r)", 4, -half_ln2, half_ln2,
    lambda r: (mpmath.expm1(r) - r) / r**2, lambda r: r**2 / mpmath.exp(r))
fit(
    "log(1 + f) = f - f^2 / 2 + f^3 c(f)",
    8,
    float(mpmath.sqrt(0.5) - 1),
    float(mpmath.sqrt(2) - 1),
    lambda f: (mpmath.log1p(f) - f + f**2 / 2) / f**3,
    lambda f: f**3 / mpmath.log1p(f),
)
fit("tanh(x) = x + x^3 c(x^2), s = x^2", 4, 1e-6, 0.625**2,
    lambda s: (mpmath.tanh(mpmath.sqrt(s)) / mpmath.sqrt(s) - 1) / s,
    lambda s: s * mpmath.sqrt(s) / mpmath.tanh(mpmath.sqrt(s)))
