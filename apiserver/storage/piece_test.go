package storage

import (
	"bytes"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
)

// TestPiece: allocated memory is kept when it is written as a whole, and any other write is copied,
// since the encoder may use its memory again.
func TestPiece(t *testing.T) {
	var whole piece
	given := whole.Allocate(3)
	copy(given, "abc")
	if n, err := whole.Write(given); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	if &whole.data[0] != &given[0] {
		t.Error("what was written as a whole was copied")
	}
	if _, err := whole.Write([]byte("def")); err != nil || string(whole.data) != "abcdef" || string(given) != "abc" {
		t.Errorf("%q, %q, %v", whole.data, given, err)
	}

	var parts, foreign piece
	given = parts.Allocate(20)
	for _, text := range []string{"0123456789ab", "cdefghijklmn"} {
		copy(given, text)
		if _, err := parts.Write(given[:12]); err != nil {
			t.Fatal(err)
		}
	}
	if string(parts.data) != "0123456789abcdefghijklmn" {
		t.Errorf("parts: %q", parts.data)
	}
	foreign.Allocate(3)
	buffer := []byte("abc")
	if _, err := foreign.Write(buffer); err != nil {
		t.Fatal(err)
	}
	clear(buffer)
	if !bytes.Equal(foreign.data, []byte("abc")) {
		t.Errorf("foreign: %q", foreign.data)
	}
}

// TestEncodedOnce: the memory in which the encoder of a server's codec has put an object is stored
// without a copy.
func TestEncodedOnce(t *testing.T) {
	s := open(t, newBackend(t), 0)
	pod := &example.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"label": strings.Repeat("x", 100)}}}
	encoder, ok := s.encoder.(runtime.EncoderWithAllocator)
	if !ok {
		t.Fatalf("a %T takes no memory", s.encoder)
	}
	var to piece
	if err := encoder.EncodeWithAllocator(pod, &to, &to); err != nil {
		t.Fatal(err)
	}
	want, err := runtime.Encode(s.codec, pod)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(to.data, want) || to.given != nil {
		t.Errorf("%q was copied, or is not %q", to.data, want)
	}
}
