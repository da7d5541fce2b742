// Small plots of the last hour: a line for each server.

import {redraw} from "./api.js";
import {h} from "./dom.js";
import {bytes, clock} from "./format.js";

const WIDE = 320, HIGH = 96, LEFT = 2, RIGHT = 2, TOP = 12, BOTTOM = 14;
let hair = null; // where all plots show their values, as a part of the width; null: the newest

// ceiling is the round number at the top of a plot. Bytes are round in powers of 1024.
function ceiling(max, binary) {
	if (!(max > 0)) return 1;
	const unit = binary ? 1024 ** Math.floor(Math.log2(max) / 10) : 1, ten = 10 ** Math.floor(Math.log10(max / unit));
	for (const n of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) if (n * ten * unit >= max) return n * ten * unit;
	return max;
}

// nearest is the newest value at or before a time; a gap has none.
function nearest(line, t, gap) {
	let low = 0, high = line.at.length - 1, found = -1;
	while (low <= high) {
		const mid = (low + high) >> 1;
		if (line.at[mid] <= t) { found = mid; low = mid + 1; } else high = mid - 1;
	}
	return found >= 0 && t - line.at[found] <= gap ? line.values[found] : null;
}

// together joins values, and names a unit that all have once.
function together(values) {
	if (!values.length) return "–";
	const units = new Set(values.map(v => v.split(" ")[1] || ""));
	return units.size === 1 && values.length > 1 && !units.has("") ? values.map(v => v.split(" ")[0]).join(" · ") + " " + [...units][0] : values.join(" · ");
}

// plot draws lines: {name, color, at, values}. format shows a value. whole makes the top of the plot
// a whole number.
export function plot({name, unit, lines, format, end, span = 3600}) {
	const begin = end - span;
	let max = 0;
	for (const l of lines) for (let i = 0; i < l.at.length; i++) if (l.at[i] >= begin && l.values[i] > max) max = l.values[i];
	const top = ceiling(max, format === bytes);
	const x = t => LEFT + (t - begin) / span * (WIDE - LEFT - RIGHT), y = v => HIGH - BOTTOM - v / top * (HIGH - TOP - BOTTOM);
	const at = hair === null ? end : begin + hair * span;
	const values = lines.map(l => nearest(l, at, 31)).filter(v => v !== null);
	const ticks = [];
	for (let t = Math.ceil(begin / 900) * 900; t < end; t += 900) ticks.push(t);
	const set = part => { hair = part === null ? null : Math.max(0, Math.min(1, part)); redraw(); };
	return h("div", {class: "plot", key: name},
		h("div", {class: "name"}, h("h3", null, name), unit ? h("span", {class: "unit"}, unit) : null,
			h("span", {class: "value"}, together(values.map(format)))),
		h("svg", {
			viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", tabindex: 0,
			"aria-label": name + ": " + lines.map((l, i) => l.name + " " + (values[i] === undefined ? "unknown" : format(values[i]))).join(", "),
			onpointermove: e => { const box = e.currentTarget.getBoundingClientRect(); set((e.clientX - box.left) / box.width); },
			onpointerleave: () => set(null), onblur: () => set(null),
			onkeydown: e => {
				const step = {ArrowLeft: -1 / 60, ArrowRight: 1 / 60}[e.key];
				if (step) { e.preventDefault(); set((hair ?? 1) + step); }
			},
		},
			h("line", {class: "rule", x1: 0, x2: WIDE, y1: y(0), y2: y(0)}), h("line", {class: "rule", x1: 0, x2: WIDE, y1: y(top), y2: y(top)}),
			h("text", {x: 0, y: y(top) - 3}, values.length || max ? format(top) : ""),
			ticks.map(t => [h("line", {key: "l" + t, class: "rule", x1: x(t), x2: x(t), y1: y(0), y2: y(0) + 3}), x(t) > 14 && x(t) < WIDE - 14 ? h("text", {key: "t" + t, x: x(t), y: HIGH - 2, "text-anchor": "middle"}, clock(t * 1000).slice(0, 5)) : null]),
			lines.map(l => h("path", {key: l.name, class: "c" + l.color, d: path(l, begin, x, y), style: {background: "none"}})),
			hair === null ? null : [h("line", {class: "hair", x1: x(at), x2: x(at), y1: TOP - 4, y2: y(0)}), h("text", {x: x(at) + (hair > 0.8 ? -4 : 4), y: TOP, "text-anchor": hair > 0.8 ? "end" : "start"}, clock(at * 1000))],
		));
}

function path(line, begin, x, y) {
	let d = "", pen = false, before = 0;
	for (let i = 0; i < line.at.length; i++) {
		const t = line.at[i], v = line.values[i];
		if (t < begin) continue;
		if (v === null || v === undefined) { pen = false; continue; }
		const draws = pen && t - before <= 45;
		d += (draws ? "L" : "M") + x(t).toFixed(1) + " " + y(v).toFixed(1);
		if (!draws) d += "h0.01"; // a single value is a dot
		pen = true;
		before = t;
	}
	return d;
}

export const legend = lines => h("div", {class: "legend"}, lines.map(l => h("span", {key: l.name}, h("i", {class: "c" + l.color}), l.name)));
