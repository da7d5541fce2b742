// Package workshop builds programs of other authors, and images of them, from their Go modules,
// Debian's packages and npm's. It asks the module proxy, Debian's archive and the npm registry, and
// nothing else. Its products stay in a directory, under a key of all their inputs.
package workshop

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/images"
)

// Order has the needs of a program.
type Order struct {
	Name    string // of the program, for errors
	Module  string // Go module; "" for none
	Version string // of the module
	Images  []Image
	NPM     string   // package of npm, NAME@VERSION; "" for none
	Tools   []Source // programs of the module that run on this machine
}

// Image is one that manifests name.
type Image struct {
	Name     string            // as the manifests have it
	Binaries map[string]Source // by path in the image
	Files    map[string]string // files of the module, by path in the image
	Scripts  map[string]string // likewise, as programs: modules have no permissions
	Links    map[string]string // targets of symbolic links, by path in the image
	Shell    bool              // the authors' image has a shell
	Config   v1.Config
	// Foreign has more of the image, such as Debian packages, where there is more.
	Foreign func(ctx context.Context) (images.Foreign, error)
}

// Source is a main package.
type Source struct {
	Pkg     string // path below the module, "." for its root
	Module  string // another one than the program's; "" for that
	Version string
	Ldflags string // settings of the authors' own build, such as the version
	Tags    string // likewise
}

// Simple is an image with one program, as most Dockerfiles of Go programs make it.
func Simple(name, path, pkg, user string) Image {
	return Image{
		Name: name, Binaries: map[string]Source{path: {Pkg: pkg}},
		Config: v1.Config{Entrypoint: []string{path}, User: user},
	}
}

// Linked is an image whose programs get values from the linker, such as their version.
func Linked(i Image, ldflags string) Image {
	for path, s := range i.Binaries {
		s.Ldflags = ldflags
		i.Binaries[path] = s
	}
	return i
}

// Shelled is an image on busybox.
func Shelled(i Image) Image {
	i.Shell = true
	return i
}
