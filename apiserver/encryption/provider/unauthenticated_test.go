package provider

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/raftstore"
)

// TestWrongKeyOfAESCBC: a value of aescbc that decrypts with a wrong key, to random bytes, cannot
// be read: no read, no check and no rewrite takes it for an object.
func TestWrongKeyOfAESCBC(t *testing.T) {
	right, wrong := entry("secrets", keyed("aescbc", "key1", 1)), entry("secrets", keyed("aescbc", "key1", 2))
	c := newCluster(t, "one")
	made := c.start(t, "s1", right).providers.Now().Of(secrets)
	c.servers = nil
	s := c.start(t, "s2", wrong)
	g := s.providers.current.Load()
	found := 0
	for i := 0; found < 3; i++ {
		if i == 100_000 {
			t.Fatal("aescbc has authentication: this test, and the check, are without need")
		}
		at := place(fmt.Sprintf("/registry/secrets/ns/s%d", i))
		sealed, err := made.TransformToStorage(t.Context(), []byte("k8s\x00 an object of some length, in two blocks"),
			at)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := g.transformers[secrets].TransformFromStorage(t.Context(), sealed, at); err != nil {
			continue
		}
		found++
		if _, _, err := s.providers.Now().Of(secrets).TransformFromStorage(t.Context(), sealed, at); err == nil {
			t.Error("random bytes are read as an object")
		}
		if _, err := c.backend.Put(t.Context(), string(at), sealed); err != nil {
			t.Fatal(err)
		}
	}
	o := &encryption.Objects{Store: c.backend, Transformers: s.transformers, Now: time.Now}
	if cannot, err := o.Readable(t.Context()); cannot == nil || err != nil {
		t.Errorf("this server takes itself for seeing: %v, %v", cannot, err)
	}
	before := values(t, c)
	e := &encryption.Epoch{Revision: 1, Resources: []string{"secrets"}, Writes: "one", File: g.hash,
		Labels: []string{"k8s:enc:aescbc:v1:key1"}}
	if n, err := o.Left(t.Context(), e); err == nil {
		t.Errorf("%d objects are left to rewrite", n)
	}
	// by the file, and by the data key
	for _, e := range []*encryption.Epoch{e, {Resources: []string{"secrets"}, Writes: "one"}} {
		if err := o.Rewrite(t.Context(), 1, e, func(int) {}); err == nil ||
			!strings.Contains(err.Error(), "3 objects cannot be read") {
			t.Errorf("a rewrite: %v", err)
		}
	}
	if values(t, c) != before {
		t.Error("objects were overwritten with random bytes")
	}
}

type place string

func (p place) AuthenticatedData() []byte { return []byte(p) }

func values(t *testing.T, c *cluster) (all string) {
	t.Helper()
	view, err := c.backend.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	view.Ascend("/registry/", "", func(item raftstore.Item) bool {
		all += item.Key + string(item.Value)
		return true
	})
	return all
}

// TestObjectsOfAESCBC: each form in which the API stores objects is recognized as an object.
func TestObjectsOfAESCBC(t *testing.T) {
	inJSON, err := json.Marshal(corev1.Secret{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(path, []byte(head+entry("secrets", keyed("aescbc", "key1", 1))), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := New(
		Config{Options: &Options{File: path}, Others: func() ([]Other, bool) { return nil, true }, Took: func() {},
			Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.end()
	with := p.Now().Of(secrets)
	for data, want := range map[string]bool{string(inJSON): true, string(inJSON) + "\n": true, "k8s\x00\n": true,
		"\xd9\xd9\xf7\xa1": true, "{\x01": false, "{": false, "": false, "x": false} {
		sealed, err := with.TransformToStorage(t.Context(), []byte(data), place("/x"))
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := with.TransformFromStorage(t.Context(), sealed,
			place("/x")); (err == nil && string(got) == data) != want {
			t.Errorf("%q: %v", data, err)
		}
	}
}

// TestTwoKeysOfOneName: a name is of one key only, in all providers of a kind.
func TestTwoKeysOfOneName(t *testing.T) {
	two := func(name string, b byte) string {
		return fmt.Sprintf("{aescbc: {keys: [{name: key1, secret: %s}, {name: %s, secret: %s}]}}", key(1), name, key(b))
	}
	for what, c := range map[string]struct {
		entry   string
		refused bool
	}{
		"one provider":  {entry("secrets", two("key1", 2)), true},
		"two providers": {entry("secrets", keyed("secretbox", "key1", 1), keyed("secretbox", "key1", 2)), true},
		"another name":  {entry("secrets", two("key2", 2)), false},
		"the same key":  {entry("secrets", two("key1", 1)), false},
		"another kind":  {entry("secrets", keyed("aescbc", "key1", 1), keyed("aesgcm", "key1", 2)), false},
		"of other entries": {
			entry("secrets", keyed("aescbc", "key1", 1)) + entry("configmaps", keyed("aescbc", "key1", 2)), false},
	} {
		_, err := Load([]byte(head + c.entry))
		if (err != nil) != c.refused ||
			c.refused &&
				(!strings.Contains(err.Error(), "resources[0]: two keys of") || strings.Contains(err.Error(), key(1)) ||
					strings.Contains(err.Error(), key(2))) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
