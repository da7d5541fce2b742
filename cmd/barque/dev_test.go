package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/barque/barque/devcluster"
)

// TestDevCommandLine: a proposed command works unchanged, from the user's directory.
func TestDevCommandLine(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	t.Setenv("SUDO_UID", "")
	program := os.Args[0]
	for dir, want := range map[string]string{
		filepath.Join(here, devcluster.DefaultDir): " dev exec s1 -- ls",
		filepath.Join(here, "x", "c"):              " dev exec s1 --dir x/c -- ls",
		filepath.Join(here, "of mine"):             " dev exec s1 --dir 'of mine' -- ls",
		filepath.Join(here, "..x"):                 " dev exec s1 --dir ..x -- ls",
		filepath.Dir(here) + "/elsewhere":          " dev exec s1 --dir " + filepath.Dir(here) + "/elsewhere -- ls",
		filepath.Dir(here) + "/it's $elsewhere": " dev exec s1 --dir '" + filepath.Dir(here) +
			`/it'\''s $elsewhere' -- ls`,
	} {
		if got := devcluster.CommandLine(dir, "exec", "s1", "--", "ls"); got != program+want {
			t.Errorf("%s: %q, want %q", dir, got, want)
		}
	}
	t.Setenv("SUDO_UID", "1000")
	if got, want := devcluster.CommandLine(filepath.Join(here, devcluster.DefaultDir), "heal"),
		"sudo "+program+" dev heal"; got != want {
		t.Errorf("called by sudo: %q, want %q", got, want)
	}
}

// TestDevAdvice: commands in dev messages have the directory and, if only the command line has it,
// the name.
func TestDevAdvice(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	t.Setenv("SUDO_UID", "")
	program := os.Args[0]
	plan, err := json.Marshal(
		devcluster.Plan{Name: "mine", Dir: filepath.Join(here, "c"), Complete: true,
			Nodes: []devcluster.Node{{Name: "s1", Role: devcluster.Server}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir("c", 0o755), os.WriteFile("c/dev.json", plan, 0o600), os.Mkdir("damaged", 0o755),
		os.WriteFile("damaged/dev.json", []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for line, says := range map[string]string{
		"kill s1 --dir c":         "`" + program + " dev kill --machine s1 --dir c` ends its pods, too",
		"pause s1 --dir c":        "`" + program + " dev start s1 --dir c` starts it",
		"status --dir none":       "`" + program + " dev up --dir none` makes one",
		"status --dir damaged":    "`" + program + " dev down --name NAME --dir damaged` removes",
		"start --wipe s1 --dir c": "no other server is ready",
	} {
		if _, err := run(t, append([]string{"dev"}, strings.Fields(line)...)...); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("dev %s: %v; want %q", line, err, says)
		}
	}
}

// TestDevName: all dev commands take the same flags, and none changes a cluster of another name
// than the given one.
func TestDevName(t *testing.T) {
	dir := t.TempDir()
	plan, err := json.Marshal(devcluster.Plan{Name: "mine", Dir: dir, Complete: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "dev.json"), plan, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"up", "down", "status", "kill s1", "start s1", "stop s1", "pause s1", "resume s1",
		"partition s1", "heal", "exec s1 true"} {
		_, err := run(t, append(strings.Fields("dev "+line), "--dir", dir, "--name", "other")...)
		if exitCode(err) != 2 || !strings.Contains(err.Error(), `is named "mine", not "other"`) {
			t.Errorf("dev %s: exit code %d, %v", line, exitCode(err), err)
		}
	}
	for _, line := range []string{"kill s9", "start s9", "stop s9", "pause s9", "resume s9", "partition s9",
		"exec s9 true", "status -o xml"} {
		if _, err := run(t,
			append(strings.Fields("dev "+line), "--dir", dir, "--name", "mine")...); exitCode(err) != 2 ||
			strings.Contains(err.Error(), "is named") {
			t.Errorf("dev %s: exit code %d, %v", line, exitCode(err), err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 2 { // the plan and its lock
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestDevNodes: commands take several nodes, look at all names before they begin, and say at the
// first failure which nodes are left.
func TestDevNodes(t *testing.T) {
	here := t.TempDir()
	t.Chdir(here)
	plan, err := json.Marshal(devcluster.Plan{Name: "mine", Dir: filepath.Join(here, "c"), Complete: true,
		Nodes: []devcluster.Node{{Name: "s1", Role: devcluster.Server}, {Name: "s2", Role: devcluster.Server}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir("c", 0o755), os.WriteFile("c/dev.json", plan, 0o600)); err != nil {
		t.Fatal(err)
	}
	for line, says := range map[string]string{
		"kill --dir c":             "want one or more arguments (NODE…), got 0",
		"kill s1 s2 --dir c":       "; not killed: s2",
		"pause s1 s2 --dir c":      "; not paused: s2",
		"stop s1 s9 --dir c":       "s9",
		"start s1 s2 s1 --dir c":   "s1 is named twice",
		"resume s1 s2 --dir other": "there is no dev cluster",
	} {
		out, err := run(t, append([]string{"dev"}, strings.Fields(line)...)...)
		if err == nil || !strings.Contains(err.Error(), says) || out != "" {
			t.Errorf("dev %s: %q, %v; want %q", line, out, err, says)
		}
	}
	if out, err := run(t, "dev", "stop", "s1", "s2", "--dir", "c"); err != nil || out != "s1 stopped\ns2 stopped\n" {
		t.Errorf("dev stop s1 s2: %q, %v", out, err)
	}
}
