package images

import (
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// debianKeys are the keys that sign Debian's archive.
const debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// buildBusybox returns a directory with bin/busybox, built now or at an earlier time from Debian's
// source with busybox's own default configuration, as the image of that name is.
//
// The binary of Debian's package does not do for the suite: its shell takes an applet before a
// file of the PATH, and hides environment variables whose names are no identifiers.
func buildBusybox(ctx context.Context, cache string) (dir string, err error) {
	dir = filepath.Join(cache, "busybox-"+recipe)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cache, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	source, err := busyboxSource(ctx, work)
	if err != nil {
		return "", fmt.Errorf("get the source of busybox: %w", err)
	}
	binary, err := compileBusybox(ctx, source)
	if err != nil {
		return "", fmt.Errorf("build busybox: %w", err)
	}
	made := filepath.Join(work, "made")
	if err := os.MkdirAll(filepath.Join(made, "bin"), 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(binary, filepath.Join(made, "bin", "busybox")); err != nil {
		return "", err
	}
	if err := os.Rename(made, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

// busyboxSource downloads and unpacks the source. The machine's own list of sources need not name
// any: the same archive is asked, with lists of packages beside the machine's.
func busyboxSource(ctx context.Context, work string) (dir string, err error) {
	tool, err := newApt()
	if err != nil {
		return "", err
	}
	archive, err := tool.refreshing(ctx, func() (string, error) { return tool.archive(ctx) })
	if err != nil {
		return "", err
	}
	lists, list := filepath.Join(work, "lists"), filepath.Join(work, "sources.list")
	if err := os.MkdirAll(filepath.Join(lists, "partial"), 0o755); err != nil {
		return "", err
	}
	line := fmt.Sprintf("deb-src [signed-by=%s] %s main\n", debianKeys, archive)
	if err := os.WriteFile(list, []byte(line), 0o644); err != nil {
		return "", err
	}
	own := []string{"-q", "-o", "Dir::Etc::sourcelist=" + list, "-o", "Dir::Etc::sourceparts=-", "-o",
		"Dir::State::lists=" + lists}
	for _, args := range [][]string{{"update"}, {"source", "--download-only", "busybox"}} {
		if _, err := tool.run(ctx, work, "apt-get", slices.Concat(own, args)...); err != nil {
			return "", err
		}
	}
	found, err := filepath.Glob(filepath.Join(work, "busybox_*.orig.tar.bz2"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("want one busybox_*.orig.tar.bz2 from apt-get, got %q (%v)", found, err)
	}
	file, err := os.Open(found[0])
	if err != nil {
		return "", err
	}
	defer file.Close()
	unpack := exec.CommandContext(ctx, "tar", "-x", "-C", work)
	unpack.Stdin = bzip2.NewReader(file)
	if out, err := unpack.CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack %s: %w: %s", filepath.Base(found[0]), err, out)
	}
	if found, err = filepath.Glob(filepath.Join(work, "busybox-*", "Config.in")); err != nil || len(found) != 1 {
		return "", fmt.Errorf("the source has %d folders that busybox could be in (%v)", len(found), err)
	}
	return filepath.Dir(found[0]), nil
}

// archive is the address and the release of Debian's archive that this machine's packages are from.
func (a *apt) archive(ctx context.Context) (string, error) {
	out, err := a.run(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)",
		"Created-By: Packages", "Origin: Debian", "Component: main")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		// Updates and security fixes are releases of their own, which lack most packages.
		if f := strings.Fields(line); len(f) == 2 && !strings.Contains(f[1], "-") {
			return f[0] + " " + f[1], nil
		}
	}
	return "", errors.New("no archive of Debian is among apt's sources")
}

// compileBusybox returns the binary.
func compileBusybox(ctx context.Context, source string) (string, error) {
	make := func(args ...string) error {
		cmd := exec.CommandContext(ctx, "make", args...)
		cmd.Dir = source
		// Another make may have started us, whose variables are not for this one.
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
		cmd.Stdin = strings.NewReader("") // each question of the configuration gets its default
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("make %s: %w: %s", strings.Join(args, " "), err, lastLines(string(out), 20))
		}
		return nil
	}
	if err := make("defconfig"); err != nil {
		return "", err
	}
	file := filepath.Join(source, ".config")
	config, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	// tc does not compile with the headers of newer kernels.
	text := strings.NewReplacer(
		"# CONFIG_STATIC is not set", "CONFIG_STATIC=y",
		"CONFIG_TC=y", "# CONFIG_TC is not set",
	).Replace(string(config))
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return "", err
	}
	for _, args := range [][]string{{"oldconfig"}, {fmt.Sprintf("-j%d", runtime.NumCPU())}} {
		if err := make(args...); err != nil {
			return "", err
		}
	}
	return filepath.Join(source, "busybox"), nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
