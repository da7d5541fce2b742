// Elements from descriptions, and the differences between two descriptions applied to the document.
// A view describes all that it shows, each time; patch changes what differs. Text stays text: there
// is no way from a string to markup.

const SVG = "http://www.w3.org/2000/svg";

// h describes an element. Children may be descriptions, strings, numbers, lists of these, and null
// or false for none. props.key finds an element again among its siblings, and props.hook has
// functions for elements that keep a state of their own: mount(el), update(el), unmount(el).
export function h(tag, props, ...children) {
	return {tag, props: props || {}, children: flat(children, []), el: null};
}

function flat(children, into) {
	for (const c of children) {
		if (c === null || c === undefined || c === false || c === true) continue;
		if (Array.isArray(c)) flat(c, into);
		else into.push(typeof c === "object" ? c : {text: String(c), el: null});
	}
	return into;
}

function create(v, svg) {
	if (v.text !== undefined) return v.el = document.createTextNode(v.text);
	svg = svg || v.tag === "svg";
	const el = v.el = svg ? document.createElementNS(SVG, v.tag) : document.createElement(v.tag);
	for (const name in v.props) set(el, name, v.props[name], undefined, svg);
	for (const c of v.children) el.append(create(c, svg));
	if (v.props.hook?.mount) v.props.hook.mount(el);
	return el;
}

function set(el, name, value, before, svg) {
	if (name === "key" || name === "hook" || value === before) return;
	if (name.startsWith("on")) el[name] = value || null;
	else if (name === "style") {
		for (const p in before) if (!(value && p in value)) el.style.removeProperty(p);
		for (const p in value) if (!before || before[p] !== value[p]) el.style.setProperty(p, value[p]);
	} else if ((name === "value" || name === "checked") && el.tagName !== "OPTION") {
		if (el[name] !== value) el[name] = value;
	} else if (value === null || value === undefined || value === false) el.removeAttribute(name);
	else el.setAttribute(name, value === true ? "" : value);
}

function drop(v) {
	if (v.children) for (const c of v.children) drop(c);
	if (v.props?.hook?.unmount) v.props.hook.unmount(v.el);
}

const same = (a, b) => a.tag === b.tag && (a.text === undefined) === (b.text === undefined) && a.props?.key === b.props?.key;

function update(before, now, svg) {
	const el = now.el = before.el;
	if (now.text !== undefined) {
		if (before.text !== now.text) el.data = now.text;
		return;
	}
	svg = svg || now.tag === "svg";
	for (const name in before.props) if (!(name in now.props)) set(el, name, undefined, before.props[name], svg);
	for (const name in now.props) set(el, name, now.props[name], before.props[name], svg);
	children(el, before.children, now.children, svg);
	if (now.props.hook?.update) now.props.hook.update(el);
}

function children(parent, before, now, svg) {
	let start = 0;
	while (start < before.length && start < now.length && same(before[start], now[start])) {
		update(before[start], now[start], svg);
		start++;
	}
	const keyed = new Map(), rest = [];
	for (let i = start; i < before.length; i++) {
		const key = before[i].props?.key;
		if (key !== undefined) keyed.set(key, before[i]);
		else rest.push(before[i]);
	}
	let at = start ? now[start - 1].el.nextSibling : parent.firstChild;
	for (let i = start; i < now.length; i++) {
		const v = now[i], key = v.props?.key;
		let old;
		if (key !== undefined) {
			old = keyed.get(key);
			if (old && same(old, v)) keyed.delete(key);
			else old = undefined;
		} else {
			const n = rest.findIndex(r => same(r, v));
			if (n >= 0) old = rest.splice(n, 1)[0];
		}
		if (old) update(old, v, svg);
		else create(v, svg);
		if (v.el === at) at = at.nextSibling;
		else parent.insertBefore(v.el, at);
	}
	for (const gone of [...keyed.values(), ...rest]) {
		drop(gone);
		gone.el.remove();
	}
}

// root draws descriptions into an element. redraw draws once before the next frame, however often it
// is called.
export function root(el, view) {
	let before = [], due = false;
	const draw = () => {
		due = false;
		const now = flat([view()], []);
		children(el, before, now, false);
		before = now;
	};
	return () => {
		if (due) return;
		due = true;
		// A page in the background gets no frames, and is up to date when it comes to the front.
		if (document.hidden) setTimeout(draw, 250);
		else requestAnimationFrame(draw);
	};
}
