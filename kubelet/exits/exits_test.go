package exits

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestRecords(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "exits"))
	if ids, err := d.IDs(0); err != nil || len(ids) != 0 {
		t.Errorf("without a directory: %v, %v", ids, err)
	}
	if _, found := d.Read("a"); found {
		t.Error("a record without a directory")
	}
	want := Record{ExitCode: 137, FinishedAt: time.Unix(1700000000, 5).UTC(), OOMKilled: true}
	if err := d.Write("a", want); err != nil {
		t.Fatal(err)
	}
	if got, found := d.Read("a"); !found || got != want {
		t.Errorf("read %+v, %v; want %+v", got, found, want)
	}
	for _, bad := range []string{"", ".", "..", "../a", "x/y", ".new-1"} {
		if err := d.Write(bad, want); err == nil {
			t.Errorf("%q is taken for an ID", bad)
		}
		if _, found := d.Read(bad); found {
			t.Errorf("%q has a record", bad)
		}
	}
	// The remains of a killed writer, or of a loss of power, are no record.
	for name, text := range map[string]string{".new-77": "{}", "empty": "", "half": `{"exitCode":`, "none": `{}`} {
		if err := os.WriteFile(filepath.Join(string(d), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, found := d.Read(name); found {
			t.Errorf("%s is read as a record", name)
		}
	}
	if ids, err := d.IDs(time.Hour); err != nil || len(ids) != 0 {
		t.Errorf("older than an hour: %v, %v", ids, err)
	}
	ids, err := d.IDs(0)
	slices.Sort(ids)
	if err != nil || !slices.Equal(ids, []string{"a", "empty", "half", "none"}) {
		t.Errorf("%v, %v", ids, err)
	}
	if _, err := os.Stat(filepath.Join(string(d), ".new-77")); !os.IsNotExist(err) {
		t.Errorf("an unfinished file stays: %v", err)
	}
	for range 2 {
		if err := d.Remove("a"); err != nil {
			t.Error(err)
		}
	}
	if _, found := d.Read("a"); found {
		t.Error("a removed record is found")
	}
}

func TestOfBundle(t *testing.T) {
	bundle := t.TempDir()
	if _, ended, err := OfBundle(bundle); ended || err != nil {
		t.Errorf("a bundle that runs: %v, %v", ended, err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(bundle, "exit.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"Timestamp":"2026-11-28T20:00:00.5Z","Pid":7,"Status":3}`)
	want := Record{ExitCode: 3, FinishedAt: time.Date(2026, 11, 28, 20, 0, 0, 5e8, time.UTC)}
	if got, ended, err := OfBundle(bundle); !ended || err != nil || got != want {
		t.Errorf("%+v, %v, %v; want %+v", got, ended, err, want)
	}
	write("")
	if _, ended, err := OfBundle(bundle); ended || err == nil {
		t.Errorf("an empty file: %v, %v", ended, err)
	}
}

func TestOOMKills(t *testing.T) {
	for file, text := range map[string]string{
		"memory/a/b/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		"a/b/memory.events":             "low 0\noom 5\noom_kill 2\noom_group_kill 0\n",
	} {
		root := t.TempDir()
		if n := oomKills(root, "/a/b"); n != 0 {
			t.Errorf("without a cgroup: %d", n)
		}
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if n := oomKills(root, "/a/b"); n != 2 {
			t.Errorf("%s: %d, want 2", file, n)
		}
	}
}
