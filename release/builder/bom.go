package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licensecheck"
)

// licences are the components of `barque licenses`, by their names.
type licences map[string]licensed

type licensed struct {
	Name, Version string
	Programs      []string
	Texts         []struct{ File, Content string }
}

// goLibrary is the name of Go's own library in `barque licenses`.
const goLibrary = "Go standard library"

// licences asks barque for its licences.
func (b *build) licences(ctx context.Context) (licences, error) {
	text, err := output(ctx, "", []string{"HOME=" + b.work}, b.native("barque"), "licenses", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list []licensed
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("barque licenses: %w", err)
	}
	all := licences{}
	for _, l := range list {
		all[l.Name] = l
	}
	return all, nil
}

// cLibraries are the names in `barque licenses` of Debian's packages with static libraries.
var cLibraries = []struct{ prefix, name string }{
	{"libc6-dev", "glibc"}, {"libgcc-", "libgcc"}, {"libseccomp-dev", "libseccomp"}}

// bom returns the bill of materials: each program of each architecture with its modules and
// libraries, in CycloneDX 1.6. The modules are those that the linker has noted in the program. A
// component without a licence text is an error.
func (b *build) bom(archs []string, texts licences) ([]byte, error) {
	c := collection{texts: texts, components: map[string]cyclonedx.Component{},
		dependencies: map[string]map[string]bool{}}
	root := cyclonedx.Component{BOMRef: "barque@" + b.version, Type: cyclonedx.ComponentTypeApplication, Name: "barque",
		Version: b.version, PackageURL: "pkg:golang/github.com/barque/barque@" + b.version,
		ExternalReferences: &[]cyclonedx.ExternalReference{
			{Type: cyclonedx.ERTypeVCS, URL: repository, Comment: "commit " + b.commit}}}
	for _, arch := range archs {
		barque, err := c.program(b, "barque", arch)
		if err != nil {
			return nil, err
		}
		c.needs(root.BOMRef, barque)
		for _, name := range programs {
			ref, err := c.program(b, name, arch)
			if err != nil {
				return nil, err
			}
			c.needs(barque, ref)
		}
	}
	if c.failed != nil {
		return nil, c.failed
	}
	components := slices.SortedFunc(maps.Values(c.components),
		func(x, y cyclonedx.Component) int { return cmp.Compare(x.BOMRef, y.BOMRef) })
	var dependencies []cyclonedx.Dependency
	for _, ref := range slices.Sorted(maps.Keys(c.dependencies)) {
		on := slices.Sorted(maps.Keys(c.dependencies[ref]))
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: &on})
	}
	bom := cyclonedx.NewBOM()
	bom.SerialNumber = serialNumber(b.commit + strings.Join(archs, ","))
	bom.Metadata = &cyclonedx.Metadata{Timestamp: b.time.Format("2006-01-02T15:04:05Z"), Component: &root}
	bom.Components, bom.Dependencies = &components, &dependencies
	var out bytes.Buffer
	encoder := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true)
	if err := encoder.EncodeVersion(bom, cyclonedx.SpecVersion1_6); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// collection is a bill of materials in the making, by the references of components.
type collection struct {
	texts        licences
	components   map[string]cyclonedx.Component
	dependencies map[string]map[string]bool
	failed       error
}

func (c *collection) needs(ref, on string) {
	if c.dependencies[ref] == nil {
		c.dependencies[ref] = map[string]bool{}
	}
	c.dependencies[ref][on] = true
}

// program adds a program with all that is in it, and returns its reference.
func (c *collection) program(b *build, name, arch string) (string, error) {
	path := filepath.Join(b.work, arch, name)
	digest, err := sumOf(path)
	if err != nil {
		return "", err
	}
	ref := name + "/linux-" + arch
	component := cyclonedx.Component{BOMRef: ref, Type: cyclonedx.ComponentTypeApplication, Name: name,
		Version:    b.version,
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: digest}},
		Properties: &[]cyclonedx.Property{{Name: "barque:platform", Value: "linux/" + arch}}}
	if name != "pause" { // which is in C
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("%s for %s: %w", name, arch, err)
		}
		c.needs(ref, c.module(&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}))
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			module := c.module(m)
			c.needs(ref, module)
			// runc and the plugins are programs of other modules.
			if strings.HasPrefix(info.Path, m.Path+"/") || info.Path == m.Path {
				component.Version = m.Version
			}
		}
	}
	c.components[ref] = component
	if name != "runc" && name != "pause" {
		return ref, nil
	}
	for _, p := range b.inputs {
		if p.forArch != arch {
			continue
		}
		for _, l := range cLibraries {
			if strings.HasPrefix(p.name, l.prefix) && (name == "runc" || l.name != "libseccomp") {
				c.needs(ref, c.library(l.name, p))
			}
		}
	}
	return ref, nil
}

// module adds a Go module; std is Go's own library.
func (c *collection) module(m *debug.Module) string {
	ref := "pkg:golang/" + m.Path + "@" + m.Version
	if _, ok := c.components[ref]; ok {
		return ref
	}
	component := cyclonedx.Component{BOMRef: ref, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path,
		Version: m.Version, PackageURL: ref}
	if m.Sum != "" {
		component.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: m.Sum}}
	}
	name, version := m.Path, m.Version
	if m.Path == "std" {
		name, version = goLibrary, "go"+m.Version
	}
	text, ok := c.texts[name]
	if !ok || text.Version != version {
		c.failed = errors.Join(c.failed,
			fmt.Errorf("barque licenses has no text of %s %s, which is compiled in", name, version))
	}
	component.Licenses = identify(text)
	c.components[ref] = component
	return ref
}

// library adds a library in C.
func (c *collection) library(name string, p debPackage) string {
	ref := p.purl()
	text, ok := c.texts[name]
	if !ok {
		c.failed = errors.Join(c.failed, fmt.Errorf("barque licenses has no text of %s, which is linked in", name))
	}
	c.components[ref] = cyclonedx.Component{BOMRef: ref, Type: cyclonedx.ComponentTypeLibrary, Name: name,
		Version: p.version, PackageURL: ref, Licenses: identify(text)}
	return ref
}

// known are the licences by their SPDX identifiers that licensecheck finds in texts of modules.
var known = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "GPL-2.0", "GPL-3.0", "ISC",
	"LGPL-2.1", "LGPL-3.0", "MIT", "MIT-0", "MPL-2.0", "Unlicense", "Zlib"}

// identify returns the licences that are found in a component's texts.
func identify(l licensed) *cyclonedx.Licenses {
	found := map[string]bool{}
	for _, t := range l.Texts {
		for _, m := range licensecheck.Scan([]byte(t.Content)).Match {
			if slices.Contains(known, m.ID) && !m.IsURL {
				found[m.ID] = true
			}
		}
	}
	all := cyclonedx.Licenses{}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		license := &cyclonedx.License{ID: id}
		if strings.Contains(id, "GPL-") { // an identifier that SPDX has given up
			license = &cyclonedx.License{Name: id}
		}
		all = append(all, cyclonedx.LicenseChoice{License: license})
	}
	if len(all) == 0 {
		all = append(all, cyclonedx.LicenseChoice{License: &cyclonedx.License{Name: "see THIRD-PARTY-LICENSES.txt"}})
	}
	return &all
}

// serialNumber is a UUID (RFC 9562, version 8) of a name.
func serialNumber(name string) string {
	h := sha256.Sum256([]byte("barque bill of materials " + name))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
