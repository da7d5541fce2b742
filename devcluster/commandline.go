package devcluster

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/barque/barque/internal/terminal"
)

// DefaultDir is where a cluster's files are when no --dir says otherwise.
const DefaultDir = ".barque"

// CommandLine returns a dev command for the cluster in the directory, for the shell of the current
// command. Under sudo it begins with sudo, because the user's own shell has no root rights.
func CommandLine(dir string, args ...string) string {
	line := append([]string{os.Args[0], "dev"}, args...)
	if os.Getenv("SUDO_UID") != "" {
		line = append([]string{"sudo"}, line...)
	}
	if short := FromHere(dir); short != DefaultDir {
		at := len(line)
		for i, arg := range line {
			if arg == "--" { // the arguments of another command follow
				at = i
				break
			}
		}
		line = append(line[:at:at], append([]string{"--dir", short}, line[at:]...)...)
	}
	return terminal.Command(line...)
}

// command is CommandLine for this cluster.
func (p *Plan) command(args ...string) string { return CommandLine(p.Dir, args...) }

// FromHere returns a path relative to the working directory, if the path is below it.
func FromHere(path string) string {
	here, err := filepath.Abs(".")
	if err != nil {
		return path
	}
	short, err := filepath.Rel(here, path)
	if err != nil || short == ".." || strings.HasPrefix(short, "../") {
		return path
	}
	return short
}
