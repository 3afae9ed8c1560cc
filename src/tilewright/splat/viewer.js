// Draws a scene of Gaussians with WebGL 2: one quad a Gaussian, back to front, its ellipse from the projected covariance.
// Left mouse button: turn. Right button or shift: move. Wheel: nearer or farther. Keys: R start again, space turn by itself.
"use strict";
(async () => {
  const note = (text) => { document.getElementById("note").textContent = text; };
  try {
    const packed = Uint8Array.from(atob(document.getElementById("scene").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const bytes = await new Response(stream).arrayBuffer();
    const count = bytes.byteLength / 32, words = new Float32Array(bytes), octets = new Uint8Array(bytes);
    const start = JSON.parse(document.getElementById("view").textContent);
    const canvas = document.getElementById("canvas");
    const gl = canvas.getContext("webgl2", { antialias: false, premultipliedAlpha: true, preserveDrawingBuffer: true });
    if (!gl) { note("This browser has no WebGL 2."); return; }

    // Two texels a Gaussian and a half: mean, covariance (6), colour.
    const wide = 1024, high = Math.max(1, Math.ceil((count * 3) / wide));
    const table = new Float32Array(wide * high * 4);
    for (let i = 0; i < count; i++) {
      const s = [words[8 * i + 3], words[8 * i + 4], words[8 * i + 5]];
      let q = [0, 1, 2, 3].map((k) => (octets[32 * i + 28 + k] - 128) / 128);
      const n = Math.hypot(...q) || 1;
      const [w, x, y, z] = q.map((v) => v / n);
      const r = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), 2 * (x * y + w * z), 1 - 2 * (x * x + z * z),
        2 * (y * z - w * x), 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)];
      const c = (a, b) => r[3 * a] * r[3 * b] * s[0] ** 2 + r[3 * a + 1] * r[3 * b + 1] * s[1] ** 2 + r[3 * a + 2] * r[3 * b + 2] * s[2] ** 2;
      const rgba = [0, 1, 2, 3].map((k) => octets[32 * i + 24 + k]);
      table.set([words[8 * i], words[8 * i + 1], words[8 * i + 2], rgba[0] + 256 * rgba[1] + 65536 * rgba[2],
        c(0, 0), c(0, 1), c(0, 2), c(1, 1), c(1, 2), c(2, 2), rgba[3] / 255, 0], 12 * i);
    }

    const vertex = `#version 300 es
      precision highp float; precision highp int; precision highp sampler2D;
      uniform sampler2D table; uniform mat4 view; uniform vec2 focal, size;
      in vec2 corner; in uint number; out vec4 color; out vec2 place;
      vec4 texel(uint i) { return texelFetch(table, ivec2(i % ${wide}u, i / ${wide}u), 0); }
      void main() {
        vec4 a = texel(number * 3u), b = texel(number * 3u + 1u), c = texel(number * 3u + 2u);
        vec3 p = (view * vec4(a.xyz, 1.0)).xyz;
        gl_Position = vec4(0.0, 0.0, 2.0, 1.0);
        if (p.z < 0.02) return;
        mat3 covariance = mat3(b.x, b.y, b.z, b.y, b.w, c.x, b.z, c.x, c.y);
        vec2 edge = 1.3 * 0.5 * size / focal;
        vec2 t = clamp(p.xy / p.z, -edge, edge);
        mat3 jacobian = mat3(focal.x / p.z, 0.0, 0.0, 0.0, focal.y / p.z, 0.0, -focal.x * t.x / p.z, -focal.y * t.y / p.z, 0.0);
        mat3 m = jacobian * mat3(view);
        mat3 flat_ = m * covariance * transpose(m);
        float xx = flat_[0][0] + 0.3, xy = flat_[0][1], yy = flat_[1][1] + 0.3;
        float mean = 0.5 * (xx + yy), apart = length(vec2(0.5 * (xx - yy), xy));
        float first = mean + apart, second = max(mean - apart, 0.1);
        vec2 axis = apart < 1e-6 ? vec2(1.0, 0.0) : normalize(abs(xx - first) > abs(xy) ? vec2(xy, first - xx) : vec2(first - yy, xy));
        float reach = sqrt(max(0.0, 2.0 * log(255.0 * c.z)));
        if (!(reach > 0.0)) return;
        vec2 offset = corner.x * reach * min(sqrt(first), 1024.0) * axis + corner.y * reach * min(sqrt(second), 1024.0) * vec2(axis.y, -axis.x);
        vec2 pixel = focal * p.xy / p.z + offset;
        float rgb = a.w;
        color = vec4(mod(rgb, 256.0), mod(floor(rgb / 256.0), 256.0), floor(rgb / 65536.0), 255.0 * c.z) / 255.0;
        place = corner * reach;
        gl_Position = vec4(pixel * 2.0 / size * vec2(1.0, -1.0), 0.0, 1.0);
      }`;
    const fragment = `#version 300 es
      precision highp float; in vec4 color; in vec2 place; out vec4 result;
      void main() { float a = min(0.99, color.a * exp(-0.5 * dot(place, place))); if (a < 1.0 / 255.0) discard; result = vec4(color.rgb * a, a); }`;
    const program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(gl.getShaderInfoLog(shader));
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
    gl.useProgram(program);
    gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
    gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA32F, wide, high, 0, gl.RGBA, gl.FLOAT, table);
    for (const k of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, k, gl.NEAREST);
    const attribute = (name, data, size, integer) => {
      const at = gl.getAttribLocation(program, name), buffer = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.bufferData(gl.ARRAY_BUFFER, data, integer ? gl.DYNAMIC_DRAW : gl.STATIC_DRAW);
      gl.enableVertexAttribArray(at);
      if (integer) { gl.vertexAttribIPointer(at, size, gl.UNSIGNED_INT, 0, 0); gl.vertexAttribDivisor(at, 1); } else gl.vertexAttribPointer(at, size, gl.FLOAT, false, 0, 0);
      return buffer;
    };
    attribute("corner", new Float32Array([-1, -1, 1, -1, -1, 1, 1, 1]), 2, false);
    const order = new Uint32Array(count), numbers = attribute("number", order, 1, true);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    const where = (name) => gl.getUniformLocation(program, name);

    // An orbit: a target, a distance and two angles around the axis that is up.
    const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2], scaled = (a, k) => a.map((v) => v * k), plus = (a, b) => a.map((v, i) => v + b[i]);
    const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], unit = (a) => scaled(a, 1 / (Math.hypot(...a) || 1));
    const up = unit(start.up), east = unit(cross(up, Math.abs(up[2]) < 0.9 ? [0, 0, 1] : [1, 0, 0])), north = cross(up, east);
    let target, distance, turn, tilt, spinning = start.spin, dirty = true;
    const reset = () => { target = [...start.target]; distance = start.distance; turn = start.turn; tilt = start.tilt; dirty = true; };
    reset();
    const axes = () => {
      const out = plus(plus(scaled(east, Math.cos(turn) * Math.cos(tilt)), scaled(north, Math.sin(turn) * Math.cos(tilt))), scaled(up, Math.sin(tilt)));
      const z = scaled(out, -1), x = unit(cross(z, up));
      return { x, y: cross(z, x), z, eye: plus(target, scaled(out, distance)) };
    };
    const depths = new Float32Array(count), counts = new Uint32Array(65537);
    const sort = (z, eye) => {
      let low = Infinity, most = -Infinity;
      for (let i = 0; i < count; i++) {
        const d = (words[8 * i] - eye[0]) * z[0] + (words[8 * i + 1] - eye[1]) * z[1] + (words[8 * i + 2] - eye[2]) * z[2];
        depths[i] = d; if (d < low) low = d; if (d > most) most = d;
      }
      const scale = 65535 / Math.max(most - low, 1e-9);
      counts.fill(0);
      for (let i = 0; i < count; i++) counts[65536 - ((depths[i] - low) * scale | 0)]++;
      for (let i = 1; i < counts.length; i++) counts[i] += counts[i - 1];
      for (let i = count - 1; i >= 0; i--) order[--counts[65536 - ((depths[i] - low) * scale | 0)]] = i;
    };
    const draw = () => {
      const ratio = window.devicePixelRatio || 1, w = Math.max(1, Math.round(canvas.clientWidth * ratio)), h = Math.max(1, Math.round(canvas.clientHeight * ratio));
      if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
      const { x, y, z, eye } = axes(), f = 0.5 * Math.max(w, h) / Math.tan(start.fov / 2);
      sort(z, eye);
      gl.viewport(0, 0, w, h);
      gl.clearColor(...start.background, 1);
      gl.clear(gl.COLOR_BUFFER_BIT);
      gl.uniformMatrix4fv(where("view"), false, [x[0], y[0], z[0], 0, x[1], y[1], z[1], 0, x[2], y[2], z[2], 0, -dot(x, eye), -dot(y, eye), -dot(z, eye), 1]);
      gl.uniform2f(where("focal"), f, f);
      gl.uniform2f(where("size"), w, h);
      gl.bindBuffer(gl.ARRAY_BUFFER, numbers);
      gl.bufferSubData(gl.ARRAY_BUFFER, 0, order);
      gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, count);
    };
    let held = null;
    canvas.addEventListener("contextmenu", (e) => e.preventDefault());
    canvas.addEventListener("pointerdown", (e) => { held = e; canvas.setPointerCapture(e.pointerId); spinning = false; });
    canvas.addEventListener("pointerup", () => { held = null; });
    canvas.addEventListener("pointermove", (e) => {
      if (!held) return;
      const dx = e.clientX - held.clientX, dy = e.clientY - held.clientY;
      if (held.button === 2 || e.shiftKey) {
        const { x, y } = axes(), k = distance / canvas.clientHeight;
        target = plus(target, plus(scaled(x, -dx * k), scaled(y, -dy * k)));
      } else {
        turn -= dx * 0.006;
        tilt = Math.max(-1.55, Math.min(1.55, tilt + dy * 0.006));
      }
      held = { clientX: e.clientX, clientY: e.clientY, button: held.button };
      dirty = true;
    });
    canvas.addEventListener("wheel", (e) => { e.preventDefault(); distance *= Math.exp(e.deltaY * 0.001); spinning = false; dirty = true; }, { passive: false });
    window.addEventListener("keydown", (e) => { if (e.key === "r") reset(); if (e.key === " ") { spinning = !spinning; e.preventDefault(); } });
    window.addEventListener("resize", () => { dirty = true; });
    let before = 0;
    const frame = (now) => {
      if (spinning) { turn += Math.min(now - before, 100) * 0.0004; dirty = true; }
      before = now;
      if (dirty) { dirty = false; draw(); }
      requestAnimationFrame(frame);
    };
    note(`${count.toLocaleString()} Gaussians · drag to turn · wheel to zoom · right drag to move · space to spin · R to start again`);
    document.body.dataset.ready = "yes";
    requestAnimationFrame(frame);
  } catch (e) { note(`The scene could not be shown: ${e.message}`); document.body.dataset.ready = "failed"; }
})();
