// Sources of rows for the kinds of objects, and what their rows have. Lists of large kinds are asked
// for as tables, which the server makes: the browser gets the columns and no objects.

import {follow, redraw} from "./api.js";
import {h} from "./dom.js";
import {age} from "./format.js";

const TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io";
export const METADATA = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

// tables follows a resource as a table.
export function tables(path, signal) {
	return follow(path, {signal, accept: TABLE, form: item => {
		const meta = item.object.metadata;
		return {key: (meta.namespace ? meta.namespace + "/" : "") + meta.name, ns: meta.namespace || "", name: meta.name, made: meta.creationTimestamp, going: !!meta.deletionTimestamp, cells: item.cells};
	}});
}

// cell returns a row's cell by the name of the server's column.
export function cell(source, row, name) {
	const i = source.columns.findIndex(c => c.name === name);
	return i < 0 ? "" : row.cells[i];
}

const BAD = /Error|CrashLoop|BackOff|Failed|Evicted|OOMKilled|NotReady|Unknown|Invalid|Lost|Refused|DeadlineExceeded|ContainerStatusUnknown|False/;
const WAITS = /Pending|Creating|Init:|Terminating|SchedulingDisabled|Progressing|Waiting|PodInitializing|NotReady$/;

// tone is good, warn or bad for a word of status, and empty for all others.
export function tone(text) {
	text = String(text);
	if (BAD.test(text) && text !== "False") return "bad";
	if (WAITS.test(text)) return "warn";
	return "";
}

export const status = text => h("span", {class: tone(text) || null}, text);

// part shows "2/3", marked while it is not whole.
export const part = (text, ill = "warn") => {
	const [is, of] = String(text).split("/");
	return h("span", {class: of !== undefined && is !== of ? ill : null}, text);
};

export const ageColumn = {name: "Age", value: r => age(r.made), sort: r => -new Date(r.made), width: "7ch", num: true, plain: true, narrow: false};
export const nameColumn = {name: "Name", value: r => r.name, width: "minmax(22ch, 2fr)"};
export const spaceColumn = {name: "Namespace", value: r => r.ns, width: "minmax(11ch, 1fr)"};

// A clock for ages: each view is drawn at least every five seconds.
setInterval(() => { if (!document.hidden) redraw(); }, 5000);
