"""Pictures of scenes of Gaussian splats, and scenes from pictures.

    tilewright splat render scene.ply --camera 3,1,2 -o view.png          a picture from a place, towards the middle of the scene
    tilewright splat render scene.ply --camera photos/:7 -o view.png      from the seventh camera of a folder
    tilewright splat orbit scene.ply -o orbit.gif                         once around (a folder instead of a .gif: numbered PNG frames)
    tilewright splat train photos/ -o scene.ply                           from COLMAP's or NeRF's cameras, with pictures of the progress
    tilewright splat view scene.ply -o scene.html                         one page that any browser shows
"""

from __future__ import annotations

import argparse
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from ..core.files import write_file
from .console import console, progress

if TYPE_CHECKING:
    from ..splat.cameras import Camera
    from ..splat.scene import Scene
    from ..splat.train import Trainer


def numbers(text: str, count: int, what: str) -> tuple[float, ...]:
    """`1,2,3` as numbers."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) != count:
        raise InputError(f"splat: {what} is {count} numbers with commas between them, got {text!r}")
    return found


def size_of(text: str) -> tuple[int, int]:
    width, found, height = text.lower().partition("x")
    if not found or not width.isdigit() or not height.isdigit() or int(width) < 1 or int(height) < 1:
        raise InputError(f"splat: a size is WIDTHxHEIGHT, got {text!r}")
    return int(width), int(height)


def check_ending(path: Path, *endings: str, hint: str = "") -> None:
    """A name that says another kind of file than what is written is an error, before the work."""
    if path.suffix.lower() not in endings:
        raise InputError(f"splat: the output is {' or '.join(e or 'a folder' for e in endings)}, got {path.name!r}{hint}")


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)

    def command(name: str, line: str, source: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=line, description=line)
        made.add_argument("source", type=Path, help=source)
        return made

    scene = "a scene: .ply, .splat or .spz"
    for name, line in (("render", "one picture"), ("orbit", "pictures once around the scene")):
        sub = command(name, line, scene)
        sub.add_argument("--size", default="640x480", help="pixels (default: %(default)s)")
        sub.add_argument("--fov", type=float, default=50.0, help="field of view across the picture in degrees (default: %(default)s)")
        sub.add_argument("--target", help="the point in the middle of the picture: x,y,z (default: the middle of the scene)")
        sub.add_argument("--up", default="0,1,0", help="the direction that is up (default: %(default)s; 0,0,1 for NeRF, 0,-1,0 for COLMAP)")
        sub.add_argument("--background", default="0,0,0", help="red,green,blue between 0 and 1 (default: %(default)s)")
        sub.add_argument("--antialias", action="store_true", help="compensate opacities for the blur of a pixel")
        sub.add_argument("--fisheye", action="store_true", help="a fisheye lens instead of a pinhole")
        if name == "render":
            sub.add_argument("--camera", help="x,y,z of the eye, or a folder or transforms.json with :NUMBER behind it")
            sub.add_argument("--depth", action="store_true", help="write a picture of depths too, NAME-depth.png")
        else:
            sub.add_argument("--frames", type=int, default=36, help="how many pictures (default: %(default)s)")
            sub.add_argument("--elevation", type=float, default=20.0, help="degrees above the target (default: %(default)s)")
            sub.add_argument("--radius", type=float, help="distance from the target (default: by the scene's size)")
        sub.add_argument("-o", "--output", type=Path, required=True, help="a .png file" if name == "render" else "a .gif file or a folder")
    sub = command("train", "a scene from photographs", "a folder with COLMAP's sparse/0 and images, or with transforms.json")
    sub.add_argument("-o", "--output", type=Path, required=True, help="the scene: .ply, .splat or .spz")
    sub.add_argument("--steps", type=int, default=7000, help="how many (default: %(default)s)")
    sub.add_argument("--scale", type=float, default=1.0, help="of the photographs: 0.5 halves their sides")
    sub.add_argument("--degree", type=int, default=3, choices=range(4), help="of spherical harmonics (default: %(default)s)")
    sub.add_argument("--most", type=int, default=1_000_000, help="most Gaussians (default: %(default)s)")
    sub.add_argument("--background", default="0,0,0", help="red,green,blue behind the scene (default: %(default)s)")
    sub.add_argument("--antialias", action="store_true")
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--every", type=int, default=1000, help="steps between checkpoints and pictures (default: %(default)s)")
    sub.add_argument("--resume", action="store_true", help="go on from the checkpoint beside the output")
    sub = command("view", "one HTML file that shows the scene with the mouse", scene)
    sub.add_argument("-o", "--output", type=Path, help="the page (default: beside the scene)")
    sub.add_argument("--background", default="1,1,1", help="red,green,blue (default: %(default)s)")
    sub.add_argument("--up", default="0,1,0", help="the direction that is up (default: %(default)s)")
    sub.add_argument("--open", action="store_true", help="show it in the browser")


def run(args: argparse.Namespace) -> int:
    return {"render": _render, "orbit": _orbit, "train": _train, "view": _view}[args.what](args)


def _camera(args: argparse.Namespace, scene: Scene) -> Camera:
    from ..splat import load_views, look_at
    from ..splat.data import read_transforms

    width, height = size_of(args.size)
    middle, radius = scene.bounds()
    target = numbers(args.target, 3, "--target") if args.target else tuple(float(v) for v in middle)
    up, model = numbers(args.up, 3, "--up"), "fisheye" if args.fisheye else "pinhole"
    place, _, number = (args.camera or "").rpartition(":")
    if number.isdigit() and place:
        source = Path(place)
        cameras = read_transforms(source) if source.suffix == ".json" else load_views(source).cameras
        if int(number) >= len(cameras):
            raise InputError(f"splat: {source} has cameras 0 to {len(cameras) - 1}, got {number}")
        return cameras[int(number)]
    corner = tuple(float(m) + 2.4 * radius * d for m, d in zip(middle, (0.6, 0.5, 0.7), strict=True))
    eye = numbers(args.camera, 3, "--camera") if args.camera else corner
    return look_at(eye, target, width=width, height=height, fov=args.fov, up=up, model=model)


def _render(args: argparse.Namespace) -> int:
    from ..splat import load, write_png

    check_ending(args.output, ".png")
    scene = load(args.source)
    camera = _camera(args, scene)
    image = scene.render(camera, background=numbers(args.background, 3, "--background"), antialias=args.antialias)
    write_png(args.output, image.color)
    if args.depth:
        near = image.depth / image.alpha.clip(1e-6)
        drawn = near[image.alpha > 0.5]
        low, high = (float(drawn.min()), float(drawn.max())) if drawn.size else (0.0, 1.0)
        bright = 1 - 0.9 * (near - low) / max(high - low, 1e-9)
        write_png(args.output.with_stem(args.output.stem + "-depth"), (image.alpha > 0.5) * bright)
    console().print(f"{len(scene):,} Gaussians, {camera.width}x{camera.height}: {args.output}")
    return 0


def _orbit(args: argparse.Namespace) -> int:
    from ..splat import load, orbit, write_gif, write_png

    check_ending(args.output, ".gif", "", hint="; `ffmpeg -i folder/frame-%04d.png` makes a film of the pictures in a folder")
    scene = load(args.source)
    width, height = size_of(args.size)
    middle, radius = scene.bounds()
    if args.frames < 1:
        raise InputError(f"splat: an orbit has at least one frame, got --frames {args.frames}")
    target = numbers(args.target, 3, "--target") if args.target else tuple(float(v) for v in middle)
    circle = orbit(target, radius=args.radius or 2.4 * radius, count=args.frames, elevation=args.elevation, width=width, height=height,
                   fov=args.fov, up=numbers(args.up, 3, "--up"), model="fisheye" if args.fisheye else "pinhole")
    background, pictures = numbers(args.background, 3, "--background"), []
    with progress("drawing") as step:
        for i, camera in enumerate(circle):
            step(f"{i + 1} of {len(circle)}")
            pictures.append(scene.render(camera, background=background, antialias=args.antialias).color)
    if args.output.suffix.lower() == ".gif":
        write_gif(args.output, pictures)
    else:
        args.output.mkdir(parents=True, exist_ok=True)
        for i, picture in enumerate(pictures):
            write_png(args.output / f"frame-{i:04d}.png", picture)
    console().print(f"{len(pictures)} pictures, {width}x{height}: {args.output}")
    return 0


def _train(args: argparse.Namespace) -> int:
    from ..splat import Options, Trainer, load_views, save
    from ..training.bar import progress_bar

    check_ending(args.output, ".ply", ".splat", ".spz")
    background: Any = numbers(args.background, 3, "--background")
    views = load_views(args.source, scale=args.scale, background=background)
    kept = args.output.with_suffix(".checkpoint.safetensors")
    if args.resume:
        trainer = Trainer.resume(kept, views, steps=args.steps)
    else:
        first, last = max(args.steps // 14, 1), max(args.steps // 2, 1)
        options = Options(steps=args.steps, degree=args.degree, most=args.most, antialias=args.antialias, seed=args.seed,
                          densify_from=min(500, first), densify_until=last, degree_every=max(1, min(1000, args.steps // 7)))
        trainer = Trainer(views, options, background=background)
    out, start = console(), time.perf_counter()
    out.print(f"{len(views.cameras)} views to train from, {len(views.test_cameras)} held out, {trainer.count:,} Gaussians to begin with")
    with progress_bar(args.steps, trainer.step) as bar:
        while trainer.step < args.steps:
            done = trainer.run(min(args.steps, (trainer.step // args.every + 1) * args.every), each=lambda p: bar.show(p.step, p.loss))
            bar.note("saving")
            trainer.save(kept)
            save(args.output, trainer.scene())
            _beside(trainer, args.output.with_suffix(".png"))
            bar.note("")
            out.print(f"step {done.step:,}: loss {done.loss:.4f}, {trainer.count:,} Gaussians, {trainer.quality():.2f} dB, "
                      f"{time.perf_counter() - start:.0f} s")
    out.print(f"{args.output}; pictures beside photographs: {args.output.with_suffix('.png')}")
    return 0


def _beside(trainer: Trainer, path: Path) -> None:
    """Up to four views: photographs above, what the scene shows below."""
    import numpy as np

    from ..splat import write_png

    views = trainer.views
    cameras, pictures = (views.test_cameras, views.test_pictures) if views.test_cameras else (views.cameras, views.pictures)
    size = pictures[0].shape
    chosen = [i for i, p in enumerate(pictures) if p.shape == size][:4]
    write_png(path, np.concatenate([np.concatenate([pictures[i], trainer.picture(cameras[i])], 0) for i in chosen], 1))


def _view(args: argparse.Namespace) -> int:
    from ..splat import load, viewer_html

    path = args.output or args.source.with_suffix(".html")
    page = viewer_html(load(args.source), title=args.source.name, background=numbers(args.background, 3, "--background"),
                       up=numbers(args.up, 3, "--up"))
    write_file(path, page.encode(), subject="splat")
    console().print(f"{path}: {len(page) / 1e6:.1f} MB, open it in a browser")
    if args.open:
        webbrowser.open(path.resolve().as_uri())
    return 0
