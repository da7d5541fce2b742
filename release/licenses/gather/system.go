package main

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/barque/barque/release/licenses"
)

// library is one in C, with the Debian package that has its static archive.
type library struct {
	name, pkg string
	// in are the programs that it is linked into statically.
	in []string
}

// libraries are those of runc and of the pause program. The compiler brings glibc and libgcc.
var libraries = []library{
	{name: "glibc", pkg: "libc6-dev", in: []string{"pause", "runc"}},
	{name: "libgcc", pkg: "libgcc-*-dev", in: []string{"pause", "runc"}},
	{name: "libseccomp", pkg: "libseccomp-dev", in: []string{"runc"}},
}

// common are the texts that the files of Debian's packages refer to.
var common = regexp.MustCompile(`/usr/share/common-licenses/[A-Za-z]+-[0-9]+(\.[0-9]+)?`)

// goCommand is the command that make builds with.
func goCommand() string { return cmp.Or(os.Getenv("GO"), "go") }

// goRoot is the directory of the Go toolchain.
func goRoot() string {
	out, err := exec.Command(goCommand(), "env", "GOROOT").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// ofSystem returns the components that are no modules: Go's library, and those in C. It also
// returns the names of those without a text on this machine, which is no Debian then.
func ofSystem(root, goRoot string, programs []program) (components []licenses.Component, missing []string) {
	std := licenses.Component{Name: "Go standard library", Version: runtime.Version()}
	cgo := false
	for _, p := range programs {
		std.Programs = add(std.Programs, p.name)
		cgo = cgo || p.cgo()
	}
	for _, name := range []string{"LICENSE", "PATENTS"} {
		if content, err := os.ReadFile(filepath.Join(goRoot, name)); err == nil {
			std.Texts = append(std.Texts, licenses.Text{File: name, Content: string(content)})
		}
	}
	if len(std.Texts) == 0 {
		missing = append(missing, std.Name)
	} else {
		components = append(components, std)
	}
	if !cgo {
		return components, missing
	}
	for _, l := range libraries {
		texts := debianTexts(root, l.pkg)
		if len(texts) == 0 {
			missing = append(missing, l.name)
			continue
		}
		components = append(components, licenses.Component{Name: l.name, Programs: l.in, Texts: texts})
	}
	return components, missing
}

// debianTexts returns the copyright file of an installed Debian package, and the licences that it
// refers to.
func debianTexts(root, pkg string) (texts []licenses.Text) {
	files, _ := filepath.Glob(filepath.Join(root, "usr/share/doc", pkg, "copyright")) // the pattern is right
	if len(files) == 0 {
		return nil
	}
	copyright, err := os.ReadFile(files[len(files)-1])
	if err != nil {
		return nil
	}
	texts = append(texts, licenses.Text{File: below(root, files[len(files)-1]), Content: string(copyright)})
	names := common.FindAllString(string(copyright), -1)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if content, err := os.ReadFile(filepath.Join(root, name)); err == nil {
			texts = append(texts, licenses.Text{File: name, Content: string(content)})
		}
	}
	return texts
}

// below is a path as it is called on a machine with that root.
func below(root, path string) string {
	return "/" + strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
}
