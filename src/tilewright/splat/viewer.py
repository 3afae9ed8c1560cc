"""A scene in one HTML file that any browser shows: nothing is loaded from elsewhere, and the mouse turns, moves and zooms."""
from __future__ import annotations

import base64
import gzip
import html
import json
import math
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import InputError
from .files import write_splat
from .scene import Scene

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>{title}</title>
<style>html,body{{margin:0;height:100%;background:{background};overflow:hidden}}canvas{{width:100%;height:100%;display:block;touch-action:none}}
#note{{position:fixed;left:12px;bottom:10px;font:13px system-ui,sans-serif;color:{ink};opacity:.7;pointer-events:none}}</style></head>
<body><canvas id="canvas"></canvas><div id="note">loading …</div>
<script type="application/json" id="view">{view}</script>
<script type="text/plain" id="scene">{scene}</script>
<script>{script}</script></body></html>
"""


def viewer_html(scene: Scene, *, title: str = "Gaussian splats", background: Sequence[float] = (1, 1, 1), up: Sequence[float] = (0, 1, 0),
                fov: float = 50.0, spin: bool = False) -> str:
    """The page. Colours are those of the first harmonic: they do not change with the view."""
    if not len(scene):
        raise InputError("view: the scene has no Gaussians")
    middle, radius = scene.bounds()
    distance = 1.3 * radius / math.tan(math.radians(fov) / 2)
    view = {"target": [float(v) for v in middle], "distance": distance, "turn": 0.6, "tilt": 0.45, "fov": math.radians(fov), "up": list(up),
            "background": list(background), "spin": spin}
    packed = base64.b64encode(gzip.compress(write_splat(scene), mtime=0)).decode()
    shade = "#" + "".join(f"{round(max(0.0, min(1.0, c)) * 255):02x}" for c in background)
    script = Path(__file__).with_name("viewer.js").read_text(encoding="utf-8")
    return PAGE.format(title=html.escape(title), background=shade, ink="#000" if sum(background) > 1.5 else "#fff", view=json.dumps(view),
                       scene=packed, script=script)
