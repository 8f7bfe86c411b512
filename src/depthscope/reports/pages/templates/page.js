"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const plain = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = [];

  function made(tag, words, name) {
    const one = document.createElement(tag);
    if (words) one.textContent = words;
    if (name) one.className = name;
    if (tag === "button") one.type = "button";
    return one;
  }

  // Colours come from the style sheet, so that light and dark are decided in one place.
  function colour(name) { return getComputedStyle(root).getPropertyValue("--" + name).trim(); }
  function faint(hex) { return hex + "30"; }

  function painted(trace) {
    const part = trace.meta.part, own = colour("c" + (trace.meta.colour || 0));
    const one = Object.assign({}, trace);
    if (part === "heat") {
      one.colorscale = [[0, "#440154"], [.25, "#3b528b"], [.5, "#21918c"], [.75, "#5ec962"], [1, "#fde725"]];
    } else if (part === "diverging") {
      one.colorscale = [[0, "#1666b0"], [.5, colour("soft")], [1, "#c2410c"]];
    } else if (part === "bar") {
      one.marker = { color: own };
    } else {
      one.line = Object.assign({}, trace.line, { color: own });
      one.marker = Object.assign({}, trace.marker, { color: own });
      if (part === "band upper") one.fillcolor = faint(own);
    }
    if (one.colorbar) one.colorbar = Object.assign({}, one.colorbar, { tickfont: { color: colour("ink") } });
    return one;
  }

  function axis(own, log) {
    const one = Object.assign({ gridcolor: colour("grid"), zerolinecolor: colour("rule"), linecolor: colour("rule"),
      automargin: true, exponentformat: "power", fixedrange: true }, own);
    delete one.linear;
    if (log !== undefined) {
      one.type = log ? "log" : "linear";
      if (!log && own.linear) one.range = own.linear; else one.autorange = true;
    }
    return one;
  }

  function layout(plot) {
    const own = plot.figure.layout, heat = plot.figure.kind === "heat";
    const shown = plot.figure.marks.filter((mark) => mark.at > 0 || !plot.log);  // a log scale has no other place
    return Object.assign({}, own, {
      height: heat ? Math.min(620, Math.max(210, 120 + 16 * plot.figure.rows)) : plot.width ? 255 : 330,
      shapes: shown.map((mark) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: mark.at, y1: mark.at,
        line: { color: colour("dim"), width: 1, dash: "3px,3px" } })),
      annotations: shown.map((mark) => ({ text: mark.name, xref: "paper", x: 0, xanchor: "left", yanchor: "bottom",
        y: plot.log ? Math.log10(mark.at) : mark.at, showarrow: false, font: { size: 11, color: colour("dim") } })),
      width: plot.width, autosize: plot.width === undefined,
      margin: { l: 8, r: 8, t: 10, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, dragmode: false,
      hovermode: plot.figure.kind === "curves" ? "x unified" : "closest",
      font: { family: "system-ui, sans-serif", size: 12, color: colour("ink") },
      hoverlabel: { bgcolor: colour("soft"), bordercolor: colour("rule"), font: { color: colour("ink") }, namelength: -1 },
      xaxis: Object.assign(axis(own.xaxis), { unifiedhovertitle: { text: own.xaxis.title.text + " %{x}" } }), yaxis: axis(own.yaxis, heat ? undefined : plot.log),
    });
  }

  function data(plot) {
    return plot.figure.data.map((trace, i) => Object.assign(painted(trace), { visible: plot.seen[i] }));
  }

  function draw(plot) { return Plotly.react(plot.at, data(plot), layout(plot), plain); }

  function tools(plot, bar) {
    for (const one of plot.figure.legend) {
      const name = plot.figure.layout.barmode ? "bar" : one.line;
      const button = made("button", one.name, "curve " + name);
      button.style.setProperty("--of", "var(--c" + one.colour + ")");
      button.setAttribute("aria-pressed", String(!one.hidden));
      button.title = "Show or hide this curve";
      button.addEventListener("click", () => {
        const seen = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(seen));
        for (const i of one.of) plot.seen[i] = seen;
        draw(plot);
      });
      bar.append(button);
    }
    if (!plot.figure.switch) return;
    const scale = made("span", "", "scale");
    scale.setAttribute("role", "group");
    scale.setAttribute("aria-label", "Scale of the vertical axis");
    for (const word of ["linear", "log"]) {
      const button = made("button", word);
      button.setAttribute("aria-pressed", String((word === "log") === plot.log));
      button.addEventListener("click", () => {
        plot.log = word === "log";
        for (const other of scale.children) other.setAttribute("aria-pressed", String(other === button));
        draw(plot);
      });
      scale.append(button);
    }
    bar.append(scale);
  }

  function charts() {
    const places = [...document.querySelectorAll("figure.chart")];
    let drawn = 0;
    function next() {
      if (drawn === places.length) { root.dataset.ready = String(drawn); return; }
      const place = places[drawn], figure = figures[Number(place.dataset.figure)];
      const plot = { figure, at: place.querySelector(".plot"), log: figure.layout.yaxis.type === "log",
        seen: figure.data.map((one) => one.visible !== false) };
      plots.push(plot);
      tools(plot, place.querySelector(".tools"));
      draw(plot).then(() => { drawn += 1; root.dataset.drawn = String(drawn); setTimeout(next); });
    }
    next();
  }

  function sorting() {
    for (const button of document.querySelectorAll("button.sort")) {
      button.addEventListener("click", () => {
        const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
        const at = [...head.parentNode.children].indexOf(head);
        const up = head.getAttribute("aria-sort") !== "ascending";
        for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [row, row.cells[at]]);
        rows.sort(([, a], [, b]) => {
          const x = Number(a.dataset.v), y = Number(b.dataset.v);
          const numbers = [x, y].filter((one) => !Number.isNaN(one)).length;
          if (numbers === 1) return Number.isNaN(x) ? 1 : -1;  // what is no number comes last, either way
          const order = numbers ? x - y : a.textContent.localeCompare(b.textContent);
          return up ? order : -order;
        });
        body.append(...rows.map(([row]) => row));
      });
    }
  }

  async function copied(words) {
    try { await navigator.clipboard.writeText(words); return true; } catch (refused) {
      const field = made("textarea", "", "skip");
      field.value = words;
      document.body.append(field);
      field.select();
      const done = document.execCommand("copy");
      field.remove();
      return done;
    }
  }

  function copying() {
    for (const button of document.querySelectorAll("button.copy")) {
      button.setAttribute("aria-live", "polite");
      button.addEventListener("click", async () => {
        const done = await copied(button.closest(".line").querySelector("code").textContent);
        button.textContent = done ? "Copied" : "Press Ctrl+C";
        setTimeout(() => { button.textContent = "Copy"; }, 1600);
      });
    }
  }

  function printing() {
    const wide = 690;  // pixels of a page of A4 or Letter between its margins
    function onto(paper) {
      root.classList.toggle("paper", paper);  // paper is white, whatever the screen is
      for (const plot of plots) { plot.width = paper ? wide : undefined; draw(plot); }
    }
    window.addEventListener("beforeprint", () => onto(true));
    window.addEventListener("afterprint", () => onto(false));
  }

  sorting();
  copying();
  printing();
  dark.addEventListener("change", () => plots.forEach(draw));
  requestAnimationFrame(() => setTimeout(charts));  // the words are on the screen before the first chart is drawn
})();
