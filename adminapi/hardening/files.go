// Package hardening reports how a node is set up, for the rows of clusterstatus/cis: the files on
// its disk, and a server's effective settings.
//
// It judges nothing, and it reads modes and owners of files only, not their contents.
package hardening

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/barque/barque/clusterstatus/cis"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
)

// Place is where a node's files are.
type Place struct {
	DataDir string
	// CNIDir has the configuration of the pod network, and IPAMDir its leases.
	CNIDir, IPAMDir string
	// Kubelet are the files and directories of the kubelet's configuration.
	Kubelet []string
	// UnitDirs may have units of systemd, and EnvDir their environment files.
	UnitDirs []string
	EnvDir   string
}

// UnitDirs are systemd's directories of units, in the order of systemd.unit(5).
var UnitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// EnvDir has the environment files that `barque cluster join` writes.
const EnvDir = "/etc/barque"

// Examine lists the files. A file that does not exist is left out.
func Examine(name string, p Place) (cis.Machine, error) {
	e := examination{machine: cis.Machine{Name: name}}
	for _, dir := range p.UnitDirs {
		e.glob(cis.KindUnit, filepath.Join(dir, "barque-*.service"))
		e.glob(cis.KindUnit, filepath.Join(dir, "barque-*.service.d", "*.conf"))
	}
	if p.EnvDir != "" {
		e.glob(cis.KindUnit, filepath.Join(p.EnvDir, "*.env"))
	}
	e.add(cis.KindStore, enroll.StoreDir(p.DataDir))
	e.glob(cis.KindKubeconfig, filepath.Join(p.DataDir, "*.kubeconfig"))
	e.add(cis.KindRecord, filepath.Join(p.DataDir, "node.json"))
	e.glob(cis.KindKey, filepath.Join(p.DataDir, "*.key")) // of WireGuard, and for extension API servers
	e.pki(credentials.Dir(p.DataDir), credentials.CAFile(p.DataDir), credentials.DataKeysFile(p.DataDir))
	e.below(cis.KindCNI, p.CNIDir)
	e.below(cis.KindCNI, p.IPAMDir)
	for _, path := range p.Kubelet {
		e.below(cis.KindKubelet, path)
	}
	return e.machine, errors.Join(e.errs...)
}

type examination struct {
	machine cis.Machine
	seen    map[[2]uint64]bool // device and inode
	errs    []error
}

// add adds a file, once: two of systemd's directories may be one.
func (e *examination) add(kind, path string) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || path == "" {
		return
	}
	if err != nil {
		e.errs = append(e.errs, err)
		return
	}
	f := cis.File{Path: path, Kind: kind, Mode: info.Mode().Perm()}
	if is, ok := info.Sys().(*syscall.Stat_t); ok {
		id := [2]uint64{is.Dev, is.Ino}
		if e.seen[id] {
			return
		}
		if e.seen == nil {
			e.seen = map[[2]uint64]bool{}
		}
		e.seen[id] = true
		f.UID, f.GID = is.Uid, is.Gid
	}
	e.machine.Files = append(e.machine.Files, f)
}

func (e *examination) glob(kind, pattern string) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		e.errs = append(e.errs, err)
	}
	for _, p := range paths {
		e.add(kind, p)
	}
}

// mostFiles bounds a directory: a node with that many leases has that many pods.
const mostFiles = 10000

// below adds the regular files in a directory, or one file.
func (e *examination) below(kind, path string) {
	if path == "" {
		return
	}
	n := 0
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		switch n++; {
		case errors.Is(err, fs.ErrNotExist): // a lease that has just ended
			return nil
		case err != nil:
			return err
		case n > mostFiles:
			return fs.SkipAll
		case d.Type().IsRegular():
			e.add(kind, p)
		}
		return nil
	})
	if err != nil {
		e.errs = append(e.errs, err)
	}
}

// pki adds a node's directory of keys and certificates.
func (e *examination) pki(dir, ca, dataKeys string) {
	e.add(cis.KindPKI, dir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.errs = append(e.errs, err)
	}
	for _, entry := range entries {
		path, kind := filepath.Join(dir, entry.Name()), cis.KindPKI
		switch {
		case path == ca:
			kind = cis.KindCA
		case strings.HasSuffix(path, ".key"), path == dataKeys:
			kind = cis.KindKey
		case strings.HasSuffix(path, ".crt"):
			kind = cis.KindCert
		}
		e.add(kind, path)
	}
}
