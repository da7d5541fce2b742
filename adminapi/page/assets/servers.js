// The views of the servers: health, Raft, gossip, and the metrics of the last hour.

import {get, poll, redraw, wait} from "./api.js";
import {note} from "./copy.js";
import {panel} from "./details.js";
import {h} from "./dom.js";
import {age, build, bytes, clock, moment, number, plural, short, span, whole} from "./format.js";
import {grid} from "./grid.js";
import {eventColumns, eventsOf, lacking, podColumns, podPath} from "./objects.js";
import {legend, plot} from "./plot.js";
import {tables} from "./tables.js";

const STATUS = "/barque/v1/status?form=brief";

// watched is the status that all views share, and the frame, too. It is asked for oftener while
// something is wrong.
export const watched = {data: null, error: null, at: 0};
export function watchStatus(signal) {
	const source = poll(2500, signal, s => get(STATUS, {signal: s}));
	for (const name of ["data", "error", "at"]) Object.defineProperty(watched, name, {configurable: true, get: () => source[name]});
}

const HEALTH = {healthy: ["Healthy", "good"], degraded: ["Degraded", "warn"], noQuorum: ["No quorum", "bad"], noAnswer: ["No answer", "bad"]};
export const health = s => HEALTH[s?.health] || ["Unknown", ""];

const fact = (name, value, more, tone) => h("div", {key: name}, h("div", {class: "name"}, name), h("div", {class: "value " + (tone || ""), title: typeof value === "string" ? value : null}, value), h("div", {class: "more"}, more));

const servers = s => (s?.members || []).filter(m => m.role === "server");
const late = () => watched.at && Date.now() - watched.at > 10000 ? h("div", {class: "notice warn", role: "status"}, h("span", {class: "tag"}, "Old"), h("span", {class: "text"}, "This is of " + clock(watched.at) + ", " + age(watched.at) + " ago. " + (watched.error?.message || ""))) : null;

const refused = () => watched.data ? late() : lacking(watched.error, "the status of the cluster", "The role barque:status-reader gives it.");

function warning(w) {
	const bad = w.severity === "critical";
	return h("div", {class: "notice " + (bad ? "bad" : "warn"), key: w.text, role: "listitem"},
		h("span", {class: "tag"}, bad ? "Critical" : "Warning"), w.node ? h("span", {class: "chip"}, w.node) : null,
		h("span", {class: "text"}, w.text),
		w.mend ? h("div", {class: "mend"}, h("span", {class: "dim"}, w.on ? "Remedy, on " + w.on + ":" : "Remedy:"), h("code", null, w.mend), note(w.mend)) : null);
}

function quorum(q) {
	if (!q) return ["–", "", ""];
	return [q.answering + " of " + q.voters, q.answering < q.needed ? "too few: " + q.needed + " are needed" : q.mayFail ? plural(q.mayFail, "more may fail", "more may fail") : "none more may fail", q.answering < q.needed ? "bad" : q.mayFail ? "" : "warn"];
}

function failovers(s, most) {
	const changes = (s.leaderChanges || []).filter(c => c.leader && c.before).slice(0, most);
	if (!s.leader) return h("div", {class: "none"}, "The leader knows them, and no server leads now.");
	if (!changes.length) return h("div", {class: "none"}, "No change of the leader since " + (s.leader || "this server") + " was started.");
	return h("div", {class: "scroll"}, h("table", null,
		h("thead", null, h("tr", null, h("th", null, "When"), h("th", null, "Leader"), h("th", {class: "num"}, "Term"), h("th", {class: "num", title: "From the last sign of the former leader to the first of the next one: no write was accepted for at most that long"}, "Write gap"), h("th", null, "Why"))),
		h("tbody", null, changes.map(c => h("tr", {key: c.term + c.at}, h("td", {class: "nowrap", title: c.at}, moment(c.at)), h("td", null, c.before === c.leader ? c.leader + " again" : c.before + " → " + c.leader), h("td", {class: "num"}, c.term), h("td", {class: "num" + (c.gapSeconds > 5 ? " warn" : "")}, c.gapSeconds ? short(c.gapSeconds) : "–"), h("td", {class: "wrap"}, c.reason || ""))))));
}

// Metrics of all servers, each as one line in the plots.
const HOUR = 3600;
export function histories(signal, names) {
	const all = new Map();
	const source = poll(10000, signal, async s => {
		while (!watched.data && !watched.error) await wait(50, s); // which servers there are
		const of = names();
		await Promise.all((of.length ? of : [""]).map(async name => {
			const known = all.get(name) || {at: [], series: {}, error: null};
			all.set(name, known);
			try {
				const last = known.at.at(-1) || 0;
				const more = await get("/barque/v1/page/history?since=" + last + (name ? "&on=" + encodeURIComponent(name) : ""), {signal: s});
				known.error = null;
				known.at.push(...more.at);
				for (const n in more.series) (known.series[n] ||= []).push(...more.series[n]);
				const old = known.at.findIndex(t => t >= Date.now() / 1000 - HOUR - 60);
				if (old > 0) {
					known.at.splice(0, old);
					for (const n in known.series) known.series[n].splice(0, old);
				}
			} catch (e) {
				known.error = e;
			}
		}));
		const refused = [...all.values()].find(k => k.error?.status === 403);
		if (refused) throw refused.error;
		return all;
	});
	return {source, all};
}

const PLOTS = [
	["Writes", "revisions/s", "writes", number], ["Commit, 99 %", "on the leader", "commitP99", short], ["Disk, 99 %", "a write", "diskP99", short],
	["Requests", "answered/s", "requests2xx", number], ["Refused requests", "4xx/s", "requests4xx", number], ["Failed requests", "5xx/s", "requests5xx", number],
	["Request, 99 %", "without watches", "requestP99", short], ["Requests in flight", "", "inFlight", whole], ["Watchers", "of the store", "watchers", whole],
	["Events to watchers", "1/s", "watchEvents", number], ["Not yet applied", "log entries", "applyLag", whole], ["Term", "", "term", whole],
	["Memory", "resident", "memory", bytes], ["CPU", "cores", "cpu", n => n.toFixed(2)], ["Goroutines", "", "goroutines", whole],
	["Open files", "", "openFiles", whole], ["State", "of the store", "stateBytes", bytes], ["Keys", "in the store", "keys", whole],
	["Pods", "", "pods", whole], ["Nodes", "", "nodes", whole], ["Events", "kept", "events", whole],
];

// Of some numbers all servers have the same: the first one is enough.
const COMMON = new Set(["pods", "nodes", "events", "keys", "term"]);

function plots(history, wanted) {
	const end = Date.now() / 1000, names = [...history.all.keys()].sort();
	return h("div", {class: wanted?.length === 4 ? "plots few" : "plots"}, PLOTS.filter(p => !wanted || wanted.includes(p[2])).map(([name, unit, id, format]) => plot({
		name, unit, format, end, lines: (COMMON.has(id) ? names.slice(0, 1) : names).map(n => ({name: n || "this server", color: names.indexOf(n) % 5 + 1, at: history.all.get(n).at, values: history.all.get(n).series[id] || []})),
	})));
}

const serverNames = () => servers(watched.data).filter(m => m.gossip === "alive").map(m => m.name);

export const overview = {
	name: "Overview",
	open(params, signal) {
		const history = histories(signal, serverNames);
		const ill = tables("/api/v1/pods?fieldSelector=" + encodeURIComponent("status.phase!=Running,status.phase!=Succeeded"), signal);
		const nodes = tables("/api/v1/nodes", signal);
		const warned = eventsOf("/api/v1/events?fieldSelector=type%3DWarning", signal, 2000);
		return () => {
			const s = watched.data, [word, tone] = health(s), q = quorum(s?.quorum);
			const statusAt = nodes.columns.findIndex(c => c.name === "Status");
			const ready = [...nodes.rows.values()].filter(r => /^Ready/.test(r.cells[statusAt])).length;
			const pods = [...history.all.values()].map(l => l.series.pods?.at(-1)).find(n => n !== undefined && n !== null);
			return [
				h("h1", null, "Overview"), refused(),
				s ? h("div", {class: "facts"},
					fact("Health", word, s.warnings?.length ? plural(s.warnings.length, "warning") : "no warnings", tone),
					fact("Leader", s.leader || "none", s.leader ? "since " + moment(s.leaderSince) : "nothing can be written", s.leader ? "" : "bad"),
					fact("Servers", q[0], q[1], q[2]),
					fact("Nodes ready", nodes.complete ? ready + " of " + nodes.rows.size : "–", s.agents ? plural(s.agents, "agent") : "", nodes.complete && ready < nodes.rows.size ? "warn" : ""),
					fact("Pods", whole(pods), ill.complete ? (ill.rows.size ? whole(ill.rows.size) + " not running" : "all running or done") : ""),
					fact("Revision", whole(s.revision), whole(s.store.keys) + " keys, " + bytes(s.store.bytes), s.store.space ? "warn" : ""),
					fact("Backup", s.backup ? age(s.backup.created) + " ago" : "none", s.backup ? s.backup.server + ", " + bytes(s.backup.bytes) : "")) : null,
				s ? h("div", {role: "list", "aria-label": "Warnings", style: {display: "grid", gap: "8px"}},
					s.warnings?.length ? s.warnings.map(warning) : s.health !== "healthy" ? null : h("div", {class: "notice good"}, h("span", {class: "tag"}, "Nothing to do"), h("span", {class: "text"}, "The servers find no fault in the cluster."))) : null,
				history.source.error && !history.all.size ? null : plots(history, ["writes", "commitP99", "requests2xx", "memory"]),
				h("div", {class: "columns"},
					s ? h("section", {class: "panel"}, h("header", null, h("h2", null, "Last failovers"), h("a", {href: "#/raft"}, "Raft")), failovers(s, 3)) : null,
					panel("Pods that do not run", ill.complete ? null : "…", ill.rows.size ? grid({id: "ill", label: "Pods that do not run", source: ill, columns: podColumns(ill, {node: false}).filter(c => !["IP", "Restarts", "Ready"].includes(c.name)), open: r => { location.hash = podPath(r); }, short: true}) : h("div", {class: "none"}, ill.error ? lacking(ill.error, "pods") : "None."))),
				panel("Warnings of the last hour", "events", warned.rows.size ? grid({id: "warned", label: "Warnings", source: warned, sort: "Last", columns: eventColumns({space: true}).filter(c => c.name !== "Type" && c.name !== "Times"), short: true}) : h("div", {class: "none"}, warned.error ? lacking(warned.error, "events") : "None.")),
			];
		};
	},
};

function ways(list) {
	return h("div", {class: "scroll"}, h("table", null,
		h("thead", null, h("tr", null, h("th", null, "from \\ to"), list.map(m => h("th", {class: "num"}, m.name)))),
		h("tbody", null, list.map(m => h("tr", {key: m.name}, h("td", null, m.name), list.map(to => {
			const w = (m.ways || []).find(w => w.to === to.name);
			return h("td", {class: "num " + (w?.error ? "bad" : ""), title: w?.error}, m === to ? h("span", {class: "dim"}, "·") : !w ? "–" : w.error ? "no way" : short(w.rttSeconds));
		}))))));
}

export const raft = {
	name: "Raft",
	open(params, signal) {
		const history = histories(signal, serverNames);
		return () => {
			const s = watched.data;
			if (!s) return [h("h1", null, "Raft"), refused()];
			const list = servers(s), q = quorum(s.quorum), last = (s.leaderChanges || []).find(c => c.gapSeconds);
			const answering = list.filter(m => m.store);
			const newest = Math.max(0, ...answering.map(m => m.store.revision)), at = answering.filter(m => m.store.revision === newest);
			const agree = new Set(at.map(m => m.store.stateHash)).size <= 1;
			return [
				h("h1", null, "Raft"), refused(),
				h("div", {class: "facts"},
					fact("Leader", s.leader || "none", s.leader ? "since " + moment(s.leaderSince) + ", " + age(s.leaderSince) : "nothing can be written", s.leader ? "" : "bad"),
					fact("Term", whole(s.term), ""),
					fact("Quorum", q[0], q[1], q[2]),
					fact("Revision", whole(s.revision), ""),
					fact("Last write gap", last ? short(last.gapSeconds) : "–", last ? "at " + moment(last.at) : "no failover seen"),
					fact("State", agree ? "equal" : "differs", plural(at.length, "server") + " at this revision", agree ? "good" : "bad")),
				h("div", {class: "notice"}, h("span", {class: "tag"}, "Why " + (s.leader || "nobody") + (s.leader ? " leads" : " leads")), h("span", {class: "text"}, s.leaderReason || (s.leader ? "It has led since it was started." : "No server has the votes of a quorum."))),
				panel("Servers", null, h("div", {class: "scroll"}, h("table", null,
					h("thead", null, h("tr", null, ["Server", "State", "Health"].map(t => h("th", null, t)), ["Term", "Applied", "Behind", "Heard leader", "Disk p50", "Disk p99", "Free disk", "Up"].map(t => h("th", {class: "num"}, t)), h("th", null, "Version"))),
					h("tbody", null, list.map(m => {
						const st = m.store, ok = m.health ? m.health.healthy : !!st;
						return h("tr", {key: m.name}, h("td", null, m.name, h("div", {class: "dim"}, m.address)),
							h("td", null, st ? h("span", {class: "chip" + (st.state === "leader" ? " good" : st.state === "candidate" ? " warn" : "")}, st.state) : h("span", {class: "chip bad"}, "no answer"), m.voter ? null : h("div", {class: "dim"}, "no vote")),
							h("td", {class: (ok ? "good" : "bad") + " wrap", style: {"min-width": ok ? "8ch" : "18ch"}}, ok ? "well" : m.health?.reason || m.problem || "ill", st?.quarantined ? h("div", null, st.quarantined) : null, st?.diskError ? h("div", null, st.diskError) : null),
							h("td", {class: "num"}, st ? whole(st.term) : "–"), h("td", {class: "num"}, st ? whole(st.appliedIndex) : "–"),
							h("td", {class: "num" + (st?.lagEntries > 1000 ? " warn" : "")}, st ? (st.state === "leader" ? "–" : whole(st.lagEntries)) : "–"),
							h("td", {class: "num" + (st?.lastContactSeconds > 1 ? " warn" : "")}, st?.lastContactSeconds === undefined ? "–" : short(st.lastContactSeconds)),
							h("td", {class: "num"}, st ? short(st.diskP50Seconds) : "–"), h("td", {class: "num" + (st?.diskP99Seconds > 0.1 ? " warn" : "")}, st ? short(st.diskP99Seconds) : "–"),
							h("td", {class: "num" + (m.disk && m.disk.free < m.disk.bytes / 10 ? " warn" : "")}, m.disk ? bytes(m.disk.free) : "–"), h("td", {class: "num"}, m.started ? age(m.started) : "–"), h("td", {class: "dim", title: m.version}, build(m.version)));
					}))))),
				h("section", {class: "panel"}, h("header", null, h("h2", null, "Failovers"), h("span", {class: "dim"}, "as " + (s.leader || "the last leader") + " saw them, newest first")), failovers(s, 16)),
				h("div", {class: "columns"}, panel("Round trips", "between servers", ways(list)), panel("Certificates", "the next to end", h("div", {class: "scroll"}, h("table", null, h("tbody", null, list.map(m => {
					const c = [...(m.certificates || [])].sort((a, b) => a.notAfter < b.notAfter ? -1 : 1)[0];
					return c ? h("tr", {key: m.name}, h("td", null, m.name), h("td", {class: c.warning ? "warn" : null}, c.name), h("td", {class: "num"}, "in " + span((new Date(c.notAfter) - Date.now()) / 1000)), h("td", {class: "wrap dim"}, c.warning || "")) : null;
				})))))),
				history.source.error && !history.all.size ? null : [legend([...history.all.keys()].sort().map((n, i) => ({name: n || "this server", color: i % 5 + 1}))), plots(history, ["writes", "commitP99", "diskP99", "applyLag", "term"])],
			];
		};
	},
};

const SEEN = {alive: "good", left: "warn"};
const worst = states => states.some(t => t === "bad") ? "bad" : states.some(t => t === "warn") ? "warn" : "good";

export const gossip = {
	name: "Gossip",
	open(params, signal) {
		const source = poll(4000, signal, s => get("/barque/v1/gossip", {signal: s}));
		let chosen = "";
		return () => {
			const g = source.data;
			if (!g) return [h("h1", null, "Gossip"), lacking(source.error, "gossip", "The role barque:status-reader gives it.")];
			const members = new Map();
			for (const v of g.views) for (const m of v.members) {
				const of = members.get(m.name) || {name: m.name, role: m.role, address: m.address, faults: new Set(), seen: []};
				of.seen.push({from: v.from, state: m.silent && m.state === "alive" ? "silent" : m.state, since: m.since, rtt: m.rttSeconds, heard: m.heard});
				for (const f of m.ills || []) of.faults.add(f);
				members.set(m.name, of);
			}
			const tone = m => worst([m.faults.size ? "warn" : "good", ...m.seen.map(s => SEEN[s.state] || "bad")]);
			const all = [...members.values()].sort((a, b) => a.role === b.role ? (a.name < b.name ? -1 : 1) : a.role === "server" ? -1 : 1);
			const order = all.filter(m => m.role === "server");
			const at = members.get(chosen), leader = watched.data?.leader;
			const groups = [["Servers", order], ["Agents", all.filter(m => m.role !== "server")]];
			const silent = Object.entries(g.silent || {});
			return [
				h("div", {class: "head"}, h("h1", null, "Gossip"), h("span", {class: "dim"}, plural(all.length, "member") + ", as " + g.views.map(v => v.from).join(", ") + (g.views.length === 1 ? " sees them" : " see them"))),
				silent.map(([name, why]) => h("div", {class: "notice warn", key: "s" + name}, h("span", {class: "tag"}, name), h("span", {class: "text"}, "does not answer " + g.from + ": " + why))),
				(g.disagreements || []).map(d => h("div", {class: "notice warn", key: "d" + d.about}, h("span", {class: "tag"}, d.about), h("span", {class: "text"}, "is alive for " + d.sees.join(", ") + ", and not for " + d.lacks.join(", ") + ". A change that is still spreading shows here for some seconds."))),
				h("div", {class: "columns"},
					panel("Servers", "round trips of probes", circle(order, leader)),
					h("section", {class: "panel"}, h("header", null, h("h2", null, "Members")), groups.map(([name, list]) => list.length ? [
						h("div", {key: name, class: "dim", style: {padding: "10px 12px 0"}}, name + ", " + list.length, h("span", null, list.some(m => tone(m) !== "good") ? ": " + list.filter(m => tone(m) !== "good").length + " not well" : "")),
						h("div", {key: name + " cells", class: "cells", role: "group", "aria-label": name, onkeydown: among}, list.map((m, i) => h("button", {key: m.name, tabindex: (at && list.includes(at) ? m === at : i === 0) ? 0 : -1, class: (tone(m) === "good" ? "" : tone(m)) + (m.name === chosen ? " at" : ""), title: m.name + ": " + [...new Set(m.seen.map(s => s.state))].join(", ") + [...m.faults].map(f => ", " + f).join(""), "aria-label": m.name + " " + tone(m), onclick: () => { chosen = chosen === m.name ? "" : m.name; redraw(); }})))] : null),
						at ? h("div", {class: "body"}, h("h3", null, at.name + " ", h("span", {class: "dim"}, at.address)), h("table", null,
							h("thead", null, h("tr", null, ["Seen by", "State", "Since", "Answered", "Round trip"].map((t, i) => h("th", {class: i > 2 ? "num" : null}, t)))),
							h("tbody", null, at.seen.map(s => h("tr", {key: s.from}, h("td", null, s.from), h("td", {class: SEEN[s.state] || "bad"}, s.state), h("td", null, moment(s.since)), h("td", {class: "num"}, s.heard ? age(s.heard) + " ago" : "–"), h("td", {class: "num"}, s.rtt ? short(s.rtt) : "–"))))),
							at.faults.size ? h("p", {class: "warn"}, "It finds in itself: " + [...at.faults].join(", ")) : null) : h("div", {class: "none"}, "Choose a square to see how the servers see that member."))),
			];
		};
	},
};

// among moves the focus among squares by the arrows: one of them is a stop of Tab.
function among(e) {
	const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: 0, ArrowDown: 0}[e.key];
	if (step === undefined) return;
	e.preventDefault();
	const all = [...e.currentTarget.children], is = all.indexOf(document.activeElement);
	const next = step ? all[is + step] : all.filter((c, i) => c.offsetLeft === all[is]?.offsetLeft && (e.key === "ArrowDown" ? i > is : i < is)).at(e.key === "ArrowDown" ? 0 : -1);
	next?.focus();
}

// circle draws the servers and how they see each other.
function circle(list, leader) {
	const n = list.length, wide = 460, high = n > 3 ? 340 : 250, place = new Map(list.map((m, i) => {
		const turn = -Math.PI / 2 + 2 * Math.PI * i / n;
		return [m.name, {x: wide / 2 + Math.cos(turn) * (wide / 2 - 90), y: high / 2 + (n === 3 ? 24 : 0) + Math.sin(turn) * (high / 2 - 44)}];
	}));
	const edges = [];
	list.forEach((a, i) => list.slice(i + 1).forEach(b => {
		const ab = a.seen.find(s => s.from === b.name), ba = b.seen.find(s => s.from === a.name);
		const tone = worst([ab, ba].filter(s => s).map(s => SEEN[s.state] || "bad")), p = place.get(a.name), q = place.get(b.name);
		const rtt = Math.max(ab?.rtt || 0, ba?.rtt || 0);
		edges.push(h("line", {key: "l" + a.name + " " + b.name, class: tone, x1: p.x, y1: p.y, x2: q.x, y2: q.y}), h("text", {key: "t" + a.name + " " + b.name, class: "dim", x: (p.x + q.x) / 2, y: (p.y + q.y) / 2}, tone === "bad" ? "" : rtt ? short(rtt) : ""));
	}));
	return h("div", {class: "body"}, h("svg", {class: "map", viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": list.map(m => m.name + " is " + [...new Set(m.seen.filter(s => s.from !== m.name).map(s => s.state))].join(" and ")).join(", ")},
		edges, list.map(m => {
			const p = place.get(m.name), tone = worst(m.seen.map(s => SEEN[s.state] || "bad"));
			return [h("circle", {key: "c" + m.name, class: (tone === "good" ? "" : tone) + (m.name === leader ? " leads" : ""), cx: p.x, cy: p.y, r: 30}), h("text", {key: "n" + m.name, x: p.x, y: p.y - (m.name === leader ? 6 : 0)}, m.name), m.name === leader ? h("text", {key: "w" + m.name, class: "dim plain", x: p.x, y: p.y + 9}, "leader") : null];
		})));
}

export const metrics = {
	name: "Metrics",
	open(params, signal) {
		const history = histories(signal, serverNames);
		return () => [
			h("div", {class: "head"}, h("h1", null, "Metrics"), h("span", {class: "dim"}, "the last hour, which each server keeps in memory; all are at /metrics")),
			lacking(!history.source.data && history.source.error, "the metrics", "The role barque:status-reader gives it."),
			legend([...history.all.keys()].sort().map((n, i) => ({name: (n || "this server") + (history.all.get(n).error ? ": " + history.all.get(n).error.message : ""), color: i % 5 + 1}))),
			history.all.size && !(history.source.error?.status === 403) ? plots(history) : null,
		];
	},
};

