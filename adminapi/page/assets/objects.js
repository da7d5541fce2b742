// The views of the API's objects: nodes, workloads, pods, events, changes.

import {follow, get, poll, state} from "./api.js";
import {h} from "./dom.js";
import {age, bytes, moment, plural, whole} from "./format.js";
import {grid, shownOf} from "./grid.js";
import {ageColumn, cell, METADATA, nameColumn, part, spaceColumn, status, tables} from "./tables.js";

// lacking explains why a source has no data. rest is what the reader may do.
export function lacking(error, what, rest) {
	if (!error) return null;
	if (error.status === 403) return h("div", {class: "notice", role: "status"}, h("span", {class: "tag"}, "No right"), h("span", {class: "text"}, "You may not read " + what + ". ", h("span", {class: "dim"}, error.message), rest ? h("span", null, " " + rest) : null));
	if (error.status === 401 || state.silent) return null; // the frame says it
	return h("div", {class: "notice warn", role: "status"}, h("span", {class: "tag"}, "Not up to date"), h("span", {class: "text"}, what + ": " + error.message));
}

// words is the state of a view in the URL: a namespace, and words to look for.
function words(params, go) {
	const set = (name, value) => {
		if (value) params.set(name, value);
		else params.delete(name);
		go(params);
	};
	return {ns: params.get("ns") || "", get q() { return params.get("q") || ""; }, set};
}

// spaces follows the names of namespaces.
const spaces = signal => follow("/api/v1/namespaces", {signal, accept: METADATA, form: o => ({key: o.metadata.name}), limit: 5000});

function bar({id, source, names, at, what, extra}) {
	const known = names ? [...names.rows.keys()].sort() : [];
	const total = source.rows.size, seen = shownOf(id);
	return h("div", {class: "bar"},
		h("input", {type: "search", id: "search", placeholder: "Filter: words, !without", "aria-label": "Filter", value: at.q, oninput: e => at.set("q", e.target.value)}),
		names && (names.error?.status === 403
			? h("input", {type: "text", placeholder: "Namespace", "aria-label": "Namespace", value: at.ns, onchange: e => at.set("ns", e.target.value.trim())})
			: h("select", {"aria-label": "Namespace", value: at.ns, onchange: e => at.set("ns", e.target.value), hook: {update: el => { el.value = at.ns; }, mount: el => { el.value = at.ns; }}},
				h("option", {value: ""}, "All namespaces"), known.map(n => h("option", {key: n, value: n}, n)), at.ns && !known.includes(at.ns) ? h("option", {key: at.ns, value: at.ns}, at.ns) : null)),
		extra,
		source.error?.status === 403 ? null : h("span", {class: "dim nowrap"}, (at.q ? whole(seen) + " of " : "") + plural(total, what) + (source.complete ? "" : " …") + (source.cut ? " shown, there are more" : "")));
}

const inSpace = (ns, group, resource) => group + (ns ? "/namespaces/" + encodeURIComponent(ns) : "") + "/" + resource;

export const podPath = r => "#/pods/" + encodeURIComponent(r.ns) + "/" + encodeURIComponent(r.name);

export function podColumns(source, some = {}) {
	const of = name => r => String(cell(source, r, name) ?? "");
	return [
		some.space === false ? null : spaceColumn, nameColumn,
		{name: "Ready", value: of("Ready"), show: r => part(cell(source, r, "Ready"), /Completed/.test(cell(source, r, "Status")) ? "dim" : "warn"), width: "6ch"},
		{name: "Status", value: of("Status"), show: r => status(cell(source, r, "Status")), width: "minmax(17ch, 1fr)"},
		{name: "Restarts", value: of("Restarts"), sort: r => parseInt(cell(source, r, "Restarts")) || 0, width: "minmax(8ch, 0.6fr)", num: true, narrow: false},
		some.node === false ? null : {name: "Node", value: of("Node"), width: "minmax(10ch, 1fr)", narrow: false},
		{name: "IP", value: of("IP"), width: "15ch", narrow: false},
		ageColumn,
	].filter(c => c);
}

export const pods = {
	name: "Pods",
	open(params, signal, go) {
		const at = words(params, go), names = spaces(signal);
		const source = tables(inSpace(at.ns, "/api/v1", "pods"), signal);
		return () => {
			const table = grid({id: "pods", label: "Pods", source, filter: at.q, columns: podColumns(source, {space: !at.ns}), open: r => { location.hash = podPath(r); }}); // first: the bar says how many rows it shows
			return [
				h("h1", null, "Pods"), bar({id: "pods", source, names, at, what: "pod"}),
				lacking(source.error, at.ns ? "the pods of " + at.ns : "the pods of all namespaces", at.ns ? "" : "Choose a namespace."),
				table,
			];
		};
	},
};

export const nodes = {
	name: "Nodes",
	open(params, signal, go) {
		const at = words(params, go);
		const source = tables("/api/v1/nodes", signal);
		// The servers sample kubelets while they are asked, so a large cluster is not asked for a table.
		const usage = poll(15000, signal, s => source.rows.size > 200 ? null : get("/apis/metrics.k8s.io/v1beta1/nodes", {signal: s}));
		const used = (r, name) => usage.data?.items.find(i => i.metadata.name === r.name)?.usage[name];
		const of = name => r => String(cell(source, r, name) ?? "");
		const columns = [
			nameColumn,
			{name: "Status", value: of("Status"), show: r => { const s = String(cell(source, r, "Status")); return h("span", {class: s.startsWith("Ready") ? (s === "Ready" ? "good" : "warn") : "bad"}, s); }, width: "minmax(12ch, 1fr)"},
			{name: "Roles", value: of("Roles"), width: "minmax(10ch, 1fr)", narrow: false},
			{name: "CPU", value: r => { const c = cpus(used(r, "cpu")); return c === null ? "–" : c.toFixed(2); }, sort: r => cpus(used(r, "cpu")) ?? -1, num: true, plain: true, width: "6ch"},
			{name: "Memory", value: r => { const m = size(used(r, "memory")); return m === null ? "–" : bytes(m); }, sort: r => size(used(r, "memory")) ?? -1, num: true, plain: true, width: "9ch", narrow: false},
			{name: "Address", value: of("Internal-IP"), width: "15ch", narrow: false},
			{name: "Version", value: of("Version"), width: "minmax(12ch, 1fr)", narrow: false},
			ageColumn,
		];
		return () => {
			const table = grid({id: "nodes", label: "Nodes", source, filter: at.q, columns, open: r => { location.hash = "#/nodes/" + encodeURIComponent(r.name); }}); // first: the bar says how many rows it shows
			return [
				h("h1", null, "Nodes"), bar({id: "nodes", source, at, what: "node"}), lacking(source.error, "nodes"),
				table,
			];
		};
	},
};

// cpus and size read quantities of usage.
export function cpus(q) {
	if (!q) return null;
	const unit = {n: 1e-9, u: 1e-6, m: 1e-3}[q.at(-1)];
	return unit ? parseFloat(q) * unit : parseFloat(q);
}

export function size(q) {
	if (!q) return null;
	const m = /^([0-9.]+)([KMGTPE]i?|[km])?$/.exec(q);
	if (!m) return null;
	const power = "KMGTPE".indexOf((m[2] || " ")[0].toUpperCase()) + 1;
	return parseFloat(m[1]) * (m[2] ? (m[2].endsWith("i") ? 1024 : 1000) ** power : 1);
}

const KINDS = [
	{kind: "Deployment", group: "/apis/apps/v1", resource: "deployments", ready: "Ready", note: s => r => counts(s, r, {"up to date": "Up-to-date", available: "Available"})},
	{kind: "StatefulSet", group: "/apis/apps/v1", resource: "statefulsets", ready: "Ready"},
	{kind: "DaemonSet", group: "/apis/apps/v1", resource: "daemonsets", ready: r => s => cell(s, r, "Ready") + "/" + cell(s, r, "Desired"), note: s => r => counts(s, r, {"up to date": "Up-to-date", available: "Available"})},
	{kind: "Job", group: "/apis/batch/v1", resource: "jobs", ready: "Completions", note: s => r => cell(s, r, "Status")},
	{kind: "CronJob", group: "/apis/batch/v1", resource: "cronjobs", note: s => r => cell(s, r, "Schedule") + (String(cell(s, r, "Suspend")) === "True" ? ", suspended" : "")},
];
export const kindOf = resource => KINDS.find(k => k.resource === resource);

const counts = (s, r, of) => Object.entries(of).map(([word, name]) => cell(s, r, name) + " " + word).join(", ");

// joined is one source of several.
function joined(sources) {
	let made = -1, rows = new Map();
	return {
		columns: [],
		get version() { return sources.reduce((n, s) => n + s.version, 0); },
		get complete() { return sources.every(s => s.complete || s.error); },
		get cut() { return sources.some(s => s.cut); },
		get rows() {
			if (made !== this.version) {
				made = this.version;
				rows = new Map();
				for (const s of sources) for (const r of s.rows.values()) rows.set(s.mark + r.key, Object.assign(r, {of: s}));
			}
			return rows;
		},
	};
}

export const workloads = {
	name: "Workloads",
	open(params, signal, go) {
		const at = words(params, go), names = spaces(signal);
		const sources = KINDS.map(k => Object.assign(tables(inSpace(at.ns, k.group, k.resource), signal), {mark: k.resource + "/", is: k}));
		const source = joined(sources);
		const ready = r => { const is = r.of.is.ready; return String((typeof is === "function" ? is(r)(r.of) : is ? cell(r.of, r, is) : "") ?? ""); };
		const columns = [
			{name: "Kind", value: r => r.of.is.kind, width: "11ch"}, at.ns ? null : spaceColumn, nameColumn,
			{name: "Ready", value: ready, show: r => part(ready(r), r.of.is.kind === "Job" ? "dim" : "warn"), width: "7ch"},
			{name: "State", value: r => String(r.of.is.note ? r.of.is.note(r.of)(r) : ""), width: "minmax(16ch, 2fr)", narrow: false},
			{name: "Images", value: r => String(cell(r.of, r, "Images") || ""), width: "minmax(16ch, 3fr)", narrow: false},
			ageColumn,
		].filter(c => c);
		return () => {
			const table = grid({id: "workloads", label: "Workloads", source, filter: at.q, columns, open: r => { location.hash = "#/workloads/" + r.of.is.resource + "/" + encodeURIComponent(r.ns) + "/" + encodeURIComponent(r.name); }}); // first: the bar says how many rows it shows
			return [
				h("h1", null, "Workloads"), bar({id: "workloads", source, names, at, what: "workload"}),
				sources.map(s => lacking(s.error, s.is.resource + (at.ns ? " of " + at.ns : " of all namespaces"))),
				table,
			];
		};
	},
};

// eventRow keeps of an event what a row shows.
export const eventRow = o => ({
	key: o.metadata.namespace + "/" + o.metadata.name, ns: o.metadata.namespace, name: o.metadata.name,
	at: o.series?.lastObservedTime || o.lastTimestamp || o.eventTime || o.metadata.creationTimestamp,
	type: o.type, reason: o.reason, object: o.involvedObject.kind + "/" + o.involvedObject.name, kind: o.involvedObject.kind, of: o.involvedObject.name,
	message: o.message, count: o.series?.count || o.count || 1, from: o.reportingComponent || o.source?.component || "",
});

export const eventColumns = (some = {}) => [
	{name: "Last", value: r => age(r.at), sort: r => -new Date(r.at), width: "7ch", num: true, plain: true},
	{name: "Type", value: r => r.type, show: r => h("span", {class: r.type === "Warning" ? "warn" : "dim"}, r.type), width: "8ch", narrow: false},
	{name: "Reason", value: r => r.reason, width: "minmax(14ch, 1fr)"},
	some.object === false ? null : {name: "Object", value: r => (some.space ? r.ns + "/" : "") + r.object, width: "minmax(20ch, 2fr)"},
	{name: "Message", value: r => r.message || "", width: "minmax(30ch, 5fr)"},
	{name: "Times", value: r => whole(r.count), sort: r => r.count, num: true, width: "6ch", narrow: false},
].filter(c => c);

export const eventsOf = (path, signal, limit) => follow(path, {signal, form: eventRow, limit});

export const events = {
	name: "Events",
	open(params, signal, go) {
		const at = words(params, go), names = spaces(signal), only = params.get("type") === "Warning";
		const source = eventsOf(inSpace(at.ns, "/api/v1", "events") + (only ? "?fieldSelector=type%3DWarning" : ""), signal, 10000);
		return () => {
			const table = grid({id: "events" + only, label: "Events", source, filter: at.q, sort: "Last", columns: eventColumns({space: !at.ns}), open: r => { if (r.kind === "Pod") location.hash = podPath({ns: r.ns, name: r.of}); else if (r.kind === "Node") location.hash = "#/nodes/" + encodeURIComponent(r.of); }}); // first: the bar says how many rows it shows
			return [
				h("h1", null, "Events"),
				bar({id: "events", source, names, at, what: "event", extra: h("button", {"aria-pressed": String(only), onclick: () => at.set("type", only ? "" : "Warning")}, "Warnings only")}),
				lacking(source.error, "events" + (at.ns ? " of " + at.ns : " of all namespaces")),
				table,
			];
		};
	},
};

const CHANGING = [
	["Deployment", "/apis/apps/v1/deployments"], ["StatefulSet", "/apis/apps/v1/statefulsets"], ["DaemonSet", "/apis/apps/v1/daemonsets"],
	["CronJob", "/apis/batch/v1/cronjobs"], ["Service", "/api/v1/services"], ["Ingress", "/apis/networking.k8s.io/v1/ingresses"],
	["NetworkPolicy", "/apis/networking.k8s.io/v1/networkpolicies"], ["ConfigMap", "/api/v1/configmaps"],
	["PersistentVolumeClaim", "/api/v1/persistentvolumeclaims"], ["Namespace", "/api/v1/namespaces"], ["Node", "/api/v1/nodes"],
	["Role", "/apis/rbac.authorization.k8s.io/v1/roles"], ["RoleBinding", "/apis/rbac.authorization.k8s.io/v1/rolebindings"],
	["ClusterRole", "/apis/rbac.authorization.k8s.io/v1/clusterroles"], ["ClusterRoleBinding", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"],
	["CustomResourceDefinition", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"],
];

// changed makes a row of the newest write to an object beside its status, as its managed fields have
// it.
function changed(kind) {
	return o => {
		const meta = o.metadata;
		let last = null;
		for (const m of meta.managedFields || []) if (m.subresource !== "status" && m.time && (!last || m.time > last.time)) last = m;
		const at = last?.time || meta.creationTimestamp;
		const fresh = new Date(at) - new Date(meta.creationTimestamp) < 2000;
		return {key: kind + "/" + (meta.namespace || "") + "/" + meta.name, ns: meta.namespace || "", name: meta.name, kind, at,
			by: last?.manager || "", how: meta.deletionTimestamp ? "is deleted" : fresh ? "created" : "changed",
			fields: fresh || !last ? "" : paths(last.fieldsV1)};
	};
}

// paths names the fields of a manager, four at most.
function paths(tree) {
	const found = [];
	const walk = (node, at) => {
		const names = Object.keys(node || {}).filter(n => n !== ".");
		if (!names.length && at) found.push(at);
		for (const n of names) {
			if (found.length > 4) return;
			const key = n.startsWith("k:") ? "[" + Object.values(JSON.parse(n.slice(2))).join(",") + "]" : n.startsWith("f:") ? (at ? "." : "") + n.slice(2) : "";
			walk(node[n], at + key);
		}
	};
	walk(tree, "");
	return found.slice(0, 4).join(", ") + (found.length > 4 ? ", …" : "");
}

export const changes = {
	name: "Changes",
	open(params, signal, go) {
		const at = words(params, go);
		const sources = CHANGING.map(([kind, path]) => Object.assign(follow(path, {signal, accept: METADATA, form: changed(kind), limit: 3000}), {mark: "", kind}));
		const source = joined(sources);
		const columns = [
			{name: "When", value: r => moment(r.at), sort: r => -new Date(r.at), width: "minmax(12ch, 0.7fr)", plain: true},
			{name: "Kind", value: r => r.kind, width: "minmax(14ch, 1.4fr)"}, {...spaceColumn, narrow: false}, {...nameColumn, width: "minmax(18ch, 1.6fr)"},
			{name: "What", value: r => r.how, show: r => h("span", {class: r.how === "is deleted" ? "warn" : r.how === "created" ? "good" : null}, r.how), width: "9ch"},
			{name: "By", value: r => r.by, width: "minmax(16ch, 1.2fr)", narrow: false},
			{name: "Fields of that writer", value: r => r.fields, width: "minmax(24ch, 4fr)", narrow: false},
		];
		return () => {
			const table = grid({id: "changes", label: "Changes", source, filter: at.q, sort: "When", columns}); // first: the bar says how many rows it shows
			return [
				h("div", {class: "head"}, h("h1", null, "Changes"), h("span", {class: "dim"}, "The newest write to each object, beside its status. Deleted objects are in the audit log.")),
				bar({id: "changes", source, at, what: "object"}),
				sources.some(s => s.error?.status === 403) ? h("div", {class: "notice"}, h("span", {class: "tag"}, "No right"), h("span", {class: "text"}, "You may not list these kinds: " + sources.filter(s => s.error?.status === 403).map(s => s.kind).join(", ") + ".")) : null,
				table,
			];
		};
	},
};
