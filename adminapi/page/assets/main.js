// The frame of the page: logging in, navigation, keys, and what to say when the server is silent.

import {get, keep, redraw, Refusal, send, SESSION, start, state} from "./api.js";
import {node, pod, workload} from "./details.js";
import {h} from "./dom.js";
import {age, build, clock} from "./format.js";
import {changes, events, nodes, pods, workloads} from "./objects.js";
import {gossip, health, metrics, overview, raft, watched, watchStatus} from "./servers.js";

const VIEWS = {overview, raft, gossip, nodes, workloads, pods, events, changes, metrics};
const DETAILS = {pods: [pod, 2], nodes: [node, 1], workloads: [workload, 3]};
const LINK = "barque-link.", HANDED = "barque-session.";

const ship = () => h("svg", {viewBox: "0 0 32 32", "aria-hidden": "true"}, h("g", {fill: "none", stroke: "currentColor", "stroke-width": 2.2, "stroke-linecap": "round", "stroke-linejoin": "round"}, h("path", {d: "M3 23h26l-3.5 5h-19z", fill: "currentColor"}), h("path", {d: "M9 22V7M16 22V3M23 22V9M9 8l4.5 9H9M16 4l4.5 13H16M23 10l4 8h-4"})));

// The view in the URL: #/name?words or #/name/parts.
let current = {name: "", view: null, stop: null, at: ""};

function route() {
	const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
	const [name, ...parts] = path.split("/").filter(p => p).map(decodeURIComponent);
	return {name: VIEWS[name] ? name : "overview", parts, params: new URLSearchParams(query), path: path || "overview"};
}

function navigate() {
	if (!state.self) return;
	const to = route();
	const at = to.path + "?" + (to.params.get("ns") || "") + "&" + (to.params.get("type") || "");
	if (current.at === at) {
		for (const name of new Set([...current.params.keys(), ...to.params.keys()])) {
			if (to.params.has(name)) current.params.set(name, to.params.get(name));
			else current.params.delete(name);
		}
		return redraw();
	}
	current.stop?.abort();
	const stop = new AbortController(), [detail, count] = DETAILS[to.name] || [];
	const go = params => {
		const text = params.toString();
		history.replaceState(null, "", "#/" + to.path + (text ? "?" + text : ""));
		navigate();
	};
	const fills = !to.parts.length && ["nodes", "workloads", "pods", "events", "changes"].includes(to.name);
	const view = detail && to.parts.length === count ? detail.open(to.parts, stop.signal) : VIEWS[to.name].open(to.params, stop.signal, go);
	current = {name: to.name, stop, at, view, fills, params: to.params};
	document.title = (to.parts.at(-1) || VIEWS[to.name].name) + " – Barque";
	redraw();
	document.querySelector("main")?.scrollTo(0, 0);
}

// links lead to the other servers. A session is handed over in the fragment, which is sent to nobody.
function elsewhere() {
	const others = (state.self?.servers || []).filter(s => new URL(s.url).host !== location.host && s.name !== state.self.server);
	return others.map(s => h("a", {key: s.name, href: s.url + "/ui/" + (state.self.session ? "#" + state.credential : ""), rel: "noreferrer"}, s.name));
}

function silence() {
	if (!state.silent || Date.now() - state.silent < 1500) return null;
	const links = elsewhere();
	return h("div", {class: "notice bad", role: "alert", key: "silence"}, h("span", {class: "tag"}, "No answer"), h("span", {class: "text"}, location.host + " does not answer for " + age(state.silent) + ". The page tries again each second.", links.length ? h("span", null, " Go on at ", links.map((l, i) => [i ? ", " : "", l]), ".") : null));
}

function leaderless() {
	const s = watched.data;
	if (!s || s.leader || state.silent) return null;
	return h("div", {class: "notice bad", role: "alert", key: "leaderless"}, h("span", {class: "tag"}, "No leader"), h("span", {class: "text"}, "The servers elect one. Until then nothing can be written, and lists may fail."));
}

async function leave() {
	const was = state.self, credential = state.credential;
	current.stop?.abort();
	stopStatus?.abort();
	keep("");
	state.self = null;
	state.problem = "";
	redraw();
	if (was?.session) await send(SESSION, {method: "DELETE", credential}).catch(() => {});
}

let seen = false;

function frame() {
	const s = watched.data, [word, tone] = health(s);
	if (s && !seen) { seen = true; performance.mark("barque first view"); }
	const counts = {overview: s?.warnings?.length ? [s.warnings.length, tone] : null};
	return h("div", {class: "frame", key: "frame"},
		h("nav", {"aria-label": "Views"},
			h("div", {class: "brand"}, ship(), "Barque"),
			Object.entries(VIEWS).map(([id, v]) => h("a", {key: id, href: "#/" + id, "aria-current": current.name === id ? "page" : null}, v.name, counts[id] ? h("span", {class: "count " + counts[id][1], title: "warnings"}, counts[id][0]) : null)),
			h("div", {class: "foot"},
				s ? h("span", {class: tone}, word) : null,
				h("span", {title: (state.self.groups || []).join(", ")}, state.self.user),
				h("span", null, state.self.session ? "reads only, until " + clock(state.self.expires).slice(0, 5) : "with a token"),
				h("span", {title: state.self.version}, state.self.server + ", " + build(state.self.version)),
				h("button", {onclick: leave}, "Log out"))),
		h("main", {class: (current.fills ? "fill" : "") + (state.silent && Date.now() - state.silent > 1500 ? " old" : ""), key: current.at.split("?")[0]}, silence(), leaderless(), current.view?.()),
		help());
}

let helping = false;
const KEYS = [["1 – 9", "the views, in their order"], ["/", "the filter of a table"], ["t", "the table"], ["j k ↑ ↓", "rows of a table"], ["Enter", "open the row"], ["Esc", "back, or out of the filter"], ["?", "this"]];
const help = () => helping ? h("dialog", {key: "help", "aria-label": "Keys", onclose: () => { helping = false; redraw(); }, onclick: e => { if (e.target === e.currentTarget) e.currentTarget.close(); }, hook: {mount: el => requestAnimationFrame(() => el.showModal())}},
	h("h2", {style: {"margin-bottom": "10px"}}, "Keys"), h("dl", null, KEYS.map(([k, what]) => [h("dt", null, h("kbd", null, k)), h("dd", null, what)]))) : null;

addEventListener("keydown", e => {
	if (!state.self || e.ctrlKey || e.metaKey || e.altKey) return;
	const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName);
	if (e.key === "Escape") {
		if (document.querySelector("dialog[open]")) return;
		if (typing) { e.target.blur(); document.querySelector("main .grid")?.focus(); }
		else if (route().parts.length) location.hash = "#/" + route().name;
		return;
	}
	if (typing) return;
	const name = Object.keys(VIEWS)[e.key - 1];
	if (name) location.hash = "#/" + name;
	else if (e.key === "/") { e.preventDefault(); document.getElementById("search")?.focus(); }
	else if (e.key === "t") document.querySelector("main .grid")?.focus();
	else if (e.key === "?") { helping = true; redraw(); }
});

// Logging in.

let stopStatus = null;

async function enter() {
	try {
		state.self = await get(SESSION);
	} catch (e) {
		if (e instanceof Refusal) {
			keep("");
			state.problem = e.status === 401 ? "That log-in does not count, or no more." : e.message;
		} else state.problem = "The server does not answer.";
		state.self = null;
		return redraw();
	}
	if (state.self.user === "system:anonymous") {
		state.self = null;
		return redraw();
	}
	state.problem = "";
	stopStatus?.abort();
	stopStatus = new AbortController();
	watchStatus(stopStatus.signal);
	current.at = "";
	if (!/^#\//.test(location.hash)) history.replaceState(null, "", "#/overview");
	navigate();
}

// open asks for a session, by a link or by the browser's certificate.
async function open(credential) {
	try {
		const r = await send(SESSION, {method: "POST", credential, headers: {"Barque-Page": "1"}});
		keep((await r.json()).token);
	} catch (e) {
		state.problem = e instanceof Refusal ? (credential ? "This link does not count: it is good once, and for a minute. Make another one with barque ui." : "This browser shows no certificate that the cluster knows. (" + e.message + ")") : "The server does not answer.";
		return redraw();
	}
	await enter();
}

function login() {
	return h("div", {class: "login", key: "login"},
		h("div", {class: "brand"}, ship(), "Barque"),
		state.problem ? h("div", {class: "notice warn", role: "alert"}, h("span", {class: "text"}, state.problem)) : null,
		h("section", {class: "panel"}, h("header", null, h("h2", null, "By a link")), h("div", {class: "body"}, h("p", null, "On a machine with a kubeconfig, ", h("code", null, "barque ui"), " prints a link that opens this page. It is good once, and for a minute."))),
		h("section", {class: "panel"}, h("header", null, h("h2", null, "By a token")), h("form", {class: "body", onsubmit: e => {
			e.preventDefault();
			const token = e.target.elements.token.value.trim();
			e.target.reset();
			if (!token) return;
			keep(token);
			enter();
		}}, h("label", {for: "token", class: "dim"}, "A bearer token of a service account or of your provider. It stays in this tab."), h("input", {id: "token", name: "token", type: "password", autocomplete: "off", spellcheck: "false"}), h("button", {type: "submit"}, "Log in"))),
		h("section", {class: "panel"}, h("header", null, h("h2", null, "By a certificate")), h("div", {class: "body"}, h("p", {class: "dim"}, "If this browser has a client certificate of the cluster, the server has asked for it."), h("button", {onclick: () => open("")}, "Log in with the certificate"))));
}

async function begin() {
	const fragment = location.hash.slice(1);
	if (fragment.startsWith(LINK) || fragment.startsWith(HANDED)) {
		history.replaceState(null, "", location.pathname); // out of the address, and out of the history
		if (fragment.startsWith(LINK)) return open(fragment);
		keep(fragment);
	}
	if (state.credential) await enter();
	begun = true;
	redraw();
}

let begun = false;
addEventListener("hashchange", () => {
	if (/^#barque-(link|session)\./.test(location.hash)) begin();
	else navigate();
});
setInterval(() => { if (state.silent) redraw(); }, 1000);
start(document.getElementById("page"), () => state.self ? frame() : begun || state.problem ? login() : null);
begin().finally(() => { begun = true; redraw(); });
