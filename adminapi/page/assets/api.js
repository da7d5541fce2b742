// The API of the server that has served this page, with the credential of this tab.
//
// The credential is in the tab's session storage, and in no cookie: cookies go to every port of a
// host, so also to what somebody's pod serves at a port of the node.

import {root} from "./dom.js";

const STORE = "barque.credential";

export const state = {
	credential: sessionStorage.getItem(STORE) || "",
	self: null, // the answer of SESSION
	problem: "", // why the log-in failed
	silent: 0, // since when the server does not answer; 0 while it does
	now: Date.now(),
};

export const SESSION = "/barque/v1/page/session";

let draw = () => {};
export const redraw = () => draw();
export const start = (el, view) => { draw = root(el, view); draw(); };

export function keep(credential) {
	state.credential = credential;
	if (credential) sessionStorage.setItem(STORE, credential);
	else sessionStorage.removeItem(STORE);
}

export class Refusal extends Error {
	constructor(status, message) {
		super(message);
		this.status = status;
	}
}

async function refusal(response) {
	let text = await response.text().catch(() => "");
	try {
		const is = JSON.parse(text);
		text = is.message || text;
	} catch {}
	return new Refusal(response.status, text.trim() || response.statusText || "status " + response.status);
}

// send makes a request and returns the response, whose headers have come. It throws a Refusal for
// another status than 200, and a TypeError without a server.
export async function send(path, options = {}) {
	const headers = {Accept: "application/json", ...options.headers};
	const credential = options.credential ?? state.credential;
	if (credential) headers.Authorization = "Bearer " + credential;
	let response;
	try {
		response = await fetch(path, {cache: "no-store", credentials: "same-origin", ...options, headers});
	} catch (e) {
		if (e.name !== "AbortError" && !state.silent) {
			state.silent = Date.now();
			redraw();
		}
		throw e;
	}
	if (state.silent) {
		state.silent = 0;
		redraw();
	}
	if (response.status === 401 && credential && credential === state.credential && state.self) await ended();
	if (!response.ok) throw await refusal(response);
	return response;
}

export const get = async (path, options) => (await send(path, options)).json();

// ended asks once more before the tab is logged out: while there is no leader, a server may not know.
let asking = null;
function ended() {
	return asking ||= (async () => {
		try {
			const r = await fetch(SESSION, {cache: "no-store", headers: {Authorization: "Bearer " + state.credential}});
			if (r.status === 401) {
				keep("");
				state.self = null;
				state.problem = "The session has ended.";
				redraw();
			}
		} catch {} finally { asking = null; }
	})();
}

// wait ends after some milliseconds, or at once when the signal is aborted.
export const wait = (ms, signal) => new Promise(done => {
	const timer = setTimeout(done, ms);
	signal?.addEventListener("abort", () => { clearTimeout(timer); done(); }, {once: true});
});

const shown = signal => document.hidden && !signal.aborted
	? new Promise(done => {
		document.addEventListener("visibilitychange", done, {once: true});
		signal.addEventListener("abort", done, {once: true});
	}) : null;

// poll calls a function again and again while the page is in front. The result is a source: data, and
// error, the reason why there is none, or why it is old.
export function poll(every, signal, ask) {
	const source = {data: null, error: null, at: 0};
	(async () => {
		while (!signal.aborted) {
			const timely = AbortSignal.any([signal, AbortSignal.timeout(12000)]);
			try {
				source.data = await ask(timely);
				source.at = Date.now();
				source.error = null;
			} catch (e) {
				if (signal.aborted) return;
				source.error = e;
			}
			redraw();
			await wait(source.error ? Math.min(every, 1000) : every, signal);
			await shown(signal);
		}
	})();
	return source;
}

// lines calls a function with each line of a response, as they come.
export async function lines(response, take) {
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = "";
	for (;;) {
		const {value, done} = await reader.read();
		if (done) break;
		rest += value;
		const all = rest.split("\n");
		rest = all.pop();
		for (const line of all) take(line);
	}
	if (rest) take(rest);
}

// PAGE is the number of objects in a page of a list.
const PAGE = 500;

// follow lists objects by pages and watches them. The result is a source: rows by key, complete, and
// error. form makes a row of an object or of a row of a table; only rows are kept, not objects.
export function follow(path, {signal, accept, form, limit = Infinity}) {
	const source = {rows: new Map(), columns: [], complete: false, cut: false, error: null, version: 0};
	const headers = {Accept: accept || "application/json"};
	const query = path.includes("?") ? "&" : "?";
	let redrawing = false, version = ""; // up to where the rows are
	const changed = () => {
		source.version++;
		if (redrawing) return;
		redrawing = true;
		setTimeout(() => { redrawing = false; redraw(); }, 100);
	};
	const items = object => {
		if (object.columnDefinitions?.length) source.columns = object.columnDefinitions;
		return object.rows || object.items || [];
	};
	async function list() {
		const rows = new Map();
		let next = "", at = "";
		do {
			const page = await get(path + query + "limit=" + PAGE + (next ? "&continue=" + encodeURIComponent(next) : ""), {signal, headers});
			for (const item of items(page)) {
				const row = form(item);
				rows.set(row.key, row);
			}
			next = page.metadata.continue || "";
			at = page.metadata.resourceVersion;
			source.cut = next !== "" && rows.size >= limit;
			if (!source.complete) { // the first pages are shown while the others come
				source.rows = rows;
				changed();
			}
		} while (next && rows.size < limit);
		source.rows = rows;
		source.complete = true;
		source.error = null;
		changed();
		return at;
	}
	async function watch() {
		const response = await send(path + query + "watch=1&allowWatchBookmarks=true&resourceVersion=" + version, {signal, headers});
		source.error = null;
		await lines(response, line => {
			const {type, object} = JSON.parse(line);
			if (type === "ERROR") {
				version = ""; // what comes next is unknown: list again
				return;
			}
			for (const item of object.rows || (object.kind === "Table" ? [] : [object])) {
				const meta = item.object?.metadata || item.metadata;
				if (meta?.resourceVersion && version) version = meta.resourceVersion;
				if (type === "BOOKMARK") continue;
				const row = form(item);
				if (type === "DELETED") source.rows.delete(row.key);
				else if (source.rows.has(row.key) || source.rows.size < limit) source.rows.set(row.key, row);
			}
			if (object.metadata?.resourceVersion && version) version = object.metadata.resourceVersion;
			if (type !== "BOOKMARK") changed();
		});
	}
	(async () => {
		while (!signal.aborted) {
			try {
				if (!version) version = await list();
				const began = Date.now();
				await watch();
				if (Date.now() - began < 1000) await wait(1000, signal);
			} catch (e) {
				if (signal.aborted) return;
				source.error = e;
				if (e.status === 410) version = "";
				redraw();
				await wait(e.status === 403 ? 30000 : 1000, signal);
			}
		}
	})();
	return source;
}
