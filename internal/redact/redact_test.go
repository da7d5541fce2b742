package redact

import (
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestQuickLooks: the quick check finds every secret of its kind, at any place in the text.
func TestQuickLooks(t *testing.T) {
	const letters = "aaaaabbbz09A+/=.. \n"
	found := 0
	for range 20_000 {
		var text strings.Builder
		for range rand.IntN(60) {
			text.WriteByte(letters[rand.IntN(len(letters))])
		}
		for range rand.IntN(3) { // the parts of a secret, or nearly
			text.WriteString(strings.Repeat("x", 4+rand.IntN(4)) + "." + strings.Repeat("7", 14+rand.IntN(4)))
			text.WriteString(strings.Repeat("Q", 40+rand.IntN(4)) + strings.Repeat("=", rand.IntN(3)))
			text.WriteByte(letters[rand.IntN(len(letters))])
		}
		for _, f := range forms {
			if f.may == nil || !f.pattern.MatchString(text.String()) {
				continue
			}
			if found++; !f.may(text.String()) {
				t.Fatalf("%v is in %q, and the quick look says no", f.pattern, text.String())
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d texts had a secret", found)
	}
}

func TestForms(t *testing.T) {
	key := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	for name, c := range map[string]struct{ text, secret string }{
		"private key": {"x\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIrY\n-----END EC PRIVATE KEY-----\ny",
			"MHcCAQEE"},
		"cut private key": {"-----BEGIN PRIVATE KEY-----\nMHcCAQEEIIrY", "MHcCAQEE"},
		"web token": {"token review of eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl failed",
			"eyJzdWIiOiJ4In0"},
		"key of a backup": {"read AGE-SECRET-KEY-1QQQSYQCYQ5RQWZQFPG9SCRGWPUGPZYSN", "1QQQSYQCYQ5"},
		"join token": {"args=[--join x b1." + strings.Repeat("0a", 32) + ".abcdef.0123456789abcdef]",
			"0123456789abcdef"},
		"new join token": {"b2." + strings.Repeat("0a", 32) + ".abcdef.0123456789abcdef0123456789",
			"0123456789abcdef0123456789"},
		"bootstrap token":  {"used abcdef.0123456789abcdef twice", "0123456789abcdef"},
		"flag":             {"barque server --token s3cret! --name x", "s3cret!"},
		"flag with equals": {"barque server --token=s3cret!", "s3cret!"},
		"header":           {"Authorization: Bearer abc123xyz", "abc123xyz"},
		"json":             {`{"password": "hunter22", "name": "x"}`, "hunter22"},
		"escaped json":     {`err="{\"password\":\"hunter22\"}"`, "hunter22"},
		"yaml":             {"client-key-data: LS0tLS1CRUdJTg", "LS0tLS1CRUdJTg"},
		"list of keys":     {`{"gossipKeys": ["c2hvcnQ"]}`, "c2hvcnQ"},
		"address":          {"GET https://user:hunter22@example.com/x", "hunter22"},
		"long base64":      {"keys=" + key, key},
	} {
		got := New().Text(c.text)
		if strings.Contains(got, c.secret) || !strings.Contains(got, mark) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestOrdinaryTextStays: text that an operator needs is left alone.
func TestOrdinaryTextStays(t *testing.T) {
	for _, text := range []string{
		`time=2026-11-20T16:00:00.000Z level=INFO msg="this server leads" term=7 server=s1.0a1b2c3d`,
		"goroutine 1 [select]:\ngithub.com/barque/barque/raftstore/node.(*Node).keepContact(0xc000123456)\n\t/src/raftstore/node/contact.go:47 +0x1d",
		"image sha256:4f2f4b3f0b8d0c2b6e3d7a8f9c1e5d4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e",
		"connect to server 10.77.0.12:6444: connection refused",
	} {
		if got := New().Text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestKnownSecrets(t *testing.T) {
	r := New("open-sesame", "open-sesame-2", "short")
	got := r.Text("open-sesame-2 and open-sesame, in short")
	if got != mark+" and "+mark+", in short" {
		t.Errorf("%q", got)
	}
}

// TestKeyAcrossPieces: a key is one piece wherever it begins.
func TestKeyAcrossPieces(t *testing.T) {
	key := "-----BEGIN PRIVATE KEY-----\nMHcCAQEEIIrY\nMHcCAQEEIIrY\n-----END PRIVATE KEY-----"
	for before := pieceSize - 2*len(key); before <= pieceSize+len(key); before += 3 {
		for _, text := range []string{
			strings.Repeat("x", before) + key + " " + key + "\n" + strings.Repeat("y\n", pieceSize),
			strings.Repeat("lines of 32 bytes, one of many.\n", before/32) + strings.Repeat("x", before%32) + key +
				"\n" + strings.Repeat("y\n", pieceSize),
		} {
			if got := New().Text(text); strings.Contains(got, "MHcCAQEE") || strings.Count(got, "y\n") != pieceSize {
				t.Fatalf("a key at %d: %q", before, got[pieceSize-200:])
			}
		}
	}
}

// TestLongText: secrets are found wherever they stand in a long text, and nothing else is lost.
func TestLongText(t *testing.T) {
	key := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("MHcCAQEEIIrY\n", 800) + "-----END PRIVATE KEY-----"
	for _, secret := range []string{key, "Bearer abc123xyz", "abcdef.0123456789abcdef"} {
		for before := range 60 {
			text := strings.Repeat("a line of a log, "+strings.Repeat("x", before)+"\n", 100)
			got := New().Text(text + secret + "\n" + text)
			if strings.Contains(got, "MHcCAQEE") || strings.Contains(got, "abc123xyz") ||
				strings.Contains(got, "0123456789abcdef") || strings.Count(got, "a line of a log") != 200 {
				t.Fatalf("%.30s behind lines with %d more: %d bytes became %d", secret, before, len(text)*2, len(got))
			}
		}
	}
}
