package datakeys

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// FuzzState: no value in the place of the state of the keys crashes a server. One that is taken is
// of a format that this version knows, and is written again without a loss.
func FuzzState(f *testing.F) {
	for _, seed := range []string{
		"", "null", "{}", `{"format":1,"generation":1}`,
		`{"format":1,"generation":2,"resources":["secrets"],"writes":"k1","keys":[{"id":"k1","made":"2026-01-01T00:00:00Z","sealed":"AAAA","ca":"x"}]}`,
		`{"format":2,"generation":3,"step":"rewrite","began":"2026-01-01T00:00:00Z","resources":["*.*"],"except":["configmaps"],"next":"k2","file":"sha256:x","labels":["a"],"probes":{"a":"AAAA"},"cleaned":9,"floor":7}`,
		`{"format":3,"generation":1}`, `{"format":1,"cluster":"c","generation":1}`, `{"format":1,"generation":-1}`,
		`{"format":1,"generation":1,"step":"none such","keys":[{}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		d, err := parse(value)
		if err != nil {
			return
		}
		if d.Format < format || d.Format > fileFormat || d.Generation == 0 {
			t.Errorf("%q was taken: %+v", value, d)
		}
		_, _, _ = d.Step.Text(), d.scope(), d.only()
		epoch := d.epoch(1)
		written, err := json.Marshal(d)
		if err != nil {
			t.Fatalf("%q cannot be written: %v", value, err)
		}
		again, err := parse(written)
		if err != nil {
			t.Fatalf("%q is written as %q, which is not read: %v", value, written, err)
		}
		if e := again.epoch(1); again.Generation != d.Generation || again.Step != d.Step || again.Writes != d.Writes ||
			e.Writes != epoch.Writes || !slices.Equal(again.Resources, d.Resources) || len(again.Keys) != len(d.Keys) {
			t.Errorf("%q is written as %q", value, written)
		}
	})
}

// FuzzKeysFile: a file with data keys is read, or the error names it. No key of another ID is
// taken.
func FuzzKeysFile(f *testing.F) {
	key := make([]byte, KeySize)
	good, err := json.Marshal(
		own{Cluster: "c1", Generation: 2, Writes: KeyID(key), Keys: []heldKey{{ID: KeyID(key), Key: key}}})
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{string(good), "", "null", "{}", `{"cluster":"c1","keys":[{"id":"x","key":"AAAA"}]}`,
		`{"cluster":"other","keys":null}`, `{"cluster":"c1","keys":[{}]}`} {
		f.Add([]byte(seed))
	}
	path := filepath.Join(f.TempDir(), "data-keys.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		k, err := Load(KeysConfig{Path: path, Cluster: "c1", Note: func(bool) error { return nil }})
		if err != nil {
			return
		}
		for _, held := range k.own.Keys {
			if KeyID(held.Key) != held.ID {
				t.Errorf("%q: the key %s is another one", data, held.ID)
			}
		}
		_ = k.known(k.own.Writes)
	})
}
