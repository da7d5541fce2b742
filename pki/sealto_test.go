package pki

import (
	"bytes"
	"errors"
	"testing"
)

// TestSealTo: only the holder of the key opens, and only with the data to which it was bound.
func TestSealTo(t *testing.T) {
	key := func(text string) SealingKey {
		k, err := SealingKeyOf(text)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	mine, plain := key("one"), []byte("the CA's key")
	sealed, err := SealTo(mine.Public(), plain, []byte("request"))
	if err != nil || bytes.Contains(sealed, plain) {
		t.Fatalf("%q, %v", sealed, err)
	}
	if got, err := key("one").Open(sealed, []byte("request")); err != nil || !bytes.Equal(got, plain) {
		t.Errorf("after a restart: %q, %v", got, err)
	}
	changed := bytes.Clone(sealed)
	changed[len(changed)-1] ^= 1
	for name, open := range map[string]func() ([]byte, error){
		"another key":     func() ([]byte, error) { return key("two").Open(sealed, []byte("request")) },
		"another request": func() ([]byte, error) { return mine.Open(sealed, []byte("requesT")) },
		"changed":         func() ([]byte, error) { return mine.Open(changed, []byte("request")) },
		"cut":             func() ([]byte, error) { return mine.Open(sealed[:7], []byte("request")) },
	} {
		if got, err := open(); !errors.Is(err, ErrSealedTo) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if again, err := SealTo(mine.Public(), plain, []byte("request")); err != nil || bytes.Equal(again, sealed) {
		t.Errorf("sealed twice alike: %v", err)
	}
	if _, err := SealTo([]byte("short"), plain, nil); err == nil {
		t.Error("sealed to what is no key")
	}
}
