package machine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestJoiningIsItsOwnersAlone: the files have a token, and settings that may be secret, whatever
// the umask. A unit that is there stays as it is.
func TestJoiningIsItsOwnersAlone(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	j := Joining{Role: Agent, ConfigDir: filepath.Join(t.TempDir(), "etc"), UnitDir: t.TempDir()}
	files, next, err := j.Write("token", []byte("server: https://a:6443\n"))
	if err != nil || len(files) != 3 || !strings.Contains(next, "systemctl enable --now barque-agent") {
		t.Fatal(files, next, err)
	}
	for _, path := range files {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
	if text := read(t, j.SettingsFile()); !strings.HasSuffix(text, "\nserver: https://a:6443\n") {
		t.Errorf("the settings are %q", text)
	}
	unit := filepath.Join(j.UnitDir, "barque-agent.service")
	write(t, unit, "mine")
	if files, _, err = j.Write("token", nil); err != nil || len(files) != 2 || read(t, unit) != "mine" {
		t.Errorf("%v %v", files, err)
	}
}

// TestArgumentsOfAnEarlierVersion: they would count more than the settings, as the unit gives them
// as flags. Additions of a user are not lost.
func TestArgumentsOfAnEarlierVersion(t *testing.T) {
	j := Joining{Role: Server, ConfigDir: t.TempDir(), UnitDir: filepath.Join(t.TempDir(), "none")}
	env := filepath.Join(j.ConfigDir, "server.env")
	write(t, env, "BARQUE_ARGS=--join https://old:6443 --data-dir=/srv/barque --zone=a\n")
	if dir := EarlierDataDir(j.ConfigDir, Server); dir != "/srv/barque" {
		t.Errorf("the data directory is %q", dir)
	}
	files, next, err := j.Write("token", nil)
	if err != nil || !slices.Contains(files, env+".old") || exists(env) ||
		!strings.Contains(read(t, env+".old"), "--zone=a") {
		t.Errorf("%v %v", files, err)
	}
	if want := "barque server --config " + j.ConfigDir + "/config.yaml"; next != want {
		t.Errorf("next is %q, want %q", next, want)
	}
}

func TestEarlierDataDir(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "",
		"BARQUE_ARGS=--join x":                "",
		"BARQUE_ARGS=--data-dir /d":           "/d",
		"BARQUE_ARGS=--data-dir=/d --name s1": "/d",
		`BARQUE_ARGS="--data-dir=/d \"--node-label=a=b c\""`: "/d",
	} {
		dir := t.TempDir()
		if text != "" {
			write(t, filepath.Join(dir, "agent.env"), text+"\n")
		}
		if got := EarlierDataDir(dir, Agent); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// TestShellLine: a shell reads the line as the given arguments.
func TestShellLine(t *testing.T) {
	got := shellLine([]string{"--name=a", "--eviction-hard=memory.available<1Gi", "--zone=it's"})
	const want = `--name=a '--eviction-hard=memory.available<1Gi' '--zone=it'\''s'`
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
