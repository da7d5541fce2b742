// Numbers, times and words as the page shows them.

export function age(from, now = Date.now()) {
	if (!from) return "–";
	return span((now - new Date(from)) / 1000);
}

// span shows seconds, in at most two units.
export function span(s) {
	if (s === undefined || s === null || isNaN(s)) return "–";
	s = Math.max(0, s);
	if (s < 120) return Math.round(s) + "s";
	if (s < 600) return Math.floor(s / 60) + "m" + pad(Math.floor(s % 60)) + "s";
	if (s < 2 * 3600) return Math.floor(s / 60) + "m";
	if (s < 10 * 3600) return Math.floor(s / 3600) + "h" + pad(Math.floor(s % 3600 / 60)) + "m";
	if (s < 48 * 3600) return Math.floor(s / 3600) + "h";
	return Math.floor(s / 86400) + "d";
}

const pad = n => String(n).padStart(2, "0");

// short shows a duration of up to some seconds.
export function short(s) {
	if (s === undefined || s === null || isNaN(s)) return "–";
	if (s < 0.001) return (s * 1e6).toFixed(0) + " µs";
	if (s < 0.01) return (s * 1e3).toFixed(1) + " ms";
	if (s < 1) return (s * 1e3).toFixed(0) + " ms";
	if (s < 100) return s.toFixed(s < 10 ? 2 : 1) + " s";
	return span(s);
}

export function bytes(n) {
	if (n === undefined || n === null || isNaN(n)) return "–";
	let unit = 0;
	while (n >= 1024 && unit < 5) { n /= 1024; unit++; }
	return (unit && n < 10 ? n.toFixed(1) : n.toFixed(0)) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit];
}

const grouped = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
export const whole = n => n === undefined || n === null ? "–" : grouped.format(n).replaceAll(",", "\u202f");

export function number(n) {
	if (n === undefined || n === null || isNaN(n)) return "–";
	if (n !== 0 && Math.abs(n) < 10) return n.toFixed(n < 1 ? 2 : 1);
	return whole(n);
}

export function clock(t) {
	if (!t) return "–";
	const d = new Date(t);
	return pad(d.getHours()) + ":" + pad(d.getMinutes()) + ":" + pad(d.getSeconds());
}

// moment shows a time of today as a clock, and an earlier one with its date.
export function moment(t) {
	if (!t) return "–";
	const d = new Date(t);
	if (Date.now() - d < 20 * 3600e3) return clock(t);
	const day = (Date.now() - d < 300 * 86400e3 ? "" : d.getFullYear() + "-") + pad(d.getMonth() + 1) + "-" + pad(d.getDate());
	return day + " " + clock(t).slice(0, 5);
}

// build is the version of Barque in that of a server.
export const build = v => (v || "").split("+barque.").at(-1);

export const plural = (n, one, many = one + "s") => whole(n) + " " + (n === 1 ? one : many);
