// Draws a chart from the table that it has, in the colours that the page has at the moment.

const shown = new WeakMap();
const STEPS = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

export const draw = (figure) => {
  const plot = figure.querySelector("[data-plot]");
  const width = plot?.clientWidth ?? 0;
  if (!width) return;
  shown.get(figure)?.destroy();
  plot.replaceChildren();
  const told = read(figure);
  const isStacked = "stacked" in figure.dataset;
  const drawn = isStacked ? [closed(told.times), ...stacked(told.values)] : [told.times, ...told.values];
  const chart = new uPlot(options(figure, told, isStacked, width, plot.clientHeight), drawn, plot);
  shown.set(figure, chart);
};

const read = (figure) => {
  const heads = [...figure.querySelectorAll("thead th")].slice(1);
  const rows = [...figure.querySelectorAll("tbody tr")];
  return {
    names: heads.map((head) => head.textContent),
    looks: heads.map((head) => head.dataset.look),
    times: rows.map((row) => Number(row.querySelector("[data-at]").dataset.at)),
    values: heads.map((_, column) =>
      rows.map((row) => {
        const value = row.querySelectorAll("[data-value]")[column].dataset.value;
        return value === "" ? null : Number(value);
      })),
  };
};

const stacked = (values) => {
  const sums = values.length ? values[0].map(() => 0) : [];
  return values.map((line) => ended(line.map((value, step) => (sums[step] += value ?? 0))));
};

// A step is as wide as it lasts: the last one, too, has an end.
const closed = (times) => [...times, times.at(-1) + (times[1] - times[0])];
const ended = (line) => [...line, line.at(-1)];

const colour = (figure, look) => {
  const dot = document.createElement("i");
  dot.className = `dot ${look}`;
  figure.append(dot);
  const found = getComputedStyle(dot).backgroundColor;
  dot.remove();
  return found;
};

export const token = (name) => {
  const probe = document.createElement("i");
  probe.className = "unseen";
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};

export const told = (value, unit) => {
  if (value === null || value === undefined) return "–";
  if (unit !== "seconds") return value.toLocaleString("en", { maximumFractionDigits: 2 });
  if (value === 0) return "0";
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 9.95 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 3600) return `${Math.round(value / 60)} min`;
  return `${(value / 3600).toFixed(1)} h`;
};

const options = (figure, given, isStacked, width, height) => {
  const { unit } = figure.dataset;
  const ink = token("--ink-soft");
  const line = token("--line");
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: ink, font, grid: { stroke: line, width: 1 }, ticks: { show: false } };
  const series = given.looks.map((look, number) => {
    const stroke = colour(figure, look);
    return {
      label: given.names[number],
      stroke: isStacked ? undefined : stroke,
      width: isStacked ? 0 : 1.6,
      fill: isStacked ? stroke : undefined,
      paths: isStacked ? uPlot.paths.stepped({ align: 1 }) : undefined,
      spanGaps: true,
      points: { show: !isStacked && given.values[number].filter((value) => value !== null).length === 1 },
    };
  });
  const bands = isStacked ? series.slice(1).map((_, number) => ({ series: [number + 2, number + 1] })) : [];
  return {
    width,
    height,
    series: [{}, ...series],
    bands,
    padding: [10, 28, 0, 0],
    legend: { show: false },
    cursor: { points: { show: !isStacked }, drag: { x: false, y: false }, sync: { key: "page", setSeries: false } },
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
    scales: { y: { range: (_, low, high) => [0, Math.max(high ?? 0, unit === "seconds" ? 0.05 : 4) * 1.08] } },
    axes: [
      { ...axis, grid: { show: false }, size: 26, space: 70, values: (_, splits, __, ___, step) => splits.map((at) => clock(at, step)) },
      { ...axis, size: 50, space: 34, incrs: unit === "seconds" ? STEPS : undefined, values: (_, splits) => splits.map((value) => told(value, unit)) },
    ],
    hooks: { setCursor: [(chart) => tip(chart, given, unit)] },
  };
};

// A time in UTC, as exact as steps of so many seconds want it.
const clock = (at, step) => {
  const moment = new Date(at * 1000);
  const isMidnight = at % 86_400 === 0 && step >= 3600;
  if (step < 86_400 && !isMidnight) return moment.toISOString().slice(11, step < 60 ? 19 : 16);
  return moment.toLocaleDateString("en-GB", { day: "2-digit", month: "short", timeZone: "UTC" });
};

// The cursor is on every chart of the page at once, at the same time of day, and so are the values.
const tip = (chart, given, unit) => {
  chart.over.querySelector(".tip")?.remove();
  const { left } = chart.cursor;
  if ((chart.cursor.idx ?? null) === null || left < 0) return;
  const idx = Math.min(chart.cursor.idx, given.times.length - 1);
  const box = document.createElement("div");
  box.className = "tip";
  const when = document.createElement("p");
  const step = given.times[1] - given.times[0];
  when.textContent = `${step < 3600 ? "" : `${clock(given.times[idx], 86_400)} `}${clock(given.times[idx], Math.min(step, 60))} UTC`;
  box.append(when);
  given.names.forEach((name, number) => {
    const row = document.createElement("p");
    const label = document.createElement("span");
    const dot = document.createElement("i");
    const value = document.createElement("b");
    dot.className = `dot ${given.looks[number]}`;
    value.textContent = told(given.values[number][idx], unit);
    label.append(dot, name);
    row.append(label, value);
    box.append(row);
  });
  chart.over.append(box);
  box.style.top = "4px";
  box.style.left = `${left > chart.over.clientWidth / 2 ? left - box.offsetWidth - 12 : left + 12}px`;
};
