package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
	"golang.org/x/sync/errgroup"
)

// pack writes the archive and the packages of an architecture into a directory.
func (b *build) pack(dir, arch string, l layout) error {
	items, err := l.items()
	if err != nil {
		return err
	}
	scripts := filepath.Join(l.source, "release/package")
	name := fmt.Sprintf("barque_%s_%s", b.version, arch)
	top := fmt.Sprintf("barque-%s-linux-%s", b.version, arch)
	var group errgroup.Group
	group.Go(func() error {
		return written(filepath.Join(dir, top+".tar.gz"), func(w io.Writer) error {
			return writeArchive(w, top, b.time, l.program, items)
		})
	})
	for suffix, packager := range map[string]nfpm.Packager{".deb": deb.Default, ".rpm": rpm.DefaultRPM} {
		// nfpm reads the contents from files.
		staging := filepath.Join(b.work, name+suffix)
		info, err := packageInfo(b.version, arch, suffix, b.time, l.program, staging, scripts, items)
		if err != nil {
			return err
		}
		group.Go(func() error {
			write := func(w io.Writer) error { return packager.Package(info, w) }
			return written(filepath.Join(dir, name+suffix), write)
		})
	}
	return group.Wait()
}

func written(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}

// writeArchive writes the archive: everything in one directory, owned by root, with one time.
func writeArchive(out io.Writer, top string, at time.Time, program string, items []item) error {
	z := gzip.NewWriter(out)
	t := tar.NewWriter(z)
	made := map[string]bool{}
	var directory func(path string) error
	directory = func(path string) error {
		if made[path] || path == "." {
			return nil
		}
		made[path] = true
		if err := directory(filepath.Dir(path)); err != nil {
			return err
		}
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: path + "/", Mode: 0o755, ModTime: at,
			Format: tar.FormatUSTAR})
	}
	file := func(name string, mode, size int64) error {
		path := filepath.Join(top, name)
		if err := directory(filepath.Dir(path)); err != nil {
			return err
		}
		return t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: mode, Size: size, ModTime: at,
			Format: tar.FormatUSTAR})
	}
	f, err := os.Open(program)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := file("barque", 0o755, info.Size()); err != nil {
		return err
	}
	if _, err := io.Copy(t, f); err != nil {
		return err
	}
	for _, i := range items {
		if i.archive == "" {
			continue
		}
		if err := file(i.archive, 0o644, int64(len(i.content))); err != nil {
			return err
		}
		if _, err := t.Write(i.content); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

const description = `Kubernetes-compatible cluster in one binary
Barque turns Linux machines into a Kubernetes-compatible cluster. Every server
has the replicated datastore, the API, the controllers and a node. Nothing else
has to be installed.

The package starts nothing: systemctl enable --now barque-server begins a
cluster.`

// packageInfo describes a package, and writes its files below staging.
func packageInfo(
	version, arch, suffix string, at time.Time, program, staging, scripts string, items []item,
) (*nfpm.Info, error) {
	contents := files.Contents{entry(program, "/usr/bin/barque", "", 0o755, at),
		entry("", "/etc/barque", files.TypeDir, 0o755, at)}
	for n, i := range items {
		to := i.deb
		if suffix == ".rpm" {
			to = i.rpm
		}
		if to == "" {
			continue
		}
		if i.kind == folder {
			contents = append(contents, entry("", to, files.TypeDir, 0o755, at))
			continue
		}
		from := filepath.Join(staging, fmt.Sprint(n))
		if err := errors.Join(os.MkdirAll(staging, 0o755), os.WriteFile(from, i.content, 0o644)); err != nil {
			return nil, err
		}
		contents = append(contents, entry(from, to, typeOf(i.kind, suffix), 0o644, at))
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "barque", Arch: arch, Platform: "linux", Version: version, Section: "admin", Priority: "optional",
		Maintainer: "The Barque maintainers <" + repository + ">", Homepage: repository, Description: description,
		MTime: at, DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Contents:   contents,
			Recommends: []string{"ca-certificates"},
			Scripts: nfpm.Scripts{PostInstall: filepath.Join(scripts, "postinstall.sh"),
				PreRemove: filepath.Join(scripts, "preremove.sh"), PostRemove: filepath.Join(scripts, "postremove.sh")},
			// The name of the machine that builds is no part of the package.
			RPM: nfpm.RPM{BuildHost: "localhost", Group: "System Environment/Daemons"},
			Deb: nfpm.Deb{Compression: "gzip"},
		},
	})
	return info, nil
}

// typeOf is nfpm's name of a file's kind. Debian knows configurations only.
func typeOf(k kind, suffix string) string {
	switch {
	case k == config:
		return files.TypeConfigNoReplace
	case k == doc && suffix == ".rpm":
		return files.TypeRPMDoc
	case k == license && suffix == ".rpm":
		return files.TypeRPMLicense
	}
	return files.TypeFile
}

func entry(from, to, kind string, mode os.FileMode, at time.Time) *files.Content {
	return &files.Content{Source: from, Destination: to, Type: kind,
		FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: at}}
}
