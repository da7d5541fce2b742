package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/barque/barque/cluster-test/images"
)

// A program that lacks a part would only show in the middle of a night.
func TestProgramsAreWhole(t *testing.T) {
	names, images := map[string]bool{}, map[string]string{}
	for _, p := range programs {
		if p.name == "" || p.version == "" || p.scenario == "" || p.install == nil || p.fact == nil {
			t.Errorf("%q lacks a name, a version, a scenario, an installation or a fact", p.name)
		}
		if names[p.name] {
			t.Errorf("there are two %s", p.name)
		}
		names[p.name] = true
		for _, i := range p.images {
			if other := images[i.Name]; other != "" {
				t.Errorf("%s and %s have the image %s", other, p.name, i.Name)
			}
			images[i.Name] = p.name
			for path, s := range i.Binaries {
				if !strings.HasPrefix(path, "/") || s.Pkg == "" || p.module == "" && s.Module == "" {
					t.Errorf("%s: %s is to be %+v, of no module", i.Name, path, s)
				}
			}
		}
	}
}

// The manifests of this folder have no other images than those that are made.
func TestManifestsNameImagesThatAreMade(t *testing.T) {
	made := map[string]bool{images.Busybox: true, images.Nginx: true}
	for _, p := range programs {
		for _, i := range p.images {
			made[i.Name] = true
		}
	}
	files, err := filepath.Glob("manifests/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`image: "?([^\s",}]+)`).FindAllStringSubmatch(string(text), -1) {
			found++
			if !made[match[1]] {
				t.Errorf("%s has the image %s, which nothing makes", file, match[1])
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d images were found in %q", found, files)
	}
}
