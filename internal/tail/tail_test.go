package tail

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestShortTextIsWhole(t *testing.T) {
	b := New(100)
	fmt.Fprint(b, "one\ntwo\n")
	if got := string(b.Bytes()); got != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
}

// TestKeepsTheEnd writes lines of all lengths and compares with the end of the whole text.
func TestKeepsTheEnd(t *testing.T) {
	const size = 64
	random := rand.New(rand.NewPCG(1, 2))
	b, all := New(size), new(strings.Builder)
	for i := range 1000 {
		line := fmt.Sprintf("%d %s\n", i, strings.Repeat("x", random.IntN(40)))
		if n, err := io.MultiWriter(b, all).Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
		got := string(b.Bytes())
		if len(got) > size || !strings.HasSuffix(all.String(), got) || got == "" {
			t.Fatalf("after %d lines: %q", i, got)
		}
		if before := strings.TrimSuffix(all.String(), got); before != "" && !strings.HasSuffix(before, "\n") {
			t.Fatalf("it begins in the middle of a line: %q", got)
		}
	}
}

func TestLongerThanTheBuffer(t *testing.T) {
	b := New(8)
	b.Write([]byte("0123456789abcdef"))
	if got := string(b.Bytes()); got != "89abcdef" {
		t.Errorf("%q", got)
	}
	b.Write(bytes.Repeat([]byte("a\n"), 100))
	if got := string(b.Bytes()); got != "a\na\na\n" {
		t.Errorf("%q", got)
	}
}

func TestZeroKeepsNothing(t *testing.T) {
	var b Buffer
	if n, err := b.Write([]byte("x")); n != 1 || err != nil || len(b.Bytes()) != 0 {
		t.Error(n, err, b.Bytes())
	}
}
