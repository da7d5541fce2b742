package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/images"
)

var imageLine = regexp.MustCompile(`(?m)^\s*(?:- )?image: *"?([^\s"]+)"?\s*$`)

// imagesOf returns the names of all images in the suite's manifests of gateways. Those of a mesh
// are not applied.
func imagesOf(source string) ([]string, error) {
	var names []string
	for _, pattern := range []string{"base/*.yaml", "tests/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(source, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			for _, m := range imageLine.FindAllSubmatch(text, -1) {
				names = append(names, string(m[1]))
			}
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no manifest in %s names an image", source)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// images makes stand-ins, each under its name. Upstream builds echo-basic from the directory of
// that name, too. coredns is for tests of UDPRoute only, which do not run here: the suite wants its
// pod to be ready, and nobody asks it anything.
func (p *programs) images(ctx context.Context, names []string) (map[name.Tag]v1.Image, error) {
	recipes := map[string]images.Foreign{
		"gateway-api/echo-basic": {
			Files:  map[string]string{"echo-basic": filepath.Join(p.dir, "echo-basic")},
			Config: v1.Config{Entrypoint: []string{"/echo-basic"}, User: "65532:65532"},
		},
		"coredns/coredns": {
			Shell: true,
			Config: v1.Config{
				Entrypoint: []string{"sh", "-c", `trap "exit 0" TERM; while :; do sleep 3600 & wait $!; done`}},
		},
	}
	made := map[string]v1.Image{}
	out := map[name.Tag]v1.Image{}
	for _, n := range names {
		tag, err := name.NewTag(n)
		if err != nil {
			return nil, err
		}
		repository := tag.RepositoryStr()
		recipe, ok := recipes[repository]
		if !ok {
			return nil,
				fmt.Errorf("the suite has the image %s, for which there is no stand-in: add one to images.go", n)
		}
		if made[repository] == nil {
			if made[repository], err = recipe.Make(ctx); err != nil {
				return nil, fmt.Errorf("make the stand-in for %s: %w", n, err)
			}
		}
		out[tag] = made[repository]
	}
	return out, nil
}
