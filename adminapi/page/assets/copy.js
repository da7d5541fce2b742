// Copying a command.

import {redraw} from "./api.js";
import {h} from "./dom.js";

let copied = "";

// note is a button that copies a text.
export const note = text => h("button", {onclick: async () => {
	try {
		await navigator.clipboard.writeText(text);
		copied = text;
	} catch { copied = ""; }
	redraw();
	setTimeout(() => { copied = ""; redraw(); }, 2000);
}}, copied === text ? "Copied" : "Copy");
