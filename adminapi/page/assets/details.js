// One pod with its logs, one node, one workload.

import {follow, lines, redraw, send, wait} from "./api.js";
import {h} from "./dom.js";
import {age, moment, plural} from "./format.js";
import {grid} from "./grid.js";
import {eventColumns, eventsOf, kindOf, lacking, podColumns, podPath} from "./objects.js";
import {status, tables, tone} from "./tables.js";

const one = (path, name, signal) => follow(path + "?fieldSelector=" + encodeURIComponent("metadata.name=" + name), {signal, form: o => ({key: o.metadata.uid, object: o})});

export const panel = (title, more, ...body) => h("section", {class: "panel"}, h("header", null, h("h2", null, title), more ? h("span", {class: "dim"}, more) : null), ...body);

const facts = pairs => h("dl", null, pairs.filter(p => p && p[1] !== undefined && p[1] !== null && p[1] !== "").map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));

const head = (back, words, name, ...rest) => h("div", {class: "head"}, h("a", {href: back}, words), h("h1", null, name), ...rest);

const missing = (source, what) => source.complete && !source.rows.size ? h("div", {class: "notice"}, h("span", {class: "text"}, what + " does not exist, or exists no more.")) : null;

const conditions = (list, good) => h("div", {class: "scroll"}, h("table", null,
	h("thead", null, h("tr", null, ["Condition", "Status", "Since", "Reason", "Message"].map(t => h("th", null, t)))),
	h("tbody", null, (list || []).map(c => h("tr", {key: c.type}, h("td", null, c.type), h("td", {class: c.status === good(c.type) ? "good" : c.status === "Unknown" ? "bad" : "warn"}, c.status), h("td", {title: c.lastTransitionTime}, age(c.lastTransitionTime || c.lastUpdateTime)), h("td", null, c.reason || ""), h("td", {class: "wrap"}, c.message || ""))))));

const related = (ns, kind, name, signal) => eventsOf((ns ? "/api/v1/namespaces/" + encodeURIComponent(ns) : "/api/v1") + "/events?fieldSelector=" + encodeURIComponent("involvedObject.kind=" + kind + ",involvedObject.name=" + name), signal, 1000);

const eventPanel = (source, id) => panel("Events", source.complete && source.rows.size ? "" : null,
	source.rows.size ? grid({id: "events " + id, label: "Events", source, sort: "Last", columns: eventColumns({object: false}), short: true}) : h("div", {class: "none"}, source.error ? (lacking(source.error, "its events") || "") : source.complete ? "No events: they are kept for an hour." : "…"));

function containerState(s) {
	const st = s?.state || {};
	if (st.running) return ["running", "since " + moment(st.running.startedAt)];
	if (st.waiting) return [st.waiting.reason || "waiting", st.waiting.message || ""];
	if (st.terminated) return [st.terminated.reason || "ended", "exit code " + st.terminated.exitCode + ", " + moment(st.terminated.finishedAt) + (st.terminated.message ? ": " + st.terminated.message : "")];
	return ["not started", ""];
}

const LINES = 5000; // of a log that are kept

// log follows a container's log into an element of its own. It keeps the newest lines.
function log(ns, pod, signal) {
	const l = {container: "", previous: false, wrapped: false, filter: "", text: [], error: "", begun: "", el: null, stop: null, ends: false};
	let fresh = [], due = false;
	const show = line => l.filter === "" || line.toLowerCase().includes(l.filter.toLowerCase());
	const flush = () => {
		due = false;
		const el = l.el;
		if (!el) { fresh = []; return; }
		const down = el.scrollHeight - el.scrollTop - el.clientHeight < 40;
		const some = fresh.filter(show);
		fresh = [];
		if (some.length) el.append(some.join("\n") + "\n");
		// Old text goes by whole pieces, each of which is as much as has come at once.
		let total = el.textContent.length;
		while (el.childNodes.length > 1 && total > LINES * 160) {
			total -= el.firstChild.length;
			el.firstChild.remove();
		}
		if (down) el.scrollTop = el.scrollHeight;
	};
	const add = line => {
		l.text.push(line);
		if (l.text.length > LINES * 1.2) l.text = l.text.slice(-LINES);
		fresh.push(line);
		if (fresh.length > LINES) fresh = fresh.slice(-LINES);
		if (!due) { due = true; setTimeout(flush, 60); }
	};
	l.all = () => {
		if (!l.el) return;
		fresh = [];
		l.el.textContent = l.text.filter(show).map(t => t + "\n").join("");
		l.el.scrollTop = l.el.scrollHeight;
	};
	l.open = (container, previous = false) => {
		l.stop?.abort();
		const stop = l.stop = new AbortController(), both = AbortSignal.any([signal, stop.signal]);
		Object.assign(l, {container, previous, text: [], error: "", ends: false});
		l.all();
		(async () => {
			let since = "";
			while (!both.aborted) {
				try {
					const path = "/api/v1/namespaces/" + encodeURIComponent(ns) + "/pods/" + encodeURIComponent(pod) + "/log?timestamps=true&container=" + encodeURIComponent(container) + (previous ? "&previous=true" : "&follow=true") + (since ? "&sinceTime=" + encodeURIComponent(since.slice(0, 19) + "Z") : "&tailLines=1000");
					const response = await send(path, {signal: both, headers: {Accept: "*/*"}});
					l.error = "";
					redraw();
					const again = since;
					await lines(response, line => {
						const cut = line.indexOf(" "), at = line.slice(0, cut);
						if (again && at <= again) return; // sinceTime has whole seconds
						if (at > since) since = at;
						add(at.slice(11, 23) + "  " + line.slice(cut + 1));
					});
					l.ends = true;
					redraw();
					if (previous) return;
				} catch (e) {
					if (both.aborted) return;
					l.error = e.message;
					redraw();
					if (previous) return;
				}
				await wait(2000, both);
			}
		})();
	};
	return l;
}

function logPanel(l, names, ns) {
	return h("section", {class: "panel", key: "log"},
		h("header", null, h("h2", null, "Log"),
			h("select", {"aria-label": "Container", onchange: e => { l.open(e.target.value); redraw(); }, hook: {mount: el => { el.value = l.container; }, update: el => { el.value = l.container; }}}, names.map(n => h("option", {key: n, value: n}, n))),
			h("input", {type: "search", placeholder: "Only lines with", "aria-label": "Only lines with", value: l.filter, oninput: e => { l.filter = e.target.value; l.all(); }}),
			h("button", {"aria-pressed": String(l.wrapped), onclick: () => { l.wrapped = !l.wrapped; redraw(); }}, "Wrap"),
			h("button", {"aria-pressed": String(l.previous), onclick: () => { l.open(l.container, !l.previous); redraw(); }}, "Before the restart"),
			h("span", {class: l.error ? "warn" : "dim"}, l.error || (l.ends ? "ended" : "live"))),
		h("pre", {class: "log" + (l.wrapped ? " wrapped" : ""), tabindex: 0, "aria-label": "Log of " + l.container, style: {border: "0"}, hook: {mount: el => { l.el = el; l.all(); }, unmount: () => { l.el = null; }}}));
}

export const pod = {
	open([ns, name], signal) {
		const source = one("/api/v1/namespaces/" + encodeURIComponent(ns) + "/pods", name, signal), happened = related(ns, "Pod", name, signal), l = log(ns, name, signal);
		return () => {
			const p = [...source.rows.values()][0]?.object;
			const containers = p ? [...(p.spec.initContainers || []), ...p.spec.containers] : [];
			if (p && !l.container) l.open(p.spec.containers[0].name);
			const states = p ? [...(p.status.initContainerStatuses || []), ...(p.status.containerStatuses || [])] : [];
			return [
				head("#/pods", "Pods", name, p ? status(p.metadata.deletionTimestamp ? "Terminating" : p.status.reason || p.status.phase) : null),
				lacking(source.error, "this pod"), missing(source, "The pod " + ns + "/" + name),
				p ? h("div", {class: "columns"},
					panel("Pod", null, h("div", {class: "body"}, facts([["Namespace", ns], ["Node", p.spec.nodeName ? h("a", {href: "#/nodes/" + p.spec.nodeName}, p.spec.nodeName) : "not chosen yet"], ["Addresses", (p.status.podIPs || []).map(i => i.ip).join(", ")], ["Owner", (p.metadata.ownerReferences || []).map(o => o.kind + "/" + o.name).join(", ")], ["Service account", p.spec.serviceAccountName], ["Quality of service", p.status.qosClass], ["Priority", p.spec.priorityClassName], ["Started", moment(p.status.startTime)], ["Message", p.status.message]]))),
					panel("Containers", plural(containers.length, "container"), h("div", {class: "scroll"}, h("table", null,
						h("thead", null, h("tr", null, ["Name", "State", "", "Restarts"].map((t, i) => h("th", {class: i === 3 ? "num" : null}, t)))),
						h("tbody", null, containers.map(c => {
							const s = states.find(s => s.name === c.name), [word, more] = containerState(s);
							return h("tr", {key: c.name}, h("td", {title: c.image}, c.name), h("td", {class: word === "running" ? (s.ready ? "good" : "warn") : tone(word)}, word === "running" && !s.ready ? "not ready" : word), h("td", {class: "wrap dim"}, more, s?.lastState?.terminated ? h("div", null, "before: " + (s.lastState.terminated.reason || "ended") + ", exit code " + s.lastState.terminated.exitCode) : null), h("td", {class: "num"}, s?.restartCount ?? 0));
						})))))) : null,
				p ? logPanel(l, containers.map(c => c.name), ns) : null,
				p ? h("div", {class: "columns"}, panel("Conditions", null, conditions(p.status.conditions, () => "True")), eventPanel(happened, name)) : null,
			];
		};
	},
};

const NODE_GOOD = type => type === "Ready" ? "True" : "False";

export const node = {
	open([name], signal) {
		const source = one("/api/v1/nodes", name, signal), happened = related("", "Node", name, signal);
		const here = tables("/api/v1/pods?fieldSelector=" + encodeURIComponent("spec.nodeName=" + name), signal);
		return () => {
			const n = [...source.rows.values()][0]?.object, info = n?.status.nodeInfo || {};
			const ready = n?.status.conditions?.find(c => c.type === "Ready")?.status;
			return [
				head("#/nodes", "Nodes", name, n ? h("span", {class: ready === "True" ? "good" : "bad"}, ready === "True" ? "Ready" : "Not ready") : null, n?.spec.unschedulable ? h("span", {class: "warn"}, "takes no new pods") : null),
				lacking(source.error, "this node"), missing(source, "The node " + name),
				n ? h("div", {class: "columns"},
					panel("Node", null, h("div", {class: "body"}, facts([["Addresses", (n.status.addresses || []).map(a => a.address).filter((a, i, all) => all.indexOf(a) === i).join(", ")], ["Pod ranges", (n.spec.podCIDRs || []).join(", ")], ["Taints", (n.spec.taints || []).map(t => t.key + (t.value ? "=" + t.value : "") + ":" + t.effect).join(", ")], ["Kubelet", info.kubeletVersion], ["Runtime", info.containerRuntimeVersion], ["System", info.osImage], ["Kernel", info.kernelVersion], ["Made", moment(n.metadata.creationTimestamp)]]))),
					panel("Room", "allocatable of capacity", h("div", {class: "body"}, facts(Object.keys(n.status.capacity || {}).map(k => [k, (n.status.allocatable?.[k] || "–") + " of " + n.status.capacity[k]]))))) : null,
				n ? panel("Conditions", null, conditions(n.status.conditions, NODE_GOOD)) : null,
				n ? panel("Pods here", plural(here.rows.size, "pod"), here.rows.size ? grid({id: "pods of " + name, label: "Pods of this node", source: here, columns: podColumns(here, {node: false}), open: r => { location.hash = podPath(r); }, short: true}) : h("div", {class: "none"}, here.error ? lacking(here.error, "its pods") : here.complete ? "No pods." : "…")) : null,
				n ? eventPanel(happened, name) : null,
			];
		};
	},
};

export const workload = {
	open([resource, ns, name], signal) {
		const is = kindOf(resource);
		if (!is) return () => h("div", {class: "notice"}, "There is no such kind.");
		const source = one(is.group + "/namespaces/" + encodeURIComponent(ns) + "/" + resource, name, signal), happened = related(ns, is.kind, name, signal);
		let mine = null;
		return () => {
			const w = [...source.rows.values()][0]?.object;
			const selector = w?.spec.selector?.matchLabels, template = (w?.spec.template || w?.spec.jobTemplate?.spec.template)?.spec;
			if (selector && !mine) mine = tables("/api/v1/namespaces/" + encodeURIComponent(ns) + "/pods?labelSelector=" + encodeURIComponent(Object.entries(selector).map(([k, v]) => k + "=" + v).join(",")), signal);
			const st = w?.status || {};
			return [
				head("#/workloads", "Workloads", name, h("span", {class: "dim"}, is.kind + " in " + ns)),
				lacking(source.error, "this workload"), missing(source, is.kind + " " + ns + "/" + name),
				w ? h("div", {class: "columns"},
					panel(is.kind, null, h("div", {class: "body"}, facts([["Wanted", w.spec.replicas ?? st.desiredNumberScheduled ?? w.spec.completions], ["Ready", st.readyReplicas ?? st.numberReady ?? st.ready], ["Up to date", st.updatedReplicas ?? st.updatedNumberScheduled], ["Available", st.availableReplicas ?? st.numberAvailable], ["Succeeded", st.succeeded], ["Failed", st.failed], ["Schedule", w.spec.schedule], ["Last run", w.spec.schedule ? moment(st.lastScheduleTime) : ""], ["Strategy", w.spec.strategy?.type || w.spec.updateStrategy?.type], ["Made", moment(w.metadata.creationTimestamp)], ["Generation", w.metadata.generation + (st.observedGeneration !== undefined && st.observedGeneration < w.metadata.generation ? ", and " + st.observedGeneration + " is acted on" : "")]]))),
					panel("Images", null, h("div", {class: "body"}, facts((template ? [...(template.initContainers || []), ...template.containers] : []).map(c => [c.name, h("span", {class: "mono"}, c.image)]))))) : null,
				st.conditions?.length ? panel("Conditions", null, conditions(st.conditions, t => /Failure|Failed/.test(t) ? "False" : "True")) : null,
				mine ? panel("Pods", plural(mine.rows.size, "pod"), mine.rows.size ? grid({id: "pods of " + resource + name, label: "Pods", source: mine, columns: podColumns(mine, {space: false}), open: r => { location.hash = podPath(r); }, short: true}) : h("div", {class: "none"}, mine.error ? lacking(mine.error, "its pods") : mine.complete ? "No pods." : "…")) : null,
				w ? eventPanel(happened, resource + name) : null,
			];
		};
	},
};

