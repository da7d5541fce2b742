package register

import (
	"errors"
	"maps"
	"testing"

	"github.com/barque/barque/raftstore"
)

// TestFolder: a record is written once for each revision that was read, and is apart from records
// elsewhere.
func TestFolder(t *testing.T) {
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { store.Close() })
	f := NewFolder(store, "/barque/join/")
	put := func(name, value string, revision uint64, want bool) {
		t.Helper()
		if won, err := f.Put(t.Context(), name, []byte(value), revision, 0); err != nil || won != want {
			t.Fatalf("put %s over %d: %t, %v", name, revision, won, err)
		}
	}
	put("token/a", "1", 0, true)
	put("token/a", "2", 0, false)
	put("joined/a", "x", 0, true)
	if _, err := store.Put(t.Context(), "/barque/joins", []byte("elsewhere")); err != nil {
		t.Fatal(err)
	}
	value, revision, err := f.Get(t.Context(), "token/a")
	if err != nil || string(value) != "1" {
		t.Fatalf("%q, %v", value, err)
	}
	put("token/a", "2", revision, true)
	for name, list := range map[string]func() (map[string][]byte, error){
		"list":  func() (map[string][]byte, error) { return f.List(t.Context(), "token/") },
		"known": func() (map[string][]byte, error) { return f.Known(t.Context(), "token/") },
	} {
		if all, err := list(); err != nil ||
			!maps.EqualFunc(all, map[string]string{"a": "2"}, func(a []byte, b string) bool { return string(a) == b }) {
			t.Errorf("%s: %q, %v", name, all, err)
		}
	}
	if won, err := f.Delete(t.Context(), "token/a", revision, 0); err != nil || won {
		t.Errorf("deleted what has changed: %t, %v", won, err)
	}
	_, revision, err = f.Get(t.Context(), "token/a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Delete(t.Context(), "token/a", revision, 99); !errors.Is(err, raftstore.ErrFenced) {
		t.Errorf("in a term that is over: %v", err)
	}
	if won, err := f.Delete(t.Context(), "token/a", revision, 0); err != nil || !won {
		t.Errorf("%t, %v", won, err)
	}
	if _, revision, err := f.Get(t.Context(), "token/a"); err != nil || revision != 0 {
		t.Errorf("it is there yet: %d, %v", revision, err)
	}
}
