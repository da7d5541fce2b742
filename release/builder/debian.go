package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// debPackage is a package of Debian that programs of an architecture are made with.
type debPackage struct {
	name, version string
	arch          string // of the package
	forArch       string // of the programs
}

// purl is the package's name for all package systems (https://github.com/package-url/purl-spec).
func (p debPackage) purl() string {
	return fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", p.name, strings.ReplaceAll(p.version, "+", "%2B"), p.arch)
}

// installed notes an installed package.
func (b *build) installed(ctx context.Context, name, forArch string) error {
	const format = "${db:Status-Abbrev} ${Version} ${Architecture}\n"
	text, err := output(ctx, "", nil, "dpkg-query", "-W", "-f", format, name)
	fields := strings.Fields(text)
	if err != nil || len(fields) < 3 || fields[0] != "ii" {
		return errors.Join(fmt.Errorf("a release for %s is built on Debian 12 with its package %s: apt-get install %s",
			forArch, name, name), err)
	}
	b.inputs = append(b.inputs, debPackage{name: name, version: fields[1], arch: fields[2], forArch: forArch})
	return nil
}

// fetch unpacks a Debian package of another architecture below root, in this machine's version of
// it, and returns the version. It leaves the machine as it is: apt gets lists and a cache of its
// own in state, and verifies the package as always.
func fetch(ctx context.Context, state, root, arch, name string) (version string, err error) {
	text, err := output(ctx, "", nil, "dpkg-query", "-W", "-f", "${Version}", name)
	if err != nil {
		return "", fmt.Errorf("a release is built on Debian 12 with its package %s: apt-get install %s: %w",
			name, name, err)
	}
	version = text
	for _, dir := range []string{"lists/partial", "cache/archives/partial", "download"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
			return "", err
		}
	}
	status := filepath.Join(state, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return "", err
	}
	options := []string{"-q", "-o", "APT::Architecture=" + arch, "-o", "APT::Architectures=" + arch,
		"-o", "Dir::State::Lists=" + filepath.Join(state, "lists"), "-o", "Dir::State::status=" + status,
		"-o", "Dir::Cache=" + filepath.Join(state, "cache"), "-o", "Acquire::Languages=none",
		"-o", "APT::Sandbox::User=root"}
	download := filepath.Join(state, "download")
	if _, err := output(ctx, download, nil, "apt-get", append(options, "update")...); err != nil {
		return "", fmt.Errorf("lists of Debian's packages for %s: %w", arch, err)
	}
	if _, err := output(ctx, download, nil, "apt-get", append(options, "download", name+"="+version)...); err != nil {
		return "", fmt.Errorf("%s for %s: %w", name, arch, err)
	}
	files, err := filepath.Glob(filepath.Join(download, "*.deb"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("%s for %s: apt-get download has left %d packages: %w", name, arch, len(files), err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	if _, err := output(ctx, "", nil, "dpkg-deb", "-x", files[0], root); err != nil {
		return "", err
	}
	return version, nil
}
