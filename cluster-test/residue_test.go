package clustertest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/snapshot"
)

// residue is the outcome of a search of files of any size, also of raw disks: the files by the
// names of the found secrets. Snapshots are searched as they lie and unpacked.
type residue struct {
	looked [][2]string                // form, and the name of the secret in that form
	found  map[string]map[string]bool // files by names
	keys   map[string]map[string]bool // files by the IDs of the data keys of values in them
	bytes  int64
}

// unpackedSnapshot ends the name under which a snapshot's content is searched.
const unpackedSnapshot = ", unpacked"

// newResidue searches for values in all their forms, by names.
func newResidue(values map[string]string) *residue {
	r := &residue{found: map[string]map[string]bool{}, keys: map[string]map[string]bool{}}
	for name, value := range values {
		for _, form := range forms([]byte(value)) {
			r.looked = append(r.looked, [2]string{string(form), name})
		}
	}
	return r
}

// Files are read in parts, and each part begins with the end of the one before.
const residuePart, residueOverlap = 1 << 20, 256

var residueZeros [residuePart + residueOverlap]byte

// encipheredPrefix begins each value that a data key has encrypted; the ID and a colon follow.
const encipheredPrefix = "k8s:enc:barque:v1:"

func (r *residue) read(file string, from io.Reader) error {
	part, kept := make([]byte, residuePart+residueOverlap), 0
	for {
		n, err := io.ReadFull(from, part[kept:])
		r.bytes += int64(n)
		if data := part[:kept+n]; !bytes.Equal(data, residueZeros[:len(data)]) { // a disk is mostly empty
			r.look(file, data)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("search %s: %w", file, err)
		}
		kept = copy(part, part[len(part)-residueOverlap:])
	}
}

func (r *residue) look(file string, data []byte) {
	note := func(in map[string]map[string]bool, name string) {
		if in[name] == nil {
			in[name] = map[string]bool{}
		}
		in[name][file] = true
	}
	for _, l := range r.looked {
		if !r.found[l[1]][file] && bytes.Contains(data, []byte(l[0])) {
			note(r.found, l[1])
		}
	}
	for {
		_, rest, ok := bytes.Cut(data, []byte(encipheredPrefix))
		if !ok {
			return
		}
		if id, _, whole := bytes.Cut(rest[:min(len(rest), 64)], []byte(":")); whole {
			note(r.keys, string(id))
		}
		data = rest
	}
}

// dir searches all files below a directory, which may go meanwhile.
func (r *residue) dir(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		err = r.file(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

func (r *residue) file(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := r.read(path, f); err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	packed, err := snapshot.NewReader(f)
	if err != nil {
		return nil // it is no snapshot
	}
	defer packed.Close()
	out, in := io.Pipe()
	go func() { in.CloseWithError(unpackSnapshot(packed, in)) }() // ends when all is read, or out is closed
	defer out.Close()
	return r.read(path+unpackedSnapshot, out)
}

// unpackSnapshot writes the keys and values of a snapshot: those of its state, of its history, and
// of a restore that was under way.
func unpackSnapshot(packed *snapshot.Reader, to io.Writer) (err error) {
	item := func(i *kv.Item) {
		if err == nil {
			_, err = fmt.Fprintf(to, "%s %s\n", i.Key, i.Value)
		}
	}
	damage := packed.Items(item)
	if damage == nil {
		damage = packed.History(func(u kv.Undo) error {
			for _, i := range u.Before {
				item(&i)
			}
			return nil
		})
	}
	if damage == nil {
		_, _, damage = packed.Rest(item)
	}
	return errors.Join(err, damage)
}

// files are those that have a value.
func (r *residue) files(name string) []string { return slices.Sorted(maps.Keys(r.found[name])) }

// TestResidue: the search finds a value in each of its forms, wherever it lies, and the keys of
// encrypted values; and nothing where there is nothing.
func TestResidue(t *testing.T) {
	const value = "the-dresden-green-is-looked-for"
	random := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) []byte {
		out := make([]byte, n)
		for i := range out {
			out[i] = byte(random.Uint32())
		}
		return out
	}
	search := func(data []byte) *residue {
		t.Helper()
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		r := newResidue(map[string]string{"it": value})
		if err := r.dir(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, form := range forms([]byte(value)) {
		for _, before := range []int{0, 7, residuePart - 5, residuePart + residueOverlap - 3, 2*residuePart + 100} {
			data := slices.Concat(noise(before), form, noise(50))
			if r := search(data); len(r.files("it")) != 1 || r.bytes != int64(len(data)) {
				t.Errorf("%q after %d bytes is in %q, of %d bytes", form, before, r.files("it"), r.bytes)
			}
			if r := search(slices.Concat(make([]byte, before), form)); len(r.files("it")) != 1 {
				t.Errorf("%q after %d zeros is not found", form, before)
			}
		}
	}
	if r := search(slices.Concat(noise(residuePart), []byte(value[:len(value)-5]), noise(9))); len(r.found) != 0 ||
		len(r.keys) != 0 {
		t.Errorf("in noise there are %v and the keys %v", r.found, r.keys)
	}
	keys := search(
		slices.Concat(noise(residuePart-3), []byte(encipheredPrefix+"cafe:…"), noise(1000),
			[]byte(encipheredPrefix+"beef:…"))).keys
	if got := slices.Sorted(maps.Keys(keys)); strings.Join(got, " ") != "beef cafe" {
		t.Errorf("the keys are %q", got)
	}
}
