package datakeys_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/datakeys"
)

// plugins is a file whose plugin writes under one label, on servers that decrypt some probes.
type plugins struct {
	keys *datakeys.Keys

	mu       sync.Mutex
	own      string          // the label of this server's plugin
	decrypts map[string]bool // probes that this server decrypts
	refuse   error           // why the others do not agree
}

const labelOfPlugin = "k8s:enc:kms:v2:vault:1"

func (p *plugins) Agreed(context.Context, string, bool) (datakeys.Agreement, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	is := datakeys.Agreement{File: "h", Labels: []string{labelOfPlugin}, Encrypts: []string{"secrets"}}
	probe := p.keys.Probes()[labelOfPlugin]
	switch {
	case !p.decrypts[string(probe)]:
		is.Probes = map[string][]byte{labelOfPlugin: []byte(p.own)}
	case p.refuse != nil:
		return datakeys.Agreement{}, p.refuse
	default:
		is.Proved = map[string][]byte{labelOfPlugin: probe}
	}
	return is, nil
}

func (p *plugins) Status() *datakeys.FileStatus { return &datakeys.FileStatus{Hash: "h"} }

func (p *plugins) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// TestProbes: a key in a KMS is in use only after all servers have decrypted the leader's value. A
// leader replaces a value that it cannot decrypt, but for a key in use.
func TestProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1")
		defer w.close()
		w.begin()
		synctest.Wait()
		s1 := w.servers[0]
		p := &plugins{own: "one", decrypts: map[string]bool{"one": true}, refuse: errors.New("s2 does not decrypt it")}
		s1.halt()
		s1.plugins = p
		s1.start()
		w.apart(s1, "s2 does not decrypt it")
		is := func(what, probe string, used bool) {
			t.Helper()
			synctest.Wait()
			if got := s1.keys.Probes(); !maps.EqualFunc(got, map[string]string{labelOfPlugin: probe},
				func(a []byte, b string) bool { return string(a) == b }) {
				t.Errorf("%s: the probes are %q, want %q", what, got, probe)
			}
			if is := w.status(s1); (is.File.Used == "h") != used || is.Step != datakeys.AtRest {
				t.Errorf("%s: in use is %t: %+v", what, !used, is.File)
			}
		}
		is("another server cannot decrypt it", "one", false)
		p.set(func() { p.own, p.decrypts = "two", map[string]bool{"two": true} })
		w.apart(s1, "s2 does not decrypt it")
		is("the key is exchanged", "two", false)
		p.set(func() { p.refuse = nil })
		w.lead(s1, 10*time.Second)
		is("all decrypt it", "two", true)
		p.set(func() { p.own, p.decrypts = "three", map[string]bool{"three": true} })
		w.apart(s1, "does not decrypt what a plugin has encrypted under the key in use")
		is("a key in use", "two", true)
		w.apply(datakeys.Renew)
		w.lead(s1, time.Minute)
		if is := w.status(s1); is.Step != datakeys.Rewrite ||
			!strings.Contains(strings.Join(is.Waiting, ""), "other keys in their KMS") {
			t.Errorf("a rewrite by a plugin with another key: %+v", is)
		}
	})
}
