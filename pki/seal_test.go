package pki

import (
	"bytes"
	"errors"
	"testing"
	"time"
)

func TestSeal(t *testing.T) {
	newCA := func() *Authority {
		ca, err := NewAuthority("c1", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	ca := newCA()
	sealed, err := ca.Seal("keys", []byte("a secret"), []byte("bound"))
	if err != nil || bytes.Contains(sealed, []byte("a secret")) {
		t.Fatalf("%q, %v", sealed, err)
	}
	if plain, err := ca.Open("keys", sealed, []byte("bound")); err != nil || string(plain) != "a secret" {
		t.Fatalf("%q, %v", plain, err)
	}
	if again, err := ca.Seal("keys", []byte("a secret"), []byte("bound")); err != nil || bytes.Equal(again, sealed) {
		t.Fatalf("the same thing was sealed twice alike; %v", err)
	}
	flipped := bytes.Clone(sealed)
	flipped[len(flipped)-1] ^= 1
	for what, open := range map[string]func() ([]byte, error){
		"another CA":       func() ([]byte, error) { return newCA().Open("keys", sealed, []byte("bound")) },
		"another purpose":  func() ([]byte, error) { return ca.Open("tokens", sealed, []byte("bound")) },
		"other bound data": func() ([]byte, error) { return ca.Open("keys", sealed, []byte("else")) },
		"a flipped bit":    func() ([]byte, error) { return ca.Open("keys", flipped, []byte("bound")) },
		"cut off":          func() ([]byte, error) { return ca.Open("keys", sealed[:5], []byte("bound")) },
	} {
		if plain, err := open(); !errors.Is(err, ErrSealed) {
			t.Errorf("%s: %q, %v", what, plain, err)
		}
	}
	verifier, err := ParseAuthority(ca.PEM(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verifier.Open("keys", sealed, []byte("bound")); err == nil {
		t.Error("opened without the CA's key")
	}
}
