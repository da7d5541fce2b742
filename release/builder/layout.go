package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// kind is the part that a file has in a package.
type kind int

const (
	plain   kind = iota
	program      // executable
	config       // the operator's to change: an upgrade keeps it
	doc
	license
	folder // an empty directory that the package owns
)

// item is a file of a release. A path that is empty leaves it out.
type item struct {
	kind kind
	// archive is the path below the top directory of the archive, and deb and rpm are those on a
	// machine.
	archive, deb, rpm string
	content           []byte
}

// layout has the places of the parts of a release.
type layout struct {
	source  string // the exported sources
	pages   string // manual pages and completions
	program string // barque
}

// items returns the files of a release for an architecture, but for the program.
func (l layout) items() ([]item, error) {
	var items []item
	var failed error
	read := func(path string) []byte {
		content, err := os.ReadFile(path)
		failed = errors.Join(failed, err)
		return content
	}
	both := func(kind kind, archive, installed string, content []byte) {
		items = append(items, item{kind, archive, installed, installed, content})
	}
	for _, role := range []string{"server", "agent"} {
		name := "barque-" + role + ".service"
		unit := read(filepath.Join(l.source, "examples", name))
		items = append(items, item{kind: plain, archive: "systemd/" + name, content: unit})
		both(plain, "", "/usr/lib/systemd/system/"+name, packagedUnit(unit))
	}
	of := func(name string) []byte { return read(filepath.Join(l.source, "release/package", name)) }
	both(config, "config.yaml", "/etc/barque/config.yaml", of("config.yaml"))
	both(folder, "", "/etc/barque/config.yaml.d", nil)
	both(plain, "sysctl.d/90-barque.conf", "/usr/lib/sysctl.d/90-barque.conf", of("sysctl.conf"))
	both(plain, "modules-load.d/barque.conf", "/usr/lib/modules-load.d/barque.conf", of("modules-load.conf"))
	both(doc, "CHANGELOG.md", "/usr/share/doc/barque/CHANGELOG.md", read(filepath.Join(l.source, "CHANGELOG.md")))

	both(plain, "completions/barque.bash", "/usr/share/bash-completion/completions/barque",
		read(filepath.Join(l.pages, "bash")))
	both(plain, "completions/barque.fish", "/usr/share/fish/vendor_completions.d/barque.fish",
		read(filepath.Join(l.pages, "fish")))
	items = append(items, item{plain, "completions/_barque", "/usr/share/zsh/vendor-completions/_barque",
		"/usr/share/zsh/site-functions/_barque", read(filepath.Join(l.pages, "zsh"))})
	man, err := filepath.Glob(filepath.Join(l.pages, "man/*.1"))
	if err != nil || len(man) == 0 {
		failed = errors.Join(failed, err, fmt.Errorf("%s has no manual pages", l.pages))
	}
	for _, page := range man {
		name := filepath.Base(page) + ".gz"
		both(doc, "man/man1/"+name, "/usr/share/man/man1/"+name, compressed(read(page)))
	}

	texts := read(filepath.Join(l.pages, "licenses"))
	items = append(items, item{license, "THIRD-PARTY-LICENSES.txt", "/usr/share/doc/barque/THIRD-PARTY-LICENSES.txt",
		"/usr/share/licenses/barque/THIRD-PARTY-LICENSES.txt", texts})
	own, err := os.ReadFile(filepath.Join(l.source, "LICENSE"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		fmt.Fprintln(os.Stderr, "WARNING: the sources have no LICENSE: the release names no terms for Barque itself")
	case err != nil:
		failed = errors.Join(failed, err)
	default:
		items = append(items, item{license, "LICENSE", "/usr/share/doc/barque/copyright",
			"/usr/share/licenses/barque/LICENSE", own})
	}
	slices.SortStableFunc(items, func(a, b item) int { return strings.Compare(a.archive+a.deb, b.archive+b.deb) })
	return items, failed
}

// packagedUnit is a unit with the places of a package.
func packagedUnit(unit []byte) []byte {
	unit = bytes.ReplaceAll(unit, []byte("/usr/local/bin/barque"), []byte("/usr/bin/barque"))
	return bytes.ReplaceAll(unit, []byte(": /etc/systemd/system/"), []byte(": /usr/lib/systemd/system/"))
}

// compressed is a text by gzip, without a name and a time.
func compressed(text []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(text)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		panic(err) // it writes into memory
	}
	return b.Bytes()
}

// writePages writes the output of barque that is in packages: manual pages, completions, licences.
func (b *build) writePages(ctx context.Context) (string, error) {
	dir := filepath.Join(b.work, "pages")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	// Nothing of this machine's settings, but the date of the pages.
	env := []string{"HOME=" + b.work, "PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC",
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.time.Unix())}
	if _, err := output(ctx, "", env, b.native("barque"), "man", filepath.Join(dir, "man")); err != nil {
		return "", err
	}
	for name, args := range map[string][]string{"bash": {"completion", "bash"}, "zsh": {"completion", "zsh"},
		"fish": {"completion", "fish"}, "licenses": {"licenses"}} {
		text, err := output(ctx, "", env, b.native("barque"), args...)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}
