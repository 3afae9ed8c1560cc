"""Training scenes: the loss falls, a resumed run is the unbroken one, metrics are PyTorch's, and the commands do what they say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tests.shaken import HANG
from tilewright.cli.main import main
from tilewright.core.errors import CheckpointError, InputError
from tilewright.splat.scene import spacing
from tilewright.splat.train import rotated


def target() -> tw.splat.Scene:
    """Forty coloured blobs."""
    rng = np.random.default_rng(1)
    made = tw.splat.Scene.from_points(rng.normal(size=(40, 3)) * 0.4, rng.uniform(size=(40, 3)), degree=0, opacity=0.9)
    made.log_scales[:] = np.log(0.12)
    return made


def views(count: int = 6, size: int = 32) -> tw.splat.Views:
    scene = target()
    cameras = tw.splat.orbit(radius=2.5, count=count, width=size, height=size - 3)
    pictures = [np.asarray(scene.render(c).color) for c in cameras]
    start = scene.means + np.random.default_rng(2).normal(size=scene.means.shape).astype(np.float32) * 0.05  # type: ignore[attr-defined]
    return tw.splat.Views(cameras[1:], pictures[1:], cameras[:1], pictures[:1], start, np.full_like(start, 0.5))


OPTIONS = tw.splat.Options(steps=60, densify_from=20, densify_until=50, densify_every=20, densify_gradient=1e-5, degree=1, degree_every=20,
                           reset_every=1000, most=200, rate_means=3e-3, rate_sh=2e-2)


def test_training_recovers_a_scene_and_resuming_is_not_seen(tmp_path: Path) -> None:
    data = views()
    whole = tw.splat.Trainer(data, OPTIONS)
    before = whole.quality()
    counts: list[int] = []
    whole.run(each=lambda p: counts.append(p.count))
    assert whole.quality() > before + 2
    assert counts[0] == 40 < counts[-1] <= 200
    half = tw.splat.Trainer(data, OPTIONS)
    half.run(until=33)
    half.save(tmp_path / "half.safetensors")
    resumed = tw.splat.Trainer.resume(tmp_path / "half.safetensors", data)
    resumed.run()
    for name in ("means", "log_scales", "quats", "logits", "sh"):
        np.testing.assert_array_equal(getattr(resumed.scene(), name), getattr(whole.scene(), name))


def test_opacities_are_reset_and_the_transparent_pruned() -> None:
    trainer = tw.splat.Trainer(views(), tw.splat.Options(steps=4, densify_from=100, densify_until=200, reset_every=2, degree=0,
                                                           densify_gradient=1e9))
    trainer.run(until=2)
    assert (trainer.scene().logits <= np.log(0.01 / 0.99) + 1e-6).all()
    trainer.params["logits"][:10] = -8.0
    trainer._densify()
    assert trainer.count == 30


def test_a_file_of_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    tw.training.save_checkpoint(tmp_path / "other.safetensors", {"w": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match="is no checkpoint of a scene"):
        tw.splat.Trainer.resume(tmp_path / "other.safetensors", views())
    with pytest.raises(InputError, match="steps and most are positive"):
        tw.splat.Options(steps=0)


def test_ssim_and_psnr_are_those_of_the_papers() -> None:
    rng = fresh_rng()
    x, y = rng.uniform(size=(2, 23, 17, 3)).astype(np.float32)
    grid = torch.arange(11, dtype=torch.float64) - 5
    line = torch.exp(-(grid**2) / (2 * 1.5**2))
    kernel = (line[:, None] * line[None, :] / line.sum() ** 2).expand(3, 1, 11, 11)

    def blurred(v: Any) -> Any:
        return torch.nn.functional.conv2d(v, kernel, padding=5, groups=3)

    a, b = (torch.tensor(v).double().permute(2, 0, 1)[None].requires_grad_() for v in (x, y))
    ma, mb = blurred(a), blurred(b)
    va, vb, ab = blurred(a * a) - ma**2, blurred(b * b) - mb**2, blurred(a * b) - ma * mb
    want = ((2 * ma * mb + 0.01**2) * (2 * ab + 0.03**2) / ((ma**2 + mb**2 + 0.01**2) * (va + vb + 0.03**2))).mean()
    assert abs(tw.splat.ssim(x, y) - want.item()) < 1e-5
    assert abs(tw.splat.ssim(x, x) - 1) < 1e-6
    slope = torch.autograd.grad(want, a)[0][0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(tw.grad(tw.splat.ssim)(x, y), slope, atol=1e-5 * np.abs(slope).max() + 1e-8, rtol=1e-3)
    assert abs(tw.splat.psnr(x, y) + 10 * np.log10(np.mean((x.astype(float) - y) ** 2))) < 1e-9


def test_points_become_gaussians_as_wide_as_their_gaps() -> None:
    grid = np.stack(np.meshgrid(*(np.arange(6),) * 3), -1).reshape(-1, 3).astype(np.float32) * 0.5
    np.testing.assert_allclose(spacing(grid, 3), 0.5, rtol=0.3)
    assert abs(np.median(spacing(grid, 3)) - 0.5) < 0.01
    made = tw.splat.Scene.from_points(grid, np.full_like(grid, 0.25), degree=1)
    np.testing.assert_allclose(made.render(tw.splat.look_at((9, 3, 2), (1, 1, 1), width=20, height=20)).color.max(), 0.25, atol=0.02)
    with pytest.raises(InputError, match=r"points and colors must be \[N,3\]"):
        tw.splat.Scene.from_points(grid, grid[:2])


def test_vectors_turn_as_matrices_do() -> None:
    rng = fresh_rng()
    q, v = rng.normal(size=(5, 4)), rng.normal(size=(5, 3))
    from tilewright.splat.data import rotation

    np.testing.assert_allclose(rotated(q, v), np.stack([rotation(a) @ b for a, b in zip(q, v, strict=True)]), atol=1e-12)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tw.splat.save(tmp_path / "s.ply", target())
    picture_of = ["-o", str(tmp_path / "v.png"), "--camera"]
    assert main(["splat", "render", str(tmp_path / "s.ply"), *picture_of, "2,1,2", "--size", "33x21", "--depth"]) == 0
    picture = tw.splat.read_image(tmp_path / "v.png")
    assert picture.shape == (21, 33, 3)
    assert picture.max() > 0.3
    assert (tmp_path / "v-depth.png").is_file()
    assert main(["splat", "orbit", str(tmp_path / "s.ply"), "--frames", "2", "--size", "20x16", "-o", str(tmp_path / "frames")]) == 0
    assert sorted(p.name for p in (tmp_path / "frames").iterdir()) == ["frame-0000.png", "frame-0001.png"]
    assert main(["splat", "orbit", str(tmp_path / "s.ply"), "--frames", "2", "--size", "20x16", "-o", str(tmp_path / "o.gif")]) == 0
    data = views(5)
    for i, p in enumerate(data.pictures):
        tw.splat.write_png(tmp_path / f"{i}.png", p)
    tw.splat.save_transforms(tmp_path / "transforms.json", data.cameras, [f"{i}.png" for i in range(len(data.cameras))])
    train = ["splat", "train", str(tmp_path), "-o", str(tmp_path / "t.ply"), "--degree", "0", "--every", "4"]
    assert main([*train, "--steps", "4"]) == 0
    assert main([*train, "--steps", "6", "--resume"]) == 0
    assert "step 6: loss" in capsys.readouterr().out
    assert len(tw.splat.load(tmp_path / "t.ply")) > 0
    assert main(["splat", "render", str(tmp_path / "t.ply"), *picture_of, f"{tmp_path}/transforms.json:9"]) == 1
    assert "has cameras 0 to 3, got 9" in capsys.readouterr().err
    assert main(["splat", "render", str(tmp_path / "t.ply"), *picture_of, "1,2"]) == 1
    assert "--camera is 3 numbers with commas between them, got '1,2'" in capsys.readouterr().err
    for what, source, name, kinds in (("render", "s.ply", "v.jpg", ".png"), ("orbit", "s.ply", "o.mp4", ".gif or a folder"),
                                      ("train", "", "t.obj", ".ply or .splat or .spz")):
        assert main(["splat", what, str(tmp_path / source), "-o", str(tmp_path / name)]) == 1
        assert f"the output is {kinds}, got '{name}'" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"up is a direction, three finite numbers that are not all zero, got \(0, 0, 0\)"):
        tw.splat.orbit(radius=1, count=2, up=(0, 0, 0))


def test_a_browser_shows_the_scene(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    page = tw.splat.viewer_html(target(), background=(0, 0, 0))
    assert "http" not in page.replace("http-equiv", "")
    with pytest.raises(InputError, match="the scene has no Gaussians"):
        tw.splat.viewer_html(target().take(slice(0, 0)))
    if browser is None:
        pytest.skip("no browser")
    (tmp_path / "v.html").write_text(page)
    flags = ["--headless", "--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-sync", "--use-angle=swiftshader",
             "--enable-unsafe-swiftshader", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=200,150",
             "--virtual-time-budget=6000",
             f"--screenshot={tmp_path / 'shot.png'}"]
    subprocess.run([browser, *flags, (tmp_path / "v.html").as_uri()], capture_output=True, timeout=HANG, check=True)
    shot = tw.splat.read_image(tmp_path / "shot.png")[:120, :, :3]
    assert (shot.max(-1) > 0.3).mean() > 0.05
    assert (shot.max(-1) < 0.02).mean() > 0.1


@pytest.mark.slow
def test_the_example_reaches_its_quality(tmp_path: Path) -> None:
    import runpy

    main_of = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "splats.py"))["main"]
    assert main_of(["-o", str(tmp_path)]) >= 30
    assert {p.name for p in tmp_path.iterdir()} == {"comparison.png", "orbit.gif", "scene.ply"}
