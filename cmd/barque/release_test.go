package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/barque/barque/cmd/barque/settings"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/release/licenses"
)

// Each command that users see has a manual page, which is the same on any machine.
func TestManPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1796054400") // 2026-11-30T16:00:00Z
	dir := t.TempDir()
	cmd := root()
	if err := writeManPages(cmd, dir); err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	pages := 0
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%s has no page: %v", c.CommandPath(), err)
		}
		pages++
		if !bytes.Contains(page, []byte(`"Nov 2026"`)) {
			t.Errorf("%s has not the date of the sources:\n%.300s", name, page)
		}
		if len(host) > 3 && bytes.Contains(page, []byte(host)) {
			t.Errorf("%s names this machine, %s", name, host)
		}
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				check(sub)
			}
		}
	}
	check(cmd)
	if pages < 50 {
		t.Errorf("only %d pages were looked at", pages)
	}
}

// The settings of a package are valid as they are, and so is each that is commented out.
func TestPackagedSettings(t *testing.T) {
	text, err := os.ReadFile("../../release/package/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := loadSettings(t, string(text)); err != nil {
		t.Errorf("as it is: %v", err)
	}
	commented := regexp.MustCompile(`(?m)^# ([a-z0-9-]+:( .+)?|  - \S+)$`)
	if n := len(commented.FindAll(text, -1)); n < 8 {
		t.Errorf("only %d settings are commented out", n)
	}
	if err := loadSettings(t, string(commented.ReplaceAll(text, []byte("$1")))); err != nil {
		t.Errorf("with all settings: %v", err)
	}
}

func loadSettings(t *testing.T, text string) error {
	t.Helper()
	var failed error
	for _, role := range []string{roleServer, roleAgent} {
		c := &cobra.Command{}
		addRoleFlags(c, role)
		_, err := settings.Load(c.Flags(), settingsOf(role), settingsIn(t, text), nil)
		failed = errors.Join(failed, err)
	}
	return failed
}

func TestLicenses(t *testing.T) {
	run := func(args ...string) (string, error) {
		cmd := root()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetArgs(append([]string{"licenses"}, args...))
		err := cmd.Execute()
		return out.String(), err
	}
	text, err := run()
	if errors.Is(err, licenses.ErrNotBuilt) {
		needs.Missing(t, "the licence texts in the binary (make licenses)", "that barque licenses prints them")
	}
	const module = "github.com/hashicorp/raft v"
	if err != nil || !strings.Contains(text, "Apache License") || !strings.Contains(text, module) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	names, err := run("--names")
	if err != nil || strings.Contains(names, "Apache License") || !strings.Contains(names, module) {
		t.Errorf("%d bytes of names, %v", len(names), err)
	}
}
