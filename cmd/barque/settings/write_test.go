package settings

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestLinesAreReadBack: each value comes back as it was given, also one that YAML reads as another
// type.
func TestLinesAreReadBack(t *testing.T) {
	for _, value := range []string{"/srv/a", "0640", "true", "on", "null", "~", "", "a: b", "# c", "it's", `"q"`, "a,b",
		"memory.available<1Gi", "x\ny", " spaces ", "*a", "&a", "!t", "%d", "@", "`", "- a", "[a", "{a", "é", "1e3"} {
		m := newMachine(t)
		lines, err := Lines([]Setting{{Name: "data-dir", Values: []string{value}},
			{Name: "node-label", Values: []string{value, "b"}, List: true}})
		if err != nil {
			t.Fatal(err)
		}
		m.write("config.yaml", string(lines))
		if _, err := m.load(); err != nil || *m.dir != value || !reflect.DeepEqual(*m.labels, []string{value, "b"}) {
			t.Errorf("%q is written as\n%s\nand read as %q and %q: %v", value, lines, *m.dir, *m.labels, err)
		}
	}
	lines, err := Lines([]Setting{{Name: "no-node", Values: []string{"true"}},
		{Name: "tls-san", Values: []string{"a", "b"}, List: true}})
	if want := "no-node: true\ntls-san: [a, b]\n"; err != nil || string(lines) != want {
		t.Errorf("a plain value is written as %q: %v", lines, err)
	}
}

// TestOf: a flag becomes the setting that sets it.
func TestOf(t *testing.T) {
	m := newMachine(t)
	if err := m.flags.Parse([]string{"--tls-san=a,b", "--api-port=7443"}); err != nil {
		t.Fatal(err)
	}
	var all []Setting
	for _, name := range []string{"api-port", "tls-san"} {
		all = append(all, Of(m.flags.Lookup(name)))
	}
	want := []Setting{{Name: "api-port", Values: []string{"7443"}},
		{Name: "tls-san", Values: []string{"a", "b"}, List: true}}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("%+v, want %+v", all, want)
	}
}

// TestAppend: the lines of a user stay as they are, and a text that takes no more lines is refused.
func TestAppend(t *testing.T) {
	more := []Setting{{Name: "data-dir", Values: []string{"/a"}}}
	for text, want := range map[string]string{
		"":                         "data-dir: /a\n",
		"# mine\n":                 "# mine\ndata-dir: /a\n",
		"# mine\napi-port: 1 # x":  "# mine\napi-port: 1 # x\ndata-dir: /a\n",
		"---\ntls-san:\n  - a\n":   "---\ntls-san:\n  - a\ndata-dir: /a\n",
		"---\napi-port: 1\n...\n":  "",
		"{api-port: 1}\n":          "",
		"data-dir: /b\n":           "",
		"tls-san: |\n  a\n\n  b\n": "tls-san: |\n  a\n\n  b\ndata-dir: /a\n",
	} {
		got, err := Append("config.yaml", []byte(text), more)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%q becomes %q: %v", text, got, err)
		}
		if err != nil && !strings.Contains(err.Error(), "data-dir: /a\n") {
			t.Errorf("the error lacks the lines: %v", err)
		}
	}
	if got, err := Append(os.DevNull, []byte("# mine"), nil); err != nil || string(got) != "# mine" {
		t.Errorf("nothing more: %q %v", got, err)
	}
}
