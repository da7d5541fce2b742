package machine

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestTextsAreTheExamples: packages, examples, install and cluster join have the same.
func TestTextsAreTheExamples(t *testing.T) {
	for _, role := range Roles {
		for file, text := range map[string]string{
			"barque-" + role + ".service": unitText(role, ProgramPath, ConfigDir),
			"barque-" + role + ".openrc":  scriptText(role, ProgramPath, ConfigDir),
		} {
			example, err := os.ReadFile("../examples/" + file)
			if err != nil {
				t.Fatal(err)
			}
			want := string(example)
			if strings.HasSuffix(file, ".service") { // a comment for readers comes first
				_, rest, _ := strings.Cut(want, "[Unit]")
				want = "[Unit]" + rest
			}
			if text != want {
				t.Errorf("%s:\n%s\nwant\n%s", file, text, want)
			}
		}
	}
}

// TestTextsOfAnotherPlace: the service of another program reads other settings.
func TestTextsOfAnotherPlace(t *testing.T) {
	for _, text := range []string{unitText(Server, "/usr/bin/barque", "/srv/etc"),
		scriptText(Server, "/usr/bin/barque", "/srv/etc")} {
		for _, want := range []string{"/usr/bin/barque", "server --config /srv/etc/config.yaml "} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing in\n%s", want, text)
			}
		}
	}
}

// TestScriptIsAShells: its functions are read by a shell, and a start with wrong settings fails
// before the service is supervised.
func TestScriptIsAShells(t *testing.T) {
	script := scriptText(Agent, "/bin/false", ConfigDir)
	for _, c := range []struct {
		call string
		code int
	}{{"depend", 0}, {"start_pre", 1}} {
		const given = "need() { :; }; use() { :; }; after() { :; }; RC_SVCNAME=x\n"
		shell := exec.Command("sh", "-euc", given+script+"\n"+c.call)
		out, err := shell.CombinedOutput()
		if got := shell.ProcessState.ExitCode(); got != c.code {
			t.Errorf("%s ends with %d: %v %s", c.call, got, err, out)
		}
	}
}
