// Package hardening reports how a node is set up, for the rows of clusterstatus/cis: the files on
// its disk, and a server's effective settings.
//
// It judges nothing, and it reads modes and owners of files only, not their contents.
package hardening

import (
	"errors"
	"fmt"
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
	// Kubelet are the files and directories of the kubelet's configuration. KubeletUnknown is why
	// there may be others.
	Kubelet        []string
	KubeletUnknown error
	// UnitDirs may have units of systemd, and EnvDir their environment files.
	UnitDirs []string
	EnvDir   string
}

// UnitDirs are systemd's directories of units, in the order of systemd.unit(5).
var UnitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
	"/usr/lib/systemd/system", "/lib/systemd/system"}

// EnvDir has environment files of the units, which earlier versions of `barque cluster join` wrote.
const EnvDir = "/etc/barque"

// Examine lists the files. A file that does not exist is left out. Kinds of which files may be
// missing for another reason are Unseen.
func Examine(name string, p Place) cis.Machine {
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
	if p.KubeletUnknown != nil {
		e.unseen(cis.KindKubelet, p.KubeletUnknown)
	}
	return e.machine
}

type examination struct {
	machine cis.Machine
	seen    map[inode]bool
}

// inode is a file or directory as one kind. A file may be of two kinds, by two names or a link.
type inode struct {
	kind     string
	dev, ino uint64
}

// unseen notes why files of a kind may be missing.
func (e *examination) unseen(kind string, why error) {
	if e.machine.Unseen == nil {
		e.machine.Unseen = map[string]string{}
	}
	if e.machine.Unseen[kind] == "" {
		e.machine.Unseen[kind] = why.Error()
	}
}

// look reads the target of a path, through links. It is nil for a path that leads nowhere, and for
// one that was looked at before as this kind: two of systemd's directories may be one.
func (e *examination) look(kind, path string) fs.FileInfo {
	if path == "" {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			e.unseen(kind, err)
		}
		return nil
	}
	if is, ok := info.Sys().(*syscall.Stat_t); ok {
		id := inode{kind, is.Dev, is.Ino}
		if e.seen[id] {
			return nil
		}
		if e.seen == nil {
			e.seen = map[inode]bool{}
		}
		e.seen[id] = true
	}
	return info
}

// add adds a file or directory, once.
func (e *examination) add(kind, path string) {
	if info := e.look(kind, path); info != nil {
		e.note(kind, path, info)
	}
}

func (e *examination) note(kind, path string, info fs.FileInfo) {
	f := cis.File{Path: path, Kind: kind, Mode: info.Mode().Perm()}
	if is, ok := info.Sys().(*syscall.Stat_t); ok {
		f.UID, f.GID = is.Uid, is.Gid
	}
	e.machine.Files = append(e.machine.Files, f)
}

func (e *examination) glob(kind, pattern string) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		e.unseen(kind, err)
	}
	for _, p := range paths {
		e.add(kind, p)
	}
}

// mostFiles bounds a directory: a node with that many leases has that many pods.
const mostFiles = 10000

// below adds the files in a directory and those below it, or one file. Links count as their
// targets: readers of the files follow them.
func (e *examination) below(kind, path string) {
	n := 0
	var visit func(path string) error
	visit = func(path string) error {
		if n++; n > mostFiles {
			return fmt.Errorf("%s has more than %d entries, and not all were looked at", path, mostFiles)
		}
		info := e.look(kind, path)
		switch {
		case info == nil:
			return nil
		case !info.IsDir():
			e.note(kind, path, info)
			return nil
		}
		entries, err := os.ReadDir(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a lease that has just ended
		}
		for _, entry := range entries {
			err = errors.Join(err, visit(filepath.Join(path, entry.Name())))
			if n > mostFiles {
				break
			}
		}
		return err
	}
	if err := visit(path); err != nil {
		e.unseen(kind, err)
	}
}

// pki adds a node's directory of keys and certificates.
func (e *examination) pki(dir, ca, dataKeys string) {
	e.add(cis.KindPKI, dir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		for _, kind := range []string{cis.KindPKI, cis.KindCA, cis.KindKey, cis.KindCert} {
			e.unseen(kind, err)
		}
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
