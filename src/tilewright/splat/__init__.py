"""Scenes of Gaussian splats: files, cameras, pictures, and training from photographs.

    import tilewright as tw
    scene = tw.splat.load("scene.ply")
    picture = scene.render(tw.splat.look_at((3, 1, 2), width=640, height=480)).color
    tw.splat.write_png("view.png", picture)
"""
from __future__ import annotations

from .cameras import Camera, look_at, orbit
from .data import Views, load_views, save_transforms
from .files import load, save
from .images import read_image, write_gif, write_png
from .metrics import psnr, ssim
from .scene import Scene
from .train import Options, Trainer
from .viewer import viewer_html

__all__ = ["Camera", "Options", "Scene", "Trainer", "Views", "load", "load_views", "look_at", "orbit", "psnr", "read_image", "save",
           "save_transforms", "ssim", "viewer_html", "write_gif", "write_png"]
