package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/barque/barque/release/licenses"
)

// program is one that barque is, or carries.
type program struct {
	name, pkg string
	tags      []string
}

func (p program) cgo() bool { return slices.Contains(p.tags, "cgo") }

// use is a package of a module that is compiled into a program.
type use struct {
	program       string
	path, version string // of the module
	root          string // of the module
	dir           string // of the package
}

// listed is the part of `go list -json` that is read.
type listed struct {
	Dir    string
	Module *struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version, Dir string }
	}
}

// uses returns the packages of other modules that are compiled into the program.
func (p program) uses() ([]use, error) {
	command := exec.Command(goCommand(), "list", "-deps", "-json=Dir,Module", "-tags", strings.Join(p.tags, ","), p.pkg)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if p.cgo() {
		command.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	out, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, fmt.Errorf("list the packages of %s: %w", p.name, err)
	}
	var all []use
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		err := d.Decode(&l)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list the packages of %s: %w", p.name, err)
		}
		if l.Module == nil || l.Module.Main {
			continue
		}
		u := use{program: p.name, path: l.Module.Path, version: l.Module.Version, root: l.Module.Dir, dir: l.Dir}
		if r := l.Module.Replace; r != nil {
			u.path, u.version, u.root = r.Path, r.Version, r.Dir
		}
		all = append(all, u)
	}
}

// ofModules returns the modules with their texts, in the order of their paths. It returns an error
// that names every module without a licence.
func ofModules(used []use) ([]licenses.Component, error) {
	slices.SortStableFunc(used, func(a, b use) int { return strings.Compare(a.path, b.path) })
	var components []licenses.Component
	var failed error
	for len(used) > 0 {
		n := 1
		for n < len(used) && used[n].path == used[0].path {
			n++
		}
		c, err := ofModule(used[:n])
		failed = errors.Join(failed, err)
		components = append(components, c)
		used = used[n:]
	}
	return components, failed
}

// ofModule returns a module with the texts that are for its used packages: those in their
// directories, and in the directories above, up to the module's root.
func ofModule(used []use) (licenses.Component, error) {
	c := licenses.Component{Name: used[0].path, Version: used[0].version}
	root := used[0].root
	var dirs []string
	for _, u := range used {
		c.Programs = add(c.Programs, u.program)
		for dir := u.dir; ; dir = filepath.Dir(dir) {
			dirs = add(dirs, dir)
			if dir == root || dir == filepath.Dir(dir) {
				break
			}
		}
	}
	licensed := false
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return c, fmt.Errorf("%s: %w", c.Name, err)
		}
		for _, e := range entries {
			if e.IsDir() || !legal.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
				continue
			}
			content, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return c, fmt.Errorf("%s: %w", c.Name, err)
			}
			name, err := filepath.Rel(root, filepath.Join(dir, e.Name()))
			if err != nil {
				return c, fmt.Errorf("%s: %w", c.Name, err)
			}
			licensed = licensed || grant.MatchString(e.Name()) && len(bytes.TrimSpace(content)) > 0
			c.Texts = append(c.Texts, licenses.Text{File: filepath.ToSlash(name), Content: string(content)})
		}
	}
	if !licensed {
		return c, fmt.Errorf("module %s %s has no licence text; looked for LICENSE, COPYING and COPYRIGHT in %s",
			c.Name, c.Version, root)
	}
	return c, nil
}

// grant are the names of files with a licence. legal has those that belong to one as well.
var (
	grant = regexp.MustCompile(`(?i)^(un)?(licen[cs]es?|copying|copyright)([-._ ].*)?$`)
	legal = regexp.MustCompile(`(?i)^(un)?(licen[cs]es?|copying|copyright|notice|patents)([-._ ].*)?$`)
)
