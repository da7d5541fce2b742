package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/barque/barque/internal/atomicfile"
)

// writeStep writes a file, unless it has that content already. Its directory is made.
func writeStep(path string, content []byte, mode os.FileMode, lines ...string) (Step, error) {
	s := Step{What: "write " + path, Lines: lines, Do: func(context.Context) error {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return atomicfile.Write(path, content, mode)
	}}
	is, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		return s, err
	}
	if s.What = "change " + path; bytes.Equal(is, content) {
		s = Step{What: path + " is as it should be", Done: true, Do: s.Do}
	}
	return s, nil
}

// asideStep moves a file out of the way, if it is there.
func asideStep(path string) (Step, bool) {
	if !exists(path) {
		return Step{}, false
	}
	to := path + ".old"
	return Step{What: fmt.Sprintf("rename %s to %s", path, to),
		Do: func(context.Context) error {
			err := os.Rename(path, to)
			if errors.Is(err, fs.ErrNotExist) {
				return nil // an earlier try did it
			}
			return err
		}}, true
}

// environmentFile is where earlier versions of `barque cluster join` wrote the node's arguments.
func environmentFile(configDir, role string) string { return filepath.Join(configDir, role+".env") }

// Joining is the configuration of a machine that joins a cluster at its next start.
type Joining struct {
	Role string
	// ConfigDir is where the token and the settings are written.
	ConfigDir string
	// UnitDir is the directory of the unit of systemd, which is written if there is none.
	UnitDir string
}

// TokenFile is where the token is written.
func (j Joining) TokenFile() string { return filepath.Join(j.ConfigDir, "token") }

// SettingsFile is the drop-in with the settings that were given. It is the last one, so that they
// count.
func (j Joining) SettingsFile() string {
	return filepath.Join(j.ConfigDir, "config.yaml.d", "90-join.yaml")
}

// Write writes the files, and returns their names and the command that starts the node. A
// repetition replaces the files, but not an existing unit. The arguments that an earlier version
// wrote for the unit would count more than the settings, and are moved aside.
func (j Joining) Write(token string, settings []byte) (files []string, next string, err error) {
	header := "# written by `barque cluster join`; a repetition replaces this file\n"
	steps := []func() (Step, error){
		func() (Step, error) { return writeStep(j.TokenFile(), []byte(token+"\n"), 0o600) },
		func() (Step, error) {
			return writeStep(j.SettingsFile(), slices.Concat([]byte(header), settings), 0o600)
		},
	}
	files = []string{j.TokenFile(), j.SettingsFile()}
	for _, of := range steps {
		s, err := of()
		if err == nil {
			err = s.Do(context.Background())
		}
		if err != nil {
			return nil, "", err
		}
	}
	if aside, is := asideStep(environmentFile(j.ConfigDir, j.Role)); is {
		if err := aside.Do(context.Background()); err != nil {
			return nil, "", err
		}
		files = append(files, environmentFile(j.ConfigDir, j.Role)+".old")
	}
	info, err := os.Stat(j.UnitDir)
	if err != nil || !info.IsDir() { // no systemd here
		flags := shellLine(strings.Fields(configFlag(j.ConfigDir)))
		return files, strings.TrimSpace("barque " + j.Role + " " + flags), nil
	}
	unit := filepath.Join(j.UnitDir, serviceName(j.Role)+".service")
	next = (&systemd{}).StartCommand(j.Role)
	if exists(unit) || (&systemd{}).Shipped(j.Role) != "" {
		return files, next, nil
	}
	program, err := Program()
	if err != nil {
		return nil, "", err
	}
	text := unitText(j.Role, program, j.ConfigDir)
	return append(files, unit), next, atomicfile.Write(unit, []byte(text), 0o600)
}

// shellLine are arguments as a shell takes them: --eviction-hard=memory.available<1Gi would read a
// file.
func shellLine(args []string) string {
	words := slices.Clone(args)
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\`$&|;<>()*?[]{}~#!") {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// dataDirOf finds the data directory among the arguments of a node.
var dataDirOf = regexp.MustCompile(`--data-dir[= ]\\?"?(/[^" \t\n\\]+)`)

// EarlierDataDir is the data directory in the file of arguments that earlier versions of `barque
// cluster join` wrote; empty without.
func EarlierDataDir(configDir, role string) string {
	text, err := os.ReadFile(environmentFile(configDir, role))
	if err != nil {
		return ""
	}
	if found := dataDirOf.FindSubmatch(text); found != nil {
		return string(found[1])
	}
	return ""
}
