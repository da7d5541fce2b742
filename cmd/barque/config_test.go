package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/settings"
)

// settingsIn writes a file of settings, and returns its name.
func settingsIn(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Every flag of a node is a setting by its name, but for secrets and for what is done once.
func TestEveryFlagIsASetting(t *testing.T) {
	for _, role := range []string{roleServer, roleAgent} {
		model := &cobra.Command{}
		addRoleFlags(model, role)
		kind, tried := settingsOf(role), 0
		model.Flags().VisitAll(func(f *pflag.Flag) {
			value := "x"
			switch f.Value.Type() {
			case "bool":
				value = "true"
			case "duration":
				value = "7m"
			case "int", "int32", "int64", "uint", "uint16", "uint32", "uint64", "float64":
				value = "7"
			}
			c := &cobra.Command{}
			addRoleFlags(c, role)
			_, err := settings.Load(c.Flags(), kind, settingsIn(t, f.Name+": "+value+"\n"), nil)
			_, secret := kind.Secret[f.Name]
			if secret || slices.Contains(kind.Acts, f.Name) {
				if err == nil {
					t.Errorf("%s: %s of a file is taken", role, f.Name)
				}
				return
			}
			if err != nil && !strings.Contains(err.Error(), "invalid argument") {
				t.Errorf("%s: %s: %v", role, f.Name, err)
			}
			if err == nil && !c.Flags().Changed(f.Name) {
				t.Errorf("%s: %s does not reach its flag", role, f.Name)
			}
			tried++
		})
		if tried < 50 {
			t.Errorf("%s: only %d flags were tried", role, tried)
		}
	}
}

func TestExampleOfSettings(t *testing.T) {
	out, err := run(t, "config", "check", "../../examples/server-config.yaml")
	if err != nil || !strings.Contains(out, "would start with it") {
		t.Errorf("%v: %q", err, out)
	}
	out, err = run(t, "config", "show", "server", "--config", "../../examples/server-config.yaml", "--data-dir", "/srv")
	for _, want := range []string{"SETTING", "server-config.yaml:", "disk=ssd, topology.kubernetes.io/region=north",
		"the command line"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%q is missing: %v:\n%s", want, err, out)
		}
	}
}

func TestSettingsShowNoSecret(t *testing.T) {
	out, err := run(t, "config", "show", "server", "--config=none", "--join=https://10.0.0.1:6443", "--token=very.secret")
	if err != nil || strings.Contains(out, "very") || !strings.Contains(out, "(secret)") {
		t.Errorf("%v: %q", err, out)
	}
}

// A setting in a file is checked as the flag is, with exit code 2: a supervisor must not try again.
func TestWrongSettings(t *testing.T) {
	for _, c := range []struct{ role, file, want string }{
		{roleServer, "tls-sna: [a]", "did you mean tls-san?"},
		{roleServer, "token: abc", "token-file"},
		{roleServer, "name: ''", "--name is empty"},
		{roleServer, "data-dir: /a\nzone: ''", "--zone is empty"},
		{roleServer, "cluster-cidr: 10.0.0.0", "cluster-cidr"},
		{roleAgent, "rejoin: true", "is done once"},
		{roleAgent, "log-level: loud", "loud"},
	} {
		_, err := run(t, c.role, "--config", settingsIn(t, c.file))
		var wrong *command.UsageError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %q: %v, want %q", c.role, c.file, err, c.want)
		}
		if _, err := run(t, "config", "check", "--role", c.role, settingsIn(t, c.file)); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("config check of %q: %v, want %q", c.file, err, c.want)
		}
	}
}

func TestSettingsOfTheOtherRole(t *testing.T) {
	file := settingsIn(t, "join: https://10.0.0.1:6443\ncluster-cidr: 10.1.0.0/16\nhttps-listen-port: 7443\nnode-name: n\n")
	cmd, both := root(), new(strings.Builder)
	cmd.SetArgs([]string{"config", "show", "agent", "--config", file})
	cmd.SetOut(both)
	cmd.SetErr(both)
	err := cmd.ExecuteContext(t.Context())
	out := both.String()
	for _, want := range []string{"cluster-cidr has no effect on `barque agent`", "server", "https://10.0.0.1:6443",
		"api-port", "7443", "name"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%q is missing: %v:\n%s", want, err, out)
		}
	}
}

func TestVariableNamesTheFile(t *testing.T) {
	t.Setenv("BARQUE_CONFIG", settingsIn(t, "zone: north"))
	t.Setenv("BARQUE_NODE_LABEL", "disk=ssd")
	out, err := run(t, "config", "show", "agent")
	if err != nil || !strings.Contains(out, "north") || !strings.Contains(out, "BARQUE_NODE_LABEL") {
		t.Errorf("%v:\n%s", err, out)
	}
	t.Setenv("BARQUE_CONFIG", settings.None)
	out, err = run(t, "config", "show", "agent")
	if err != nil || !strings.Contains(out, "everything has its default") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// A check of a file that is not there has checked nothing.
func TestCheckOfNoFile(t *testing.T) {
	for _, file := range []string{settings.None, filepath.Join(t.TempDir(), "config.yaml")} {
		if out, err := run(t, "config", "check", file); err == nil {
			t.Errorf("%s: %q", file, out)
		}
	}
}
