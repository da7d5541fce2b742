package datakeys

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/internal/scope"
)

// File is this server's file of providers, which write in place of the key that encrypts.
type File interface {
	// Agreed returns the file and the keys of all servers, or why these differ. listed is the hash
	// of the file that is in use. With ask, nothing is taken from an earlier look.
	Agreed(ctx context.Context, listed string, ask bool) (Agreement, error)
	// Status returns the status of the file, or nil if no server has one.
	Status() *FileStatus
}

// Agreement is the file that all servers have.
type Agreement struct {
	File   string   // hash; empty: no server has a file
	Labels []string // of the keys under which its providers write
	// Encrypts are the resources that a provider of the file may have encrypted, and Plain are
	// those that it leaves alone.
	Encrypts, Plain []string
	// Probes are ciphertexts of this server's, by the labels of keys in a KMS of which the state
	// has none that this server decrypts. The others decrypt them before they agree.
	Probes map[string][]byte
	// Proved are the ciphertexts of the state that all servers have decrypted.
	Proved map[string][]byte
}

// agrees refuses a change that the files of the servers stand against.
func (k *kind) agrees(d document, change Change) error {
	if change == Disable && d.File != "" {
		return refuse(
			"a file of providers is in use, which would go on to encrypt: put the provider identity first in it on all servers, " +
				"begin with `barque secrets-encrypt rewrite`, and start all servers without the file")
	}
	if k.File == nil {
		return nil
	}
	hash, is := "", k.File.Status()
	if is != nil {
		hash = is.Hash
	}
	switch {
	case is != nil && len(is.Differ) > 0 && (change != Enable || d.Writes != ""): // the first key comes first
		return refuse(
			"the file of providers differs between servers, so that one could not read what another writes: this server has %s, other than %s: give all servers the same file first",
			cmp.Or(is.Path, "none"), strings.Join(is.Differ, ", "))
	case change == Renew && d.Writes != "" && hash != d.File:
		return refuse(
			"the file of providers of this server is not the one in use, or it has none: `barque secrets-encrypt status` shows the reason. After a change of the files the leader takes a moment: try again")
	}
	return nil
}

// encryptedByFile reports whether the file in use may encrypt a resource.
func (k *kind) encryptedByFile(d document, resource string) bool {
	if k.File == nil || d.File == "" {
		return false
	}
	is := k.File.Status()
	return is == nil || is.Hash != d.File || is.encrypts(resource) // another file gives no answer
}

// settled returns why the leader must not rewrite objects now, or nil. Without a file in use that
// depends on no other server.
func (k *kind) settled(ctx context.Context, d document) error {
	if k.File == nil || d.File == "" {
		return nil
	}
	is, err := k.File.Agreed(ctx, d.File, true)
	if err == nil && (len(is.Probes) > 0 || is.File != d.File || !equal(is.Labels, d.Labels)) {
		err = errNotListed
	}
	return err
}

var errNotListed = &RefusedError{
	"the servers have another file of providers, or other keys in their KMS, than the ones in use: the leader is about to take them"}

// Reasons why the leader does not list the file that all servers have.
const (
	needsKey  = "the file of providers is not in use, because nothing is encrypted: begin with `barque secrets-encrypt enable`"
	unlisting = "the servers have no file of providers any more, and objects are under one: give all servers the file again: "
)

// list writes the file that all servers have into the state, also the keys in a KMS, and reports
// whether it has. The file writes from then on. While objects are rewritten, that begins anew.
func (m *Manager) list(ctx context.Context, d document, term uint64) (listed bool, err error) {
	k := m.kind
	if k.File == nil || d.Step == Spread {
		return false, nil
	}
	is, apart := k.File.Agreed(ctx, d.File, d.Step != AtRest)
	if apart != nil || len(is.Probes) == 0 && is.File == d.File && equal(is.Labels, d.Labels) {
		k.setApart(apart, "")
		return false, nil
	}
	if d.Writes == "" {
		k.setApart(nil, needsKey)
		return false, nil
	}
	if len(is.Probes) > 0 {
		return false, m.probe(ctx, d, is, term)
	}
	if is.File != d.File {
		if k.refusedLately(is.File) {
			return false, nil
		}
		cannot, err := k.Objects.Readable(ctx)
		switch {
		case err != nil:
			return false, err
		case cannot != nil && is.File == "":
			k.refuse(is.File, unlisting+cannot.Error())
			return false, nil
		case cannot != nil:
			k.refuse(is.File,
				"the file of providers of all servers is not taken into use, because it does not decrypt all objects: "+
					cannot.Error())
			return false, nil
		}
	}
	value, revision, err := m.Store.Get(ctx)
	if err != nil || len(value) == 0 {
		return false, err
	}
	now, err := parse(value)
	if err != nil || now.Generation != d.Generation || !now.proves(is.Proved) {
		return false, err
	}
	next := now.listing(is)
	if next.Step == Clean {
		next.Step = Rewrite
	}
	if next, err = k.sealAnew(next.step(next.Step)); err != nil {
		return false, err
	}
	if value, err = json.Marshal(next); err != nil {
		return false, err
	}
	if err := m.Store.Put(ctx, value, revision, term); err != nil {
		return false, err
	}
	k.setApart(nil, "")
	m.Logger.Info("the file of providers of all servers, or its keys, are taken into use", "file", is.File, "keys",
		is.Labels, "generation", next.Generation)
	return true, nil
}

// listing returns the document with a file. The resources that the file encrypts are encrypted from
// then on, also without it. Those that it leaves alone stay as they are.
func (d document) listing(is Agreement) document {
	if is.File != d.File {
		resources := d.scope()
		for _, name := range is.Plain {
			if !resources.Has(name) {
				resources.Except = scope.Scope{Names: resources.Except}.Add(name).Names
			}
		}
		for _, name := range is.Encrypts {
			resources = resources.Add(name)
		}
		// An exception of before ends where the nearest name of this file encrypts: without the
		// file, its objects would come in clear.
		file := scope.Scope{Names: is.Encrypts, Except: is.Plain}
		resources.Except = slices.DeleteFunc(slices.Clone(resources.Except), file.Has)
		d = d.in(resources.Pruned())
	}
	d.File, d.Labels, d.Probes = is.File, slices.Clone(is.Labels), is.Proved
	return d
}

// proves reports whether the document has all these probes yet.
func (d document) proves(proved map[string][]byte) bool {
	for label, value := range proved {
		if !bytes.Equal(d.Probes[label], value) {
			return false
		}
	}
	return true
}

// Reasons why the leader does not list the keys of plugins.
const (
	probing   = "the servers try whether their plugins decrypt what the leader's plugin has encrypted: that takes some seconds"
	misproved = "the plugin of the leader does not decrypt what a plugin has encrypted under the key in use that has the same ID, %s: give all plugins the same key, with an ID of its own"
)

// probe writes values of this server's plugins into the state, for the others to decrypt. Two KMS
// may name different keys alike: no label shows that. A value for a key in use stays.
func (m *Manager) probe(ctx context.Context, d document, is Agreement, term uint64) error {
	value, revision, err := m.Store.Get(ctx)
	if err != nil || len(value) == 0 {
		return err
	}
	now, err := parse(value)
	if err != nil || now.Generation != d.Generation {
		return err
	}
	probes := maps.Clone(now.Probes)
	if probes == nil {
		probes = map[string][]byte{}
	}
	maps.DeleteFunc(probes, func(label string, _ []byte) bool {
		return !slices.Contains(now.Labels, label) && !slices.Contains(is.Labels, label)
	})
	for label, own := range is.Probes {
		if probes[label] != nil && slices.Contains(now.Labels, label) {
			m.kind.setApart(nil, fmt.Sprintf(misproved, label))
			return nil
		}
		probes[label] = own
	}
	now.Probes = probes
	if value, err = json.Marshal(now); err != nil {
		return err
	}
	m.kind.setApart(nil, probing)
	return m.Store.Put(ctx, value, revision, term)
}

func (k *kind) setApart(err error, reason string) {
	if err != nil {
		reason = err.Error()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.apart = reason
}

// refuseFor is how long a file is not tried again that does not decrypt all objects.
const refuseFor = 10 * time.Second

func (k *kind) refuse(file, reason string) {
	k.setApart(nil, reason)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refused, k.refusedAt = file, k.Now()
}

func (k *kind) refusedLately(file string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.apart != "" && k.refused == file && k.Now().Sub(k.refusedAt) < refuseFor
}

func (k *kind) whyApart() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.apart
}

// fileStatus returns the status of this server's file, by the state of the data keys.
func (k *kind) fileStatus(d document) *FileStatus {
	if k.File == nil {
		return nil
	}
	is := k.File.Status()
	if is == nil && d.File == "" {
		return nil
	}
	if is == nil {
		is = new(FileStatus)
	}
	is.Used = d.File
	is.Writes = d.File != "" && d.File == is.Hash
	is.Apart = k.whyApart()
	return is
}
