package main

import (
	"context"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// chain has the compiler and the libraries of an architecture's C programs, on Debian.
type chain struct {
	machine elf.Machine
	triplet string
	// packages are those of the compiler and of the libraries that it links, for a native build and
	// for one on another architecture.
	native, cross []string
}

var toolchains = map[string]chain{
	"amd64": {elf.EM_X86_64, "x86_64-linux-gnu", []string{"gcc-12", "libc6-dev", "libgcc-12-dev"},
		[]string{"gcc-12-x86-64-linux-gnu", "libc6-dev-amd64-cross", "libgcc-12-dev-amd64-cross"}},
	"arm64": {elf.EM_AARCH64, "aarch64-linux-gnu", []string{"gcc-12", "libc6-dev", "libgcc-12-dev"},
		[]string{"gcc-12-aarch64-linux-gnu", "libc6-dev-arm64-cross", "libgcc-12-dev-arm64-cross"}},
}

// programs are those in barque, by the names in bin/bundle. Only hello and pause are in images.
var programs = []string{"containerd-shim-runc-v2", "hello", "host-local", "pause", "ptp", "runc"}

// seccomp is the library that is linked into runc, and its Debian package.
const seccomp = "libseccomp-dev"

// compile builds the programs of all architectures, and those of this machine: it runs them for
// the manual pages.
func (b *build) compile(ctx context.Context, archs []string) error {
	src := filepath.Join(b.work, "source")
	if err := os.RemoveAll(b.work); err != nil {
		return err
	}
	if err := b.export(ctx, src); err != nil {
		return err
	}
	if b.reuse {
		if err := reuseSchemas(".", src); err != nil {
			return err
		}
	}
	version, err := toolchain(src)
	if err != nil {
		return err
	}
	base, err := b.environment(ctx, version)
	if err != nil {
		return err
	}
	if _, ok := toolchains[runtime.GOARCH]; !ok {
		return fmt.Errorf("a release is not built on %s", runtime.GOARCH)
	}
	all := append([]string{runtime.GOARCH}, slices.DeleteFunc(slices.Clone(archs),
		func(a string) bool { return a == runtime.GOARCH })...)
	for _, arch := range all {
		env, err := b.prepare(ctx, arch)
		if err != nil {
			return err
		}
		args := []string{"--no-print-directory", "build", "GO=go", "FOR_ARCH=" + arch, "VERSION=" + b.describe}
		command := exec.CommandContext(ctx, "make", args...)
		command.Dir, command.Env = src, slices.Concat(base, env)
		command.Stdout, command.Stderr = os.Stderr, os.Stderr
		command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) } // make ends its children by it
		if err := command.Run(); err != nil {
			return fmt.Errorf("make build for %s: %w", arch, err)
		}
		to := filepath.Join(b.work, arch)
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(src, "bin/barque"), filepath.Join(to, "barque")); err != nil {
			return err
		}
		for _, name := range programs {
			content, err := os.ReadFile(filepath.Join(src, "bin/bundle", name))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(to, name), content, 0o755); err != nil {
				return err
			}
		}
		if err := check(to, arch); err != nil {
			return err
		}
	}
	text, err := output(ctx, "", []string{"HOME=" + b.work}, b.native("barque"), "version", "-o", "json")
	if err != nil {
		return err
	}
	var answer struct{ Version string }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Version == "" {
		return fmt.Errorf("barque version: %q: %w", text, err)
	}
	b.version = answer.Version
	return nil
}

// schemas is the generated folder that takes the longest, and its stamp for make. It follows from
// committed files, and make has compared their times in the tree.
const (
	schemas      = "apiserver/openapi/schemas/files"
	schemasStamp = "bin/_schemas/packed"
)

// reuseSchemas copies the generated schemas of a tree into the exported sources.
func reuseSchemas(tree, src string) error {
	files, err := filepath.Glob(filepath.Join(tree, schemas, "*.zst"))
	if err != nil || len(files) == 0 {
		return errors.Join(err,
			fmt.Errorf("%s has no schemas to use again: make schemas", filepath.Join(tree, schemas)))
	}
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(src, schemas, filepath.Base(path)), content, 0o644); err != nil {
			return err
		}
	}
	stamp := filepath.Join(src, schemasStamp)
	return errors.Join(os.MkdirAll(filepath.Dir(stamp), 0o755), os.WriteFile(stamp, nil, 0o644))
}

// native returns the path of a program that this machine can run.
func (b *build) native(name string) string { return filepath.Join(b.work, runtime.GOARCH, name) }

// environment returns the variables of a build. Those of the caller have no part in it, but for
// the places of Go's caches and modules.
func (b *build) environment(ctx context.Context, version string) ([]string, error) {
	settings := []string{"GOPROXY", "GOSUMDB", "GONOSUMDB", "GONOPROXY", "GOPRIVATE", "GOINSECURE", "GOVCS", "GOCACHE",
		"GOMODCACHE", "GOPATH"}
	text, err := output(ctx, "", nil, "go", append([]string{"env", "-json"}, settings...)...)
	if err != nil {
		return nil, err
	}
	var values map[string]string
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := []string{"GOENV=off", "GOTOOLCHAIN=" + version, "GOFLAGS=-buildvcs=false", "GOWORK=off", "GOAMD64=v1",
		"GOARM64=v8.0", "LC_ALL=C", "TZ=UTC", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.time.Unix())}
	for _, name := range settings {
		env = append(env, name+"="+values[name])
	}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY",
		"HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env, nil
}

// prepare returns the variables for an architecture, and notes its Debian packages.
func (b *build) prepare(ctx context.Context, arch string) ([]string, error) {
	t := toolchains[arch]
	if arch == runtime.GOARCH {
		for _, name := range append(t.native, seccomp) {
			if err := b.installed(ctx, name, arch); err != nil {
				return nil, err
			}
		}
		return []string{"CC=gcc-12"}, nil
	}
	for _, name := range t.cross {
		if err := b.installed(ctx, name, arch); err != nil {
			return nil, err
		}
	}
	root := filepath.Join(b.work, "root-"+arch)
	version, err := fetch(ctx, filepath.Join(b.work, "apt-"+arch), root, arch, seccomp)
	if err != nil {
		return nil, err
	}
	b.inputs = append(b.inputs, debPackage{name: seccomp, version: version, arch: arch, forArch: arch})
	return []string{"CC=" + t.triplet + "-gcc-12", "FOR_SYSROOT=" + root,
		"PKG_CONFIG_LIBDIR=" + filepath.Join(root, "usr/lib", t.triplet, "pkgconfig"),
		"PKG_CONFIG_SYSROOT_DIR=" + root}, nil
}

// check returns the faults of the programs of an architecture. Each must be static and for it,
// and runc must have been built with libseccomp.
func check(dir, arch string) error {
	var failed error
	for _, name := range append([]string{"barque"}, programs...) {
		failed = errors.Join(failed, checkProgram(filepath.Join(dir, name), arch))
	}
	info, err := buildinfo.ReadFile(filepath.Join(dir, "runc"))
	if err != nil {
		return errors.Join(failed, err)
	}
	for _, s := range info.Settings {
		if s.Key == "-tags" && slices.Contains(strings.Split(s.Value, ","), "seccomp") {
			return failed
		}
	}
	return errors.Join(failed, fmt.Errorf("runc for %s was built without libseccomp", arch))
}

func checkProgram(path, arch string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	if want := toolchains[arch].machine; f.Machine != want {
		return fmt.Errorf("%s is for %s, and not for %s", path, f.Machine, want)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not static", path)
		}
	}
	return nil
}
