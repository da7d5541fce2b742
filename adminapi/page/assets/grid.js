// A table of any length. Only the rows in view are elements, so ten thousand cost what fifty do.

import {redraw} from "./api.js";
import {h} from "./dom.js";

const narrow = matchMedia("(max-width: 720px)");
narrow.addEventListener("change", () => redraw());
const BEYOND = 8; // rows above and below those in view

const grids = new Map(); // what a table remembers while the page is open, by its ID

function memory(id) {
	if (!grids.has(id)) grids.set(id, {top: 0, height: 900, at: null, sort: null, down: false, made: "", rows: []});
	return grids.get(id);
}

const order = new Intl.Collator("en", {numeric: true}).compare;

function compare(a, b) {
	if (typeof a === "number" && typeof b === "number") return a - b;
	if (a === b) return 0;
	return order(String(a ?? ""), String(b ?? ""));
}

// arrange filters and sorts, and does nothing while nothing has changed.
function arrange(g, id, source, columns, filter) {
	const made = [source.version, filter, g.sort, g.down, columns.length].join("\0");
	if (g.made === made && g.source === source) return g.rows;
	g.made = made;
	g.source = source;
	const words = filter.toLowerCase().split(/\s+/).filter(w => w);
	let rows = [...source.rows.values()];
	if (words.length) rows = rows.filter(r => {
		const text = r.text ??= [r.ns, r.name, ...columns.map(c => c.plain ? "" : c.value(r))].join(" ").toLowerCase();
		return words.every(w => w[0] === "!" && w.length > 1 ? !text.includes(w.slice(1)) : text.includes(w));
	});
	const by = columns.find(c => c.name === g.sort);
	const value = by ? by.sort || by.value : r => r.key;
	const keys = new Map(rows.map(r => [r, value(r)]));
	rows.sort((a, b) => compare(keys.get(a), keys.get(b)) || (a.key < b.key ? -1 : 1));
	if (by && g.down) rows.reverse();
	return g.rows = rows;
}

// grid shows a source's rows. A column has a name, a value(row), and may have: show(row) for a
// description, sort(row), width, num for numbers, narrow: false to be left out on a phone. open is
// called for the row that is chosen.
export function grid({id, source, columns, filter = "", open, sort, down, label, short = false}) {
	const g = memory(id);
	if (g.sort === null) { g.sort = sort || ""; g.down = !!down; }
	if (narrow.matches) columns = columns.filter(c => c.narrow !== false);
	const rows = arrange(g, id, source, columns, filter);
	const high = narrow.matches ? 34 : 28;
	const first = Math.max(0, Math.floor(g.top / high) - BEYOND);
	const last = Math.min(rows.length, Math.ceil((g.top + g.height) / high) + BEYOND);
	const widths = {"grid-template-columns": columns.map(c => c.width || "minmax(9ch, 1fr)").join(" ").replace(/minmax\((\d+)ch/g, (_, n) => "minmax(" + Math.ceil(n * (narrow.matches ? 0.6 : short ? 0.75 : 1)) + "ch")};
	// A line is as wide as all others, whatever it has: narrower than that the table scrolls.
	const least = widths["grid-template-columns"].match(/[\d.]+(?=ch)/g).reduce((sum, n) => sum + Number(n), 0);
	const room = {"min-width": `calc(${least}ch + ${columns.length * (narrow.matches ? 8 : 16) + 8}px)`};
	const at = rows.findIndex(r => r.key === g.at);
	const measure = el => {
		if (el.clientHeight && Math.abs(el.clientHeight - g.height) > 1) { g.height = el.clientHeight; redraw(); }
	};
	const go = (el, n) => {
		n = Math.max(0, Math.min(rows.length - 1, n));
		if (n < 0 || !rows.length) return;
		g.at = rows[n].key;
		const y = n * high, head = high;
		if (y < el.scrollTop) el.scrollTop = y;
		else if (y + high > el.scrollTop + el.clientHeight - head) el.scrollTop = y + high - el.clientHeight + head;
		redraw();
	};
	const page = Math.max(1, Math.floor(g.height / high) - 2);
	return h("div", {
		class: "grid " + (short ? "short" : "fills"), role: "grid", tabindex: 0, "aria-label": label, key: "grid " + id,
		"aria-rowcount": rows.length + 1, "aria-activedescendant": at >= first && at < last ? "r" + at : null,
		onscroll: e => { g.top = e.currentTarget.scrollTop; redraw(); },
		onkeydown: e => {
			if (e.target !== e.currentTarget) return;
			const moves = {ArrowDown: at + 1, j: at + 1, ArrowUp: at - 1, k: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: rows.length - 1};
			if (e.ctrlKey || e.metaKey || e.altKey) return;
			if (e.key in moves) { e.preventDefault(); go(e.currentTarget, moves[e.key]); }
			else if (e.key === "Enter" && at >= 0 && open) { e.preventDefault(); open(rows[at]); }
		},
		hook: {mount: el => { el.scrollTop = g.top; measure(el); (el.watcher = new ResizeObserver(() => measure(el))).observe(el); }, update: measure, unmount: el => el.watcher.disconnect()},
	},
		h("div", {class: "line title", role: "row", style: {...widths, ...room}}, columns.map(c => h("button", {
			role: "columnheader", class: c.num ? "num" : null, "aria-sort": g.sort === c.name ? (g.down ? "descending" : "ascending") : null,
			onclick: () => {
				if (g.sort === c.name) g.down = !g.down;
				else { g.sort = c.name; g.down = false; }
				redraw();
			},
		}, c.name, g.sort === c.name ? (g.down ? " ↓" : " ↑") : ""))),
		h("div", {class: "rows", style: {height: rows.length * high + "px", ...room}}, rows.slice(first, last).map((r, i) => h("div", {
			key: r.key, id: "r" + (first + i), role: "row", "aria-rowindex": first + i + 2, "aria-selected": r.key === g.at ? "true" : null,
			class: "line" + (r.key === g.at ? " at" : "") + (open ? " opens" : ""), style: {...widths, top: (first + i) * high + "px"},
			onclick: open ? () => { if (!String(getSelection())) { g.at = r.key; open(r); } } : null,
		}, columns.map(c => {
			const value = c.value(r);
			return h("span", {class: (c.num ? "num" : "") + (c.mono ? " mono" : "") || null, role: "gridcell", title: typeof value === "string" && value.length > 14 ? value : null}, c.show ? c.show(r) : value);
		})))),
	);
}

// shownOf is the number of rows that a table has shown last.
export const shownOf = id => memory(id).rows.length;
