package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// debPackage is one package as apt would download it.
type debPackage struct {
	file   string // name of the file that apt writes
	digest string // SHA256:…
}

// apt downloads packages without installing them.
type apt struct {
	updated bool // the package lists were refreshed in this run
}

func newApt() (*apt, error) {
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil,
				fmt.Errorf(
					"the test images are made of Debian packages, but %s is not on this machine (%w): run the end-to-end tests on Debian or Ubuntu", tool, err)
		}
	}
	return &apt{}, nil
}

// closure returns the packages, the libraries and Python modules that they depend on, and those
// that these depend on.
func (a *apt) closure(ctx context.Context, names ...string) ([]string, error) {
	all := slices.Clone(names)
	for asked := 0; asked < len(all); {
		ask := all[asked:]
		asked = len(all)
		out, err := a.run(ctx, "", "apt-cache",
			append(
				[]string{"depends", "--no-suggests", "--no-recommends", "--no-conflicts", "--no-breaks",
					"--no-replaces", "--no-enhances"}, ask...)...)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			library, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimSpace(line), "Pre"), "Depends: ")
			if ok &&
				(strings.HasPrefix(library, "lib") || strings.HasPrefix(library, "zlib") ||
					strings.HasPrefix(library, "python3")) && !slices.Contains(all, library) {
				all = append(all, library)
			}
		}
	}
	slices.Sort(all)
	return all, nil
}

// resolve says which files the packages are, without downloading them.
func (a *apt) resolve(ctx context.Context, names []string) ([]debPackage, error) {
	out, err := a.refreshing(ctx, func() (string, error) {
		return a.run(ctx, "", "apt-get", append([]string{"--print-uris", "download"}, names...)...)
	})
	if err != nil {
		return nil, err
	}
	var packages []debPackage
	for line := range strings.Lines(out) {
		// 'URI' FILE SIZE DIGEST
		if f := strings.Fields(line); len(f) == 4 && strings.HasSuffix(f[1], ".deb") {
			packages = append(packages, debPackage{file: f[1], digest: f[3]})
		}
	}
	if len(packages) != len(names) {
		return nil,
			fmt.Errorf("apt-get names %d files for the %d packages %s", len(packages), len(names),
				strings.Join(names, " "))
	}
	return packages, nil
}

// unpack downloads the packages and unpacks them over each other.
func (a *apt) unpack(ctx context.Context, names []string, work string) (root string, err error) {
	downloads, root := filepath.Join(work, "debs"), filepath.Join(work, "root")
	if err := errors.Join(os.MkdirAll(downloads, 0o755), os.MkdirAll(root, 0o755)); err != nil {
		return "", err
	}
	_, err = a.refreshing(ctx, func() (string, error) {
		return a.run(ctx, downloads, "apt-get", append([]string{"-q", "download"}, names...)...)
	})
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(downloads, "*.deb"))
	if err != nil {
		return "", err
	}
	if len(files) != len(names) {
		return "",
			fmt.Errorf("apt-get downloaded %d files for the %d packages %s", len(files), len(names),
				strings.Join(names, " "))
	}
	for _, f := range files {
		if _, err := a.run(ctx, "", "dpkg-deb", "-x", f, root); err != nil {
			return "", err
		}
	}
	return root, nil
}

// refreshing tries again after apt-get update: a fresh machine has no package lists, and old ones
// name files that are no longer there.
func (a *apt) refreshing(ctx context.Context, try func() (string, error)) (string, error) {
	out, err := try()
	if err == nil || a.updated {
		return out, err
	}
	if _, updateErr := a.run(ctx, "", "apt-get", "-q", "update"); updateErr != nil {
		return "", errors.Join(err, updateErr)
	}
	a.updated = true
	return try()
}

func (a *apt) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	if name == "apt-get" {
		// apt's own user could not write to our directory.
		args = append([]string{"-o", "APT::Sandbox::User=root"}, args...)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "",
			fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return string(out), nil
}

// key names a product of the packages, by their digests and by the recipe.
func key(packages []debPackage) string {
	h := sha256.New()
	fmt.Fprintln(h, recipe)
	for _, p := range packages {
		fmt.Fprintln(h, p.file, p.digest)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}
