"""Training a scene from photographs: Adam on every parameter, the loss L1 and D-SSIM, and Gaussians that come and go.

One compiled step renders a view, compares, differentiates and updates. Where the gradient of positions on the screen stays large, small
Gaussians are cloned and large ones split; transparent and oversized ones are removed; opacities are lowered now and then, so that only
those that are needed come back. Arrays are padded with Gaussians that draw nothing, so that a new number of them seldom compiles anew.
Random choices depend on the seed and the step alone: a resumed run takes the steps that an unbroken one takes.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from ..core.errors import CheckpointError, ExecutionError, InputError
from ..transform.derive import value_and_grad
from ..transform.lib import FUNCTIONS as T
from ..transform.lib.splats import splat_prepare, splat_rasterize
from .cameras import Array, Camera
from .data import Views
from .metrics import psnr, traced_ssim
from .scene import Scene, needed_capacity

NAMES = ("means", "log_scales", "quats", "logits", "sh0", "rest")
BETAS, EPS = (0.9, 0.999), 1e-15
HIDDEN = -30.0  # the logit of a Gaussian that pads


@dataclass(frozen=True)
class Options:
    """What a run does. Rates are Adam's; that of positions is in units of the cameras' extent and falls to a hundredth."""

    steps: int = 7000
    rate_means: float = 1.6e-4
    rate_scales: float = 5e-3
    rate_quats: float = 1e-3
    rate_opacity: float = 5e-2
    rate_sh: float = 2.5e-3
    dssim: float = 0.2  # share of D-SSIM in the loss
    degree: int = 3
    degree_every: int = 1000  # steps between degrees of harmonics
    densify_from: int = 500
    densify_until: int = 3500
    densify_every: int = 100
    densify_gradient: float = 2e-4  # least gradient of the position on a screen that is 2 wide
    split_size: float = 0.01  # a share of the extent: larger Gaussians are split, others cloned
    prune_opacity: float = 0.005
    prune_size: float = 0.1  # a share of the extent
    reset_every: int = 3000
    most: int = 1_000_000
    antialias: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.most < 1 or not 0 <= self.dssim <= 1 or self.degree not in (0, 1, 2, 3):
            raise InputError(f"train: steps and most are positive, 0 <= dssim <= 1 and degree is 0 to 3, got {self}")


@dataclass
class Progress:
    """After a step."""

    step: int
    loss: float
    count: int


class Trainer:
    """A run: `for progress in trainer.run(): ...`, then `trainer.scene()`. `save` and `Trainer.resume` go on where a run was left."""

    def __init__(self, views: Views, options: Options | None = None, *, scene: Scene | None = None,
                 background: tuple[float, float, float] = (0, 0, 0)) -> None:
        self.views, self.options = views, options or Options()
        self.background = np.asarray(background, np.float32)
        self.extent, self.step = views.extent, 0
        start = scene or initial_scene(views, self.options)
        self.params = _split(start, self.options.degree)
        self.moments = {name: (np.zeros_like(x), np.zeros_like(x)) for name, x in self.params.items()}
        self.capacity: int | None = None
        self._steps: dict[Any, Any] = {}
        self._forget()

    # --- the run ----------------------------------------------------------------------------------------------------------------------
    def run(self, until: int | None = None, each: Callable[[Progress], None] | None = None) -> Progress:
        """Take steps until `until` (by default all of them); `each` hears of every one."""
        last = Progress(self.step, math.nan, self.count)
        stop = self.options.steps if until is None else min(until, self.options.steps)
        self._pad()
        while self.step < stop:
            last = Progress(self.step + 1, self._one(), self.count)
            self.step += 1
            self._tend()
            if each is not None:
                each(last)
        return last

    @property
    def count(self) -> int:
        """Gaussians without those that pad."""
        return self._count

    def scene(self) -> Scene:
        p = {name: x[: self.count] for name, x in self.params.items()}
        return Scene(p["means"], p["log_scales"], p["quats"], p["logits"], np.concatenate([p["sh0"], p["rest"]], 1))

    def quality(self) -> float:
        """The mean PSNR over the views that were held out (over all, where none were)."""
        scene = self.scene()
        held = list(zip(self.views.test_cameras, self.views.test_pictures, strict=True))
        pairs = held or list(zip(self.views.cameras, self.views.pictures, strict=True))
        return float(np.mean([psnr(np.clip(self.picture(c, scene), 0, 1), p) for c, p in pairs]))

    def picture(self, camera: Camera, scene: Scene | None = None) -> Array:
        image: Array = (scene or self.scene()).render(camera, background=self.background.tolist(), antialias=self.options.antialias).color
        return image

    # --- one step ---------------------------------------------------------------------------------------------------------------------
    def _one(self) -> float:
        o, number = self.options, self.step
        order = np.random.default_rng((o.seed, number // len(self.views.cameras))).permutation(len(self.views.cameras))
        which = int(order[number % len(order)])
        camera, target = self.views.cameras[which], self.views.pictures[which]
        fall = 0.01 ** (number / max(o.steps, 1))
        first = o.rate_means * self.extent * fall
        rates = np.array([first, o.rate_scales, o.rate_quats, o.rate_opacity, o.rate_sh, o.rate_sh / 20], np.float32)
        correction = np.array([1 - BETAS[0] ** (number + 1), 1 - BETAS[1] ** (number + 1)], np.float32)
        terms = (min(o.degree, number // o.degree_every) + 1) ** 2 - 1
        seen = (np.arange(self.params["rest"].shape[1]) < terms).astype(np.float32).reshape(1, -1, 1)
        probe = np.zeros((1, len(self.params["means"]), 2), np.float32)
        for _ in range(4):
            try:
                made = self._step_of(camera)(self.params, self.moments, probe, camera.view, camera.intrinsics, target, self.background,
                                             rates, correction, seen)
                break
            except ExecutionError as e:
                self.capacity = needed_capacity(e)
                self._steps.clear()
                if self.capacity is None:
                    raise
        self.params, self.moments, loss, slope, radius = made
        drawn = radius > 0
        self.slopes[drawn] += slope[drawn]
        self.seen[drawn] += 1
        return float(loss)

    def _step_of(self, camera: Camera) -> Any:
        """The compiled step for views of this size."""
        from ..array.jit import jit

        key = (camera.width, camera.height, camera.model)
        if key not in self._steps:
            self._steps[key] = jit(_step(*key, self.options, self.capacity))
        return self._steps[key]

    # --- Gaussians that come and go ---------------------------------------------------------------------------------------------------
    def _tend(self) -> None:
        o = self.options
        if o.densify_from <= self.step <= o.densify_until and self.step % o.densify_every == 0:
            self._densify()
        if self.step < o.densify_until and self.step % o.reset_every == 0:
            low = math.log(0.01 / 0.99)
            self.params["logits"] = np.minimum(self.params["logits"], np.float32(low))
            self.moments["logits"] = (np.zeros_like(self.params["logits"]), np.zeros_like(self.params["logits"]))

    def _densify(self) -> None:
        o, n = self.options, self.count
        p = {name: x[:n] for name, x in self.params.items()}
        m = {name: tuple(x[:n] for x in pair) for name, pair in self.moments.items()}
        rng = np.random.default_rng((o.seed, self.step, 1))
        slope = np.where(self.seen[:n] > 0, self.slopes[:n] / np.maximum(self.seen[:n], 1), 0)
        size = np.exp(p["log_scales"].max(1))
        eager = slope > o.densify_gradient
        room = max(o.most - n, 0)
        if int(eager.sum()) > room:  # those that need it most
            eager &= np.isin(np.arange(n), np.argsort(-slope, kind="stable")[:room])
        cloned, cut = eager & (size <= o.split_size * self.extent), eager & (size > o.split_size * self.extent)
        halves = []
        for _ in range(2):  # two smaller ones at random places inside each that is split
            offset = rng.normal(size=(int(cut.sum()), 3)) * np.exp(p["log_scales"][cut])
            half = {name: x[cut].copy() for name, x in p.items()}
            half["means"] += rotated(half["quats"], offset).astype(np.float32)
            half["log_scales"] -= np.float32(math.log(1.6))
            halves.append(half)
        opacity = 1 / (1 + np.exp(-p["logits"]))
        gone = cut | (opacity < o.prune_opacity) | (size > o.prune_size * self.extent * (1 if self.step > o.reset_every else np.inf))
        gone |= ~np.stack([np.isfinite(x).all(axis=tuple(range(1, x.ndim))) for x in p.values()]).all(0)
        parts = [{name: x[~gone] for name, x in p.items()}, {name: x[cloned] for name, x in p.items()}, *halves]
        self.params = {name: np.concatenate([part[name] for part in parts]) for name in p}
        fresh = len(self.params["means"]) - int((~gone).sum())
        self.moments = {name: tuple(_grown(x[~gone], fresh) for x in pair) for name, pair in m.items()}  # type: ignore[misc]
        self._forget()
        self._pad()

    def _forget(self) -> None:
        self._count = len(self.params["means"])
        self.slopes, self.seen = np.zeros(self._count, np.float32), np.zeros(self._count, np.float32)

    def _pad(self) -> None:
        """Rows up to a number that changes seldom."""
        n = self.count
        step = max(512, 1 << max(n.bit_length() - 3, 0))
        more = -(-max(n, 1) // step) * step - len(self.params["means"])
        if more <= 0:
            return
        fill = {"logits": HIDDEN, "log_scales": -5.0}
        self.params = {name: _grown(x, more, fill.get(name, 0.0)) for name, x in self.params.items()}
        self.params["quats"][n:, 0] = 1
        self.moments = {name: (_grown(a, more), _grown(b, more)) for name, (a, b) in self.moments.items()}
        self.slopes, self.seen = _grown(self.slopes, more), _grown(self.seen, more)

    # --- checkpoints ------------------------------------------------------------------------------------------------------------------
    def save(self, path: str | PathLike[str]) -> None:
        """Everything that a run needs to go on."""
        from ..training.checkpoint import save_checkpoint

        n = self.count
        tree = {"params": {k: x[:n] for k, x in self.params.items()}, "first": {k: a[:n] for k, (a, _) in self.moments.items()},
                "second": {k: b[:n] for k, (_, b) in self.moments.items()}, "slopes": self.slopes[:n], "seen": self.seen[:n]}
        save_checkpoint(path, tree, step=self.step, metadata={"splat": asdict(self.options), "background": self.background.tolist()})

    @classmethod
    def resume(cls, path: str | PathLike[str], views: Views, *, steps: int | None = None) -> Trainer:
        """The run that `save` left; `steps` changes how many there are in all."""
        from ..training.checkpoint import load_checkpoint

        kept = load_checkpoint(path)
        try:
            options = Options(**kept.metadata["splat"])
            tree, background = kept.tree, tuple(kept.metadata["background"])
            p = tree["params"]
            scene = Scene(p["means"], p["log_scales"], p["quats"], p["logits"], np.concatenate([p["sh0"], p["rest"]], 1))
            self = cls(views, options if steps is None else replace(options, steps=steps), scene=scene, background=background)
            self.moments = {k: (tree["first"][k], tree["second"][k]) for k in NAMES}
            self.slopes, self.seen, self.step = tree["slopes"], tree["seen"], kept.step
        except (KeyError, TypeError, IndexError) as e:
            raise CheckpointError(f"train: {path} is no checkpoint of a scene ({type(e).__name__}: {e})") from e
        return self


def _step(width: int, height: int, model: str, o: Options, capacity: int | None) -> Callable[..., Any]:
    def loss(params: dict[str, Any], probe: Any, view: Any, k: Any, target: Any, background: Any, seen: Any) -> Any:
        sh = T["concat"]([params["sh0"], params["rest"] * seen], axis=1)
        drawn = splat_prepare(params["means"], T["exp"](params["log_scales"]), params["quats"], T["sigmoid"](params["logits"]), sh, view, k,
                              width=width, height=height, camera=model, antialias=o.antialias, capacity=capacity)
        image = splat_rasterize(drawn._replace(means=drawn.means + probe), width=width, height=height, background=background)
        color = T["reshape"](image.color, (height, width, 3))
        value = T["mean"](T["abs"](color - target)) * (1 - o.dssim)
        if o.dssim:
            value = value + (1.0 - traced_ssim(color, target)) * o.dssim
        return value, T["max"](drawn.radii[0], axis=-1)

    both = value_and_grad(loss, argnums=(0, 1), has_aux=True)

    def step(params: Any, moments: Any, probe: Any, view: Any, k: Any, target: Any, background: Any, rates: Any, correction: Any,
             seen: Any) -> Any:
        (value, radius), (grads, slope) = both(params, probe, view, k, target, background, seen)
        new, kept = {}, {}
        for i, name in enumerate(NAMES):
            g, (first, second) = grads[name], moments[name]
            first = first * BETAS[0] + g * (1 - BETAS[0])
            second = second * BETAS[1] + g * g * (1 - BETAS[1])
            new[name] = params[name] - rates[i] * (first / correction[0]) / (T["sqrt"](second / correction[1]) + EPS)
            kept[name] = (first, second)
        moved = slope[0] * np.array([width / 2, height / 2], np.float32)
        return new, kept, value, T["sqrt"](T["sum"](moved * moved, axis=-1)), radius

    return step


def _split(scene: Scene, degree: int) -> dict[str, Array]:
    """Parameters by name; harmonics of the wanted degree, missing ones 0."""
    terms = (degree + 1) ** 2
    sh = np.zeros((len(scene), terms, 3), np.float32)
    sh[:, : min(terms, scene.sh.shape[1])] = scene.sh[:, :terms]
    return {"means": scene.means, "log_scales": scene.log_scales, "quats": scene.quats, "logits": scene.logits, "sh0": sh[:, :1].copy(),
            "rest": sh[:, 1:].copy()}


def _grown(x: Array, more: int, value: float = 0.0) -> Array:
    return np.concatenate([x, np.full((more, *x.shape[1:]), value, x.dtype)])


def rotated(quats: Array, vectors: Array) -> Array:
    """Vectors rotated by quaternions."""
    q = quats / np.maximum(np.linalg.norm(quats, axis=1, keepdims=True), 1e-12)
    w, u = q[:, :1], q[:, 1:]
    cross = np.cross(u, vectors)
    found: Array = vectors + 2 * (w * cross + np.cross(u, cross))
    return found


def initial_scene(views: Views, options: Options, count: int = 5000) -> Scene:
    """From the points of the views; without any, from random points where the cameras look."""
    if len(views.points):
        return Scene.from_points(views.points, views.colors, degree=options.degree)
    rng = np.random.default_rng(options.seed)
    places = np.stack([c.position for c in views.cameras])
    looks = np.stack([c.view[2, :3] for c in views.cameras])
    # the point that is nearest to all lines of sight
    across = np.eye(3) - looks[:, :, None] * looks[:, None, :]
    middle = np.linalg.lstsq(across.sum(0), (across @ places[:, :, None]).sum(0)[:, 0], rcond=None)[0]
    radius = 0.5 * float(np.median(np.linalg.norm(places - middle, axis=1)))
    return Scene.from_points(middle + rng.uniform(-radius, radius, (count, 3)), rng.uniform(0, 1, (count, 3)), degree=options.degree)
