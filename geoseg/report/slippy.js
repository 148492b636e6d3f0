"use strict";
// A map to drag and zoom. Everything it shows is in the page: a JSON block of scenes, each with layers of tiles.
(() => {
  const box = document.getElementById("slippy");
  const data = JSON.parse(document.getElementById("slippy-data").textContent);
  const view = box.querySelector(".view");
  const readout = box.querySelector(".readout");
  const controls = box.querySelector(".layers");
  const choice = box.querySelector("select");
  const shown = {};  // by the name of a layer: whether it is switched on, and its opacity
  let scene, layers, scale, centre, tiles;

  const make = (kind, parent, properties = {}) => {
    const element = Object.assign(document.createElement(kind), properties);
    parent.append(element);
    return element;
  };

  function open(index) {
    scene = data.scenes[index];
    view.replaceChildren();
    controls.replaceChildren();
    tiles = new Map();
    layers = scene.layers.map(layer => {
      const state = shown[layer.name] ??= { on: layer.shown, opacity: layer.opacity };
      const pane = make("div", view, { className: "pane" });
      const row = make("label", controls);
      const tick = make("input", row, { type: "checkbox", checked: state.on });
      row.append(" " + layer.name + " ");
      const slider = make("input", row, { type: "range", min: 0, max: 100, value: state.opacity * 100 });
      slider.setAttribute("aria-label", "opacity of " + layer.name);
      const apply = () => {
        Object.assign(state, { on: tick.checked, opacity: slider.value / 100 });
        pane.style.display = state.on ? "" : "none";
        pane.style.opacity = state.opacity;
      };
      tick.oninput = slider.oninput = () => { apply(); draw(); };
      apply();
      return { ...layer, pane, state };
    });
    fit();
  }

  function fit() {
    scale = Math.min(view.clientWidth / scene.width, view.clientHeight / scene.height);
    centre = [scene.width / 2, scene.height / 2];
    draw();
  }

  // The coarsest level that has a pixel of its own for every pixel of the screen, or the finest there is.
  const levelNow = () => scene.levels.findLastIndex(level => level.factor * scale <= 1);

  function draw() {
    const chosen = Math.max(0, levelNow());
    const left = view.clientWidth / 2 - centre[0] * scale, top = view.clientHeight / 2 - centre[1] * scale;
    const wanted = new Set();
    for (const layer of layers) {
      if (!layer.state.on) continue;
      layer.pane.style.imageRendering = layer.exact || scale > 1 ? "pixelated" : "auto";
      // The coarsest tiles stay underneath, so that nothing is blank while finer ones are decoded.
      for (const number of new Set([scene.levels.length - 1, chosen])) {
        const { factor, columns, rows, side } = scene.levels[number], length = side * factor * scale;
        const column = Math.max(0, Math.floor(-left / length)), row = Math.max(0, Math.floor(-top / length));
        for (let y = row; y < rows && top + y * length < view.clientHeight; y++) {
          for (let x = column; x < columns && left + x * length < view.clientWidth; x++) {
            const content = layer.tiles[number][y * columns + x];
            if (!content) continue;
            const key = [layer.name, number, x, y].join("/");
            wanted.add(key);
            if (!tiles.has(key)) {
              const picture = make("img", layer.pane, { alt: "", draggable: false, src: layer.prefix + content });
              picture.style.zIndex = number === chosen ? 2 : 1;
              tiles.set(key, picture);
            }
            place(tiles.get(key), number, x, y, left, top);
            tiles.get(key).style.zIndex = number === chosen ? 2 : 1;
          }
        }
      }
    }
    for (const [key, picture] of tiles) {
      if (!wanted.has(key)) { picture.remove(); tiles.delete(key); }
    }
    const zoom = scale >= 1 ? `${+scale.toFixed(1)} : 1` : `1 : ${+(1 / scale).toFixed(1)}`;
    readout.textContent = `${zoom}, column ${Math.round(centre[0])}, row ${Math.round(centre[1])}`;
    box.dataset.scale = scale;
    box.dataset.level = chosen;
    box.dataset.centre = centre;
  }

  function place(picture, number, x, y, left, top) {
    const { factor, side } = scene.levels[number], length = side * factor * scale;
    const width = Math.min(side * factor, scene.width - x * side * factor) * scale;
    const height = Math.min(side * factor, scene.height - y * side * factor) * scale;
    // Edges are rounded, not sizes: tiles meet without a gap.
    const x0 = Math.round(left + x * length), y0 = Math.round(top + y * length);
    Object.assign(picture.style, {
      left: x0 + "px", top: y0 + "px",
      width: Math.max(1, Math.round(left + x * length + width) - x0) + "px",
      height: Math.max(1, Math.round(top + y * length + height) - y0) + "px",
    });
  }

  // Zoom so that the place under a point of the view (from its upper left corner) stays where it is.
  function zoom(factor, x = view.clientWidth / 2, y = view.clientHeight / 2) {
    const smallest = 0.5 * Math.min(view.clientWidth / scene.width, view.clientHeight / scene.height, 1);
    const next = Math.min(40, Math.max(smallest, scale * factor));
    const dx = x - view.clientWidth / 2, dy = y - view.clientHeight / 2;
    centre = [centre[0] + dx / scale - dx / next, centre[1] + dy / scale - dy / next];
    scale = next;
    draw();
  }

  function move(dx, dy) {
    const clamp = (value, limit) => Math.min(limit, Math.max(0, value));
    centre = [clamp(centre[0] - dx / scale, scene.width), clamp(centre[1] - dy / scale, scene.height)];
    draw();
  }

  const pointers = new Map();
  view.addEventListener("pointerdown", event => {
    view.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
  });
  view.addEventListener("pointermove", event => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    const now = [event.clientX, event.clientY];
    if (other) {
      const distance = point => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
      const corner = view.getBoundingClientRect();
      zoom(distance(now) / distance(before), (now[0] + other[0]) / 2 - corner.left, (now[1] + other[1]) / 2 - corner.top);
    } else {
      move(now[0] - before[0], now[1] - before[1]);
    }
    pointers.set(event.pointerId, now);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    view.addEventListener(kind, event => pointers.delete(event.pointerId));
  }
  view.addEventListener("wheel", event => {
    event.preventDefault();
    const corner = view.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), event.clientX - corner.left, event.clientY - corner.top);
  }, { passive: false });
  view.addEventListener("dblclick", event => {
    const corner = view.getBoundingClientRect();
    zoom(event.shiftKey ? 0.5 : 2, event.clientX - corner.left, event.clientY - corner.top);
  });
  const keys = {
    "+": () => zoom(2), "=": () => zoom(2), "-": () => zoom(0.5), "0": fit,
    ArrowLeft: () => move(80, 0), ArrowRight: () => move(-80, 0), ArrowUp: () => move(0, 80), ArrowDown: () => move(0, -80),
  };
  view.addEventListener("keydown", event => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  box.querySelector(".in").onclick = () => zoom(2);
  box.querySelector(".out").onclick = () => zoom(0.5);
  box.querySelector(".fit").onclick = fit;
  new ResizeObserver(() => draw()).observe(view);

  data.scenes.forEach((entry, index) => make("option", choice, { value: index, textContent: entry.name }));
  choice.parentElement.hidden = data.scenes.length < 2;
  choice.oninput = () => open(+choice.value);
  open(0);
})();
