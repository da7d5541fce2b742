package suiterun

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestDescribe(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "first.json"), []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []Artefact{{"first.json", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}}
	if got, err := Describe(dir, "first.json"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Describe(dir, "again.json"); err == nil {
		t.Error("a report that is missing was described")
	}
}
