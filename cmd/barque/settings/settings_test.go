package settings

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// machine has a file of settings, drop-ins and flags.
type machine struct {
	*testing.T
	file    string
	flags   *pflag.FlagSet
	dir     *string
	port    *uint16
	off     *bool
	every   *time.Duration
	labels  *[]string
	sans    *[]string
	token   *string
	tokenIn *string
}

func newMachine(t *testing.T) *machine {
	f := pflag.NewFlagSet("server", pflag.ContinueOnError)
	m := &machine{T: t, file: filepath.Join(t.TempDir(), "config.yaml"), flags: f,
		dir: f.String("data-dir", "/var/lib/barque", ""), port: f.Uint16("api-port", 6443, ""),
		off: f.Bool("no-node", false, ""), every: f.Duration("snapshot-every", time.Hour, ""),
		labels: f.StringArray("node-label", nil, ""), sans: f.StringSlice("tls-san", []string{"first"}, ""),
		token: f.String("token", "", ""), tokenIn: f.String("token-file", "", "")}
	f.Bool("wipe", false, "")
	f.String("config", "", "")
	return m
}

func (m *machine) write(name, text string) {
	m.Helper()
	path := filepath.Join(filepath.Dir(m.file), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.Fatal(err)
	}
}

// kind is that of the machine's command.
var kind = Kind{
	Aliases: map[string]string{"node-name": "data-dir"},
	Secret:  map[string]string{"token": "token-file"},
	Acts:    []string{"wipe"},
	Own:     []string{"config"},
	Foreign: func(name string) bool { return name == "rejoin" },
}

func (m *machine) load(environment ...string) (*Loaded, error) {
	return Load(m.flags, kind, m.file, environment)
}

func TestALaterPlaceCounts(t *testing.T) {
	for _, c := range []struct {
		name                 string
		line                 []string
		file, first, second  string
		environment          []string
		want                 string
		from                 string
		wantSANs, wantLabels []string
	}{
		{name: "default", file: "no-node: true", want: "/var/lib/barque"},
		{name: "file", file: "data-dir: /a", want: "/a", from: "config.yaml:1"},
		{name: "drop-in over file", file: "data-dir: /a", first: "# c\ndata-dir: /b", want: "/b",
			from: "10.yaml:2"},
		{name: "later drop-in", first: "data-dir: /b", second: "data-dir: /c", file: "data-dir: /a", want: "/c",
			from: "20.yaml:1"},
		{name: "variable over file", file: "data-dir: /a", environment: []string{"BARQUE_DATA_DIR=/v"}, want: "/v",
			from: "the variable BARQUE_DATA_DIR"},
		{name: "flag over variable", line: []string{"--data-dir=/l"}, file: "data-dir: /a",
			environment: []string{"BARQUE_DATA_DIR=/v"}, want: "/l"},
		{name: "alias of a variable", file: "{}", environment: []string{"BARQUE_NODE_NAME=/n"}, want: "/n",
			from: "the variable BARQUE_NODE_NAME"},
		{name: "other variables", file: "{}",
			environment: []string{"BARQUE_BIN=/x", "barque_data_dir=/y", "DATA_DIR=/z"}, want: "/var/lib/barque"},
		{name: "alias", file: "node-name: /n", want: "/n", from: "config.yaml:1"},
		{name: "lists replace", file: "tls-san: [a, b]", first: "tls-san:\n- c", want: "/var/lib/barque",
			wantSANs: []string{"c"}},
		{name: "plus appends", file: "tls-san: [a]", first: "tls-san+: b", second: "tls-san+: [c]",
			want: "/var/lib/barque", wantSANs: []string{"a", "b", "c"}},
		{name: "plus appends to the default", file: "tls-san+: [a]", want: "/var/lib/barque",
			wantSANs: []string{"first", "a"}},
		{name: "a flag replaces the list", line: []string{"--tls-san=x"}, file: "tls-san: [a]", first: "tls-san+: [b]",
			want: "/var/lib/barque", wantSANs: []string{"x"}},
		{name: "a text is split as the flag splits it", file: "tls-san: a,b\nnode-label: x=1,2",
			want: "/var/lib/barque", wantSANs: []string{"a", "b"}, wantLabels: []string{"x=1,2"}},
		{name: "a variable with a list", file: "{}", environment: []string{"BARQUE_TLS_SAN=a,b"},
			want: "/var/lib/barque", wantSANs: []string{"a", "b"}},
		{name: "an element keeps its comma", file: `tls-san: ["a,b"]`, want: "/var/lib/barque",
			wantSANs: []string{"a,b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.write("config.yaml", c.file)
			m.write("config.yaml.d/10.yaml", c.first)
			m.write("config.yaml.d/20.yaml", c.second)
			m.write("config.yaml.d/30.yaml.old", "data-dir: /old")
			if err := m.flags.Parse(c.line); err != nil {
				t.Fatal(err)
			}
			got, err := m.load(c.environment...)
			if err != nil {
				t.Fatal(err)
			}
			if *m.dir != c.want {
				t.Errorf("data-dir is %s, want %s", *m.dir, c.want)
			}
			from := ""
			if origin, has := got.Origins["data-dir"]; has {
				from = origin.String()
			}
			if !strings.HasSuffix(from, c.from) || (from == "") != (c.from == "") {
				t.Errorf("it comes from %q, want %q", from, c.from)
			}
			if c.wantSANs != nil && !reflect.DeepEqual(*m.sans, c.wantSANs) {
				t.Errorf("tls-san is %q, want %q", *m.sans, c.wantSANs)
			}
			if c.wantLabels != nil && !reflect.DeepEqual(*m.labels, c.wantLabels) {
				t.Errorf("node-label is %q, want %q", *m.labels, c.wantLabels)
			}
		})
	}
}

func TestScalarsAreTakenAsWritten(t *testing.T) {
	m := newMachine(t)
	m.write("config.yaml", "data-dir: 0640\napi-port: 7443\nno-node: true\nsnapshot-every: 90m\nnode-label: [a=on, b=1.10]\n")
	if _, err := m.load(); err != nil {
		t.Fatal(err)
	}
	if *m.dir != "0640" || *m.port != 7443 || !*m.off || *m.every != 90*time.Minute ||
		!reflect.DeepEqual(*m.labels, []string{"a=on", "b=1.10"}) {
		t.Errorf("got %s %d %t %v %q", *m.dir, *m.port, *m.off, *m.every, *m.labels)
	}
	if !m.flags.Changed("node-label") || !m.flags.Changed("api-port") || m.flags.Changed("tls-san") {
		t.Error("flags that a file sets must count as given, and no others")
	}
}

func TestAWrongFileIsRefusedWithItsPlace(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"like a setting", "# c\ndata-dirr: /a", "config.yaml:2: data-dirr is no setting; did you mean data-dir?"},
		{"like nothing", "whatever-else: 1", "config.yaml:1: whatever-else is no setting; `barque config show server --all`"},
		{"twice", "api-port: 1\napi-port: 2", "config.yaml:2: api-port is set again; line 1 has it already"},
		{"twice, by two names", "data-dir: /a\nnode-name: b",
			"config.yaml:2: node-name is the same setting as data-dir, which line 1 has already"},
		{"no value", "data-dir:", "config.yaml:1: data-dir: it has no value"},
		{"a list for one value", "data-dir: [a]", "config.yaml:1: data-dir: it takes one value, and no list"},
		{"appended to one value", "data-dir+: a", "config.yaml:1: data-dir+: it takes one value: nothing can be appended"},
		{"a map", "node-label: {a: b}", "config.yaml:1: node-label: want a value or a list; key=value is one element"},
		{"a list in a list", "node-label: [[a]]", "config.yaml:1: node-label: line 1: want a text in the list"},
		{"no number", "api-port: many", `config.yaml:1: api-port: invalid argument "many" for "--api-port" flag`},
		{"a secret", "token: abc", "config.yaml:1: token is a secret"},
		{"an act", "wipe: true", "config.yaml:1: wipe is done once"},
		{"the file's own name", "config: x", "config.yaml:1: config is no setting"},
		{"no settings", "- a", "config.yaml:1: want one setting on each line"},
		{"no YAML", "a: [", "config.yaml: yaml: line 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t)
			m.write("config.yaml", c.file)
			_, err := m.load()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "abc") {
				t.Errorf("the error has the secret: %v", err)
			}
		})
	}
}

func TestPlacesOfAListAreInTheirOrder(t *testing.T) {
	m := newMachine(t)
	m.write("config.yaml", "tls-san: [a]")
	m.write("config.yaml.d/1.yaml", "tls-san+: [b]")
	m.write("config.yaml.d/2.yaml", "tls-san+: [c]")
	got, err := m.load()
	if err != nil {
		t.Fatal(err)
	}
	want := m.file + ":1 and " + m.file + ".d/1.yaml:1 and " + m.file + ".d/2.yaml:1"
	if from := got.Origins["tls-san"].String(); from != want {
		t.Errorf("got %s, want %s", from, want)
	}
}

func TestAllFaultsAreReportedAtOnce(t *testing.T) {
	m := newMachine(t)
	m.write("config.yaml", "data-dirr: /a\napi-port: x")
	m.write("config.yaml.d/a.yaml", "tls-sans: [x]")
	_, err := m.load("BARQUE_TOKEN=abc")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"data-dirr", "api-port", "a.yaml:1: tls-sans is no setting; did you mean tls-san?",
		"the variable BARQUE_TOKEN: BARQUE_TOKEN is a secret"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}

func TestAMissingFile(t *testing.T) {
	m := newMachine(t)
	if _, err := m.load(); err == nil {
		t.Error("a named file that is not there was taken")
	}
	m.file = None
	if _, err := m.load("BARQUE_DATA_DIR=/v"); err != nil || *m.dir != "/var/lib/barque" {
		t.Errorf("none read a variable: %v, %s", err, *m.dir)
	}
}

func TestATokenOfTheLineTakesThePlaceOfItsFile(t *testing.T) {
	m := newMachine(t)
	m.write("config.yaml", "token-file: /etc/barque/token")
	if err := m.flags.Parse([]string{"--token=abc"}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.load(); err != nil || *m.tokenIn != "" {
		t.Errorf("token-file is %q beside --token, %v", *m.tokenIn, err)
	}
}

func TestSettingsOfAnotherCommandHaveNoEffect(t *testing.T) {
	m := newMachine(t)
	m.write("config.yaml", "rejoin: true")
	got, err := m.load()
	if err != nil || got.Unused["rejoin"].Line != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"data-dir: /a", "a+: [b, c]", "&a b: *a", "a: {b: c}", "? [a]\n: b", "--- a\n--- b",
		"<<: {a: b}", "\x00", "a: &x [*x]"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, err := parse("config.yaml", data)
		if err != nil {
			return
		}
		for _, e := range entries {
			if e.from.Line < 1 || e.isList && e.scalar != "" {
				t.Errorf("%q gave %+v", data, e)
			}
		}
	})
}
